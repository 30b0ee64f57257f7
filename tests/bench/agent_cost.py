"""What the agent costs: CPU seconds per second while 8 ranks write at a realistic rate.

`python tests/bench/agent_cost.py [--seconds 30] [--rate 200] [--communicators 4]` prints one JSON object.
Kafka is a real one, started here; the ranks write real pages from processes of their own. The agent takes
one sample a second. `agent_node_percent` is of all CPUs of this machine, and of the agent with everything it
has started. What it costs until it has settled is apart: `agent_start_cpu_s`, from its first instruction on.
"""

import argparse
import contextlib
import json
import os
import socket as socketlib
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from paceline.agent.process import ProcReader
from paceline.contracts import ids
from paceline.contracts.agent_socket import CommunicatorOpened, Hello
from paceline.contracts.codes import DType, Function, Phase, ReduceOp, Source
from paceline.lab.kafka import LocalKafka
from paceline.probe.connection import AgentConnection
from paceline.probe.writer import Page

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.bench.cpu_tree import Look, read_tree, summarize

RANKS = 8
START_S_MAX = 60.0
# After the last rank is there: every watcher of the agent has looked twice by then, the slowest every 5 s.
SETTLE_S = 12.0
PREFIX = "paceline_agent_"


def write_rank(socket: str, rank: int, rate: float, communicators: int) -> None:
    """One rank: `rate` rounds a second in each communicator, until it is killed."""
    page = Page.create("bench", "a1", rank, RANKS, rank, "bench")
    page.set_phase(Phase.TRAIN, "train")
    start = ProcReader().read(os.getpid()).start_ticks
    hello = Hello("bench", "declared", "a1", "declared", rank, RANKS, rank, os.getpid(), start)
    link = AgentConnection(socket, page.page_fd, page.control_fd, hello)
    slots = []
    for number in range(communicators):
        comm = ids.communicator_id(f"group_{number}", range(RANKS))
        slots.append(page.open_communicator(comm, 0, rank, RANKS, rank, Source.TORCH_HOOK))
        link.send(
            CommunicatorOpened(
                ids.format_communicator(comm), f"group_{number}", f"0-{RANKS - 1}", 0, "gloo", slots[-1]
            )
        )
    link.start()
    step = 0
    while True:
        for slot in slots:
            ticket = page.enter(slot, Function.ALL_REDUCE, DType.FLOAT32, ReduceOp.SUM, -1, 4096, 16384, 4096)
            page.returned(ticket)
            page.complete(ticket, False)
        step += 1
        page.set_step(step)
        page.beat()
        time.sleep(1.0 / rate)


def measure(seconds: float, rate: float, communicators: int) -> dict[str, object]:
    """Run Kafka, agent and ranks; the agent's CPU time over `seconds` after a warm-up."""
    with tempfile.TemporaryDirectory(prefix="pa-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        kafka = LocalKafka(folder)
        kafka.start()
        socket = folder / "a" / "agent.sock"
        port = _free_port()
        began_s = time.monotonic()
        environment = {
            **os.environ,
            "PACELINE_HOME": str(folder / "a"),
            "PACELINE_LOG_LEVEL": "warning",
            "PACELINE_HTTP_PORT": str(port),
        }
        children = [
            subprocess.Popen(
                [sys.executable, "-m", "paceline.contracts.cli", "agent", "--socket", str(socket),
                 "--kafka", kafka.bootstrap, "--node", "bench"],
                env=environment,
            )
        ]  # fmt: skip
        try:
            _wait_for(socket, children[0])
            children += [
                subprocess.Popen([sys.executable, __file__, "--rank", str(rank), "--socket", str(socket),
                                  "--rate", str(rate), "--communicators", str(communicators)])
                for rank in range(RANKS)
            ]  # fmt: skip
            _wait_until_settled(port)
            start = {
                "agent_start_cpu_s": round(read_tree(children[0].pid).total_ms / 1000, 2),
                "agent_start_s": round(time.monotonic() - began_s, 1),
            }
            result = start | _observe(children[0].pid, [child.pid for child in children[1:]], port, seconds)
        finally:
            for child in reversed(children):
                child.terminate()
                child.wait(20)
            kafka.stop()
    shape = {"communicators_per_rank": communicators, "rounds_per_second_and_communicator_at_most": rate}
    return {"benchmark": "agent_cost", "ranks": RANKS, **shape, **result}


def _wait_until_settled(port: int) -> None:
    deadline = time.monotonic() + START_S_MAX
    found = 0.0
    while found != RANKS:
        if time.monotonic() > deadline:
            raise RuntimeError(f"the agent observes {found:g} processes after {START_S_MAX:g} s, not {RANKS}")
        time.sleep(0.5)
        with contextlib.suppress(OSError):  # it listens for scrapers last
            found = _scrape(port).get("processes", 0.0)
    time.sleep(SETTLE_S)


def _observe(agent: int, ranks: list[int], port: int, seconds: float) -> dict[str, object]:
    proc = ProcReader()
    metrics_before, resident_before_kib = _scrape(port), _resident_kib(agent)
    ranks_before = [proc.read(pid).cpu_ms for pid in ranks]
    load_before, faults_before = os.getloadavg()[0], _page_faults(agent)
    looks = [Look(time.monotonic(), read_tree(agent))]
    while (left_s := looks[0].at_s + seconds - time.monotonic()) > 0:
        time.sleep(min(left_s, 1.0))
        looks.append(Look(time.monotonic(), read_tree(agent)))
    ranks_after, resident_after_kib, metrics = (
        [proc.read(pid).cpu_ms for pid in ranks], _resident_kib(agent), _scrape(port)
    )  # fmt: skip
    if metrics["processes"] != RANKS:
        raise RuntimeError(f"the agent observes {metrics['processes']:g} processes, expected {RANKS}")
    elapsed_s = looks[-1].at_s - looks[0].at_s
    return {
        **summarize(looks, os.cpu_count() or 1),
        "agent_page_faults_per_s": [
            round((after - before) / elapsed_s, 1)
            for before, after in zip(faults_before, _page_faults(agent), strict=True)
        ],
        "load": [round(load, 1) for load in (load_before, os.getloadavg()[0])],
        "agent_samples": metrics["samples_total"] - metrics_before["samples_total"],
        "agent_bytes_per_s": round((metrics["bytes_total"] - metrics_before["bytes_total"]) / elapsed_s),
        "agent_dropped": metrics.get("dropped_total", 0.0),
        "agent_resident_mib": [round(kib / 1024, 1) for kib in (resident_before_kib, resident_after_kib)],
        "rank_cpu_s_per_s": round((sum(ranks_after) - sum(ranks_before)) / 1000 / elapsed_s / RANKS, 5),
    }


def _page_faults(pid: int) -> tuple[int, int]:
    """Minor and major ones: what is paged out between two samples costs CPU time at the next."""
    text = Path(f"/proc/{pid}/stat").read_text()
    fields = text[text.rfind(")") + 2 :].split()
    return int(fields[7]), int(fields[9])


def _resident_kib(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))


def _scrape(port: int) -> dict[str, float]:
    """The agent's own metrics; of several labels the sum."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
        text = answer.read().decode()
    found: dict[str, float] = {}
    for line in text.splitlines():
        if line.startswith(PREFIX):
            name, _, value = line.rpartition(" ")
            name = name.partition("{")[0].removeprefix(PREFIX)
            found[name] = found.get(name, 0.0) + float(value)
    return found


def _free_port() -> int:
    with socketlib.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def _wait_for(socket: Path, agent: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + START_S_MAX
    while not socket.exists():
        if agent.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"the agent does not listen at {socket}, exit status {agent.returncode}")
        time.sleep(0.05)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="agent CPU seconds per second for 8 ranks")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--rate", type=float, default=200.0, help="rounds a second per communicator, at most")
    parser.add_argument("--communicators", type=int, default=4, help="of each rank")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--socket", help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.rank is not None:
        write_rank(arguments.socket, arguments.rank, arguments.rate, arguments.communicators)
    print(json.dumps(measure(arguments.seconds, arguments.rate, arguments.communicators)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
