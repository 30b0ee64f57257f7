"""Flight Recorder dumps of one hung job: this analysis against torch's fr_trace on the same files.

    python tests/bench/flight_dumps.py [--ranks 64 128 1024] [--entries 2000] [--folder DIR] [--no-peer]

Each set is a job with data, tensor and world groups whose one rank did not enter its last call. Both tools
are run as programs, start included; fr_trace also is shown without the time to import torch. A set is
removed after its run. All files of a set share one template: entries are made and pickled once.
"""

import argparse
import os
import pickle
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FR_TRACE = "torch.distributed.flight_recorder.fr_trace"
PREFIX = "rank_"
TENSOR = 8
PEER_LIMIT_S = 900
PEER_RANKS_MAX = 128  # beyond it fr_trace takes hours
_START_NS = 1_790_000_000_000_000_000
_NUMBERS = ("record_id", "collective_seq_id", "op_id")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[64, 128, 1024])
    parser.add_argument("--entries", type=int, default=2000)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--no-peer", action="store_true")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--ours", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.ours is not None:
        judge_folder(given.ours, given.workers)
        return
    for ranks in given.ranks:
        folder = Path(tempfile.mkdtemp(prefix="paceline-flight-", dir=given.folder))
        try:
            measure(
                folder, ranks, given.entries, given.workers, not given.no_peer and ranks <= PEER_RANKS_MAX
            )
        finally:
            shutil.rmtree(folder)


def measure(folder: Path, ranks: int, entries: int, workers: int, with_peer: bool) -> None:
    """One set: made, judged by both, printed."""
    odd = ranks // 3
    began = time.perf_counter()
    size = write_set(folder, ranks, entries, odd)
    print(f"{ranks} ranks x {entries} entries: {size / 1e6:.0f} MB on disk, made in "
          f"{time.perf_counter() - began:.1f} s, rank {odd} did not enter its last call")  # fmt: skip
    command = [sys.executable, __file__, "--ours", str(folder), "--workers", str(workers)]
    ours = run(command, PEER_LIMIT_S)
    print(
        f"  paceline  {ours.seconds:8.2f} s, CPU {ours.cpu_s:.2f} s, peak {ours.peak_mib:.0f} MiB (all "
        f"processes)  {ours.last}"
    )
    if not with_peer:
        return
    started = run([sys.executable, "-c", f"import {FR_TRACE}"], PEER_LIMIT_S)
    peer = run([sys.executable, "-m", FR_TRACE, str(folder), "-p", PREFIX], PEER_LIMIT_S)
    own = run([sys.executable, "-c", "import paceline.analysis.judge"], PEER_LIMIT_S)
    ours_net, peer_net = ours.cpu_s - own.cpu_s, peer.cpu_s - started.cpu_s
    named = re.findall(r"missing[ _]ranks[^{]*\{([0-9, ]+)\}|[Cc]ulprit rank (\d+)", peer.output)
    print(f"  fr_trace  {peer.seconds:8.2f} s, CPU {peer.cpu_s:.2f} s, peak {peer.peak_mib:.0f} MiB; "
          f"names {sorted({text for pair in named for text in pair if text})[:6]}")  # fmt: skip
    print(f"  fr_trace / paceline: {peer.seconds / ours.seconds:.1f} times by the clock, "
          f"{peer.cpu_s / ours.cpu_s:.1f} by CPU, "
          f"{peer_net / max(ours_net, 1e-3):.1f} by CPU without imports ({peer_net:.2f} s "
          f"and {ours_net:.2f} s)")  # fmt: skip


def judge_folder(folder: Path, workers: int) -> None:
    """What `paceline diagnose` does with a folder of dumps."""
    from paceline.analysis.adapters.flight_files import read_files
    from paceline.analysis.diagnosis.flight import read_flight
    from paceline.analysis.diagnosis.flight_verdict import judge_flight
    from paceline.analysis.facts import FlightDump

    began = time.perf_counter()
    paths = sorted(folder.iterdir())
    report = read_flight(found for found in read_files(paths, workers) if isinstance(found, FlightDump))
    read = time.perf_counter()
    verdict = judge_flight(report).verdict
    done = time.perf_counter()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{verdict.verdict_class.value} rank {[root.rank for root in verdict.roots]}: read "
          f"{read - began:.2f} s, judged {done - read:.2f} s, own peak {peak:.0f} MiB")  # fmt: skip


@dataclass(frozen=True)
class Run:
    """One program, with all its processes."""

    seconds: float
    cpu_s: float  # all processes; on a busy machine the fairer figure
    peak_mib: float
    output: str

    @property
    def last(self) -> str:
        lines = self.output.strip().splitlines()
        return lines[-1][:200] if lines else "no output"


def run(command: list[str], limit_s: int) -> Run:
    """Runs `command` and watches the memory of it and its children."""
    began, before = time.perf_counter(), _children_s()
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        peak, stop = [0.0], threading.Event()
        watcher = threading.Thread(target=_watch, args=(process.pid, peak, stop))
        watcher.start()
        try:
            process.wait(limit_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        seconds = time.perf_counter() - began
        stop.set()
        watcher.join()
        output.seek(0)
        return Run(seconds, _children_s() - before, peak[0], output.read().decode("utf-8", "replace"))


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _watch(pid: int, peak: list[float], stop: threading.Event) -> None:
    page = os.sysconf("SC_PAGE_SIZE")
    while not stop.wait(0.05):
        total = 0
        for each in _family(pid):
            try:
                total += int(Path(f"/proc/{each}/statm").read_text().split()[1]) * page
            except (OSError, IndexError):
                continue
        peak[0] = max(peak[0], total / (1 << 20))


def _family(pid: int) -> list[int]:
    found = [pid]
    for each in found:
        try:
            for task in Path(f"/proc/{each}/task").iterdir():
                found += [int(child) for child in (task / "children").read_text().split()]
        except OSError:
            continue
    return found


def write_set(folder: Path, ranks: int, entries: int, odd: int) -> int:
    """One pickle for each rank; bytes on disk. Names and member lists have one length, so that the
    template's are replaced in place."""
    usual, short = (pickle.dumps(_template(ranks, entries - less), 2) for less in (0, 1))
    tensor_text, data_text = _ranks(_group(0, ranks, True), ranks), _ranks(_group(0, ranks, False), ranks)
    size = 0
    for rank in range(ranks):
        content = short if rank == odd else usual
        for text, members in (
            (tensor_text, _group(rank, ranks, True)),
            (data_text, _group(rank, ranks, False)),
        ):
            content = content.replace(text.encode(), _ranks(members, ranks).encode())
        content = content.replace(b"tp_000000", f"tp_{rank // TENSOR:06}".encode())
        content = content.replace(b"dp_000000", f"dp_{rank % TENSOR:06}".encode())
        (folder / f"{PREFIX}{rank}").write_bytes(content)
        size += len(content)
    return size


def _group(rank: int, ranks: int, tensor: bool) -> range:
    if tensor:
        first = rank // TENSOR * TENSOR
        return range(first, min(first + TENSOR, ranks))
    return range(rank % TENSOR, ranks, TENSOR)


def _ranks(members: range, ranks: int) -> str:
    """The list with blanks, as long as that of the first group could be."""
    width = len(members) * (len(str(ranks)) + 2)
    return "[" + ", ".join(map(str, members)).ljust(width) + "]"


def _template(ranks: int, entries: int) -> dict[str, Any]:
    groups = {"tp_000000": _group(0, ranks, True), "dp_000000": _group(0, ranks, False), "0": range(ranks)}
    names = {name: (name, "default_pg" if name == "0" else f"{name[:2].upper()}_GROUP") for name in groups}
    counts = dict.fromkeys(groups, 0)
    made = []
    for number in range(entries):
        name = "0" if number % 20 == 19 else "dp_000000" if number % 10 == 9 else "tp_000000"
        counts[name] += 1
        made.append(_entry(number, counts[name], list(groups).index(name), names[name]))
    for entry in made[-3:] if entries % 2 == 0 else []:
        entry |= {"state": "scheduled", "retired": False, "time_discovered_completed_ns": None}
    return {
        "version": "2.10",
        "pg_config": {
            name: {"name": name, "desc": names[name][1], "ranks": _ranks(members, ranks)}
            for name, members in groups.items()
        },
        "comm_lib_version": "2.27.5",
        "pg_status": {},
        "entries": made,
    }


def _entry(number: int, sequence: int, group: int, name: tuple[str, str]) -> dict[str, Any]:
    function, taken, given = "nccl:all_reduce", [4096, 1, 5120], [4096, 1, 5120]
    if group == 0:  # numbers of elements as fr_trace expects them of a group of TENSOR ranks
        function = ("nccl:_all_gather_base", "nccl:_reduce_scatter_base")[number % 2]
        big = [4096 * TENSOR, 1, 5120]
        taken, given = (taken, big) if number % 2 == 0 else (big, given)
    created = _START_NS + number * 3_000_000
    return {
        "record_id": number, "pg_id": group, "process_group": name, "thread_name": "python",
        "thread_id": "140100120005504", "collective_seq_id": sequence, "p2p_seq_id": 0, "op_id": sequence,
        "profiling_name": function, "time_created_ns": created, "input_sizes": [taken],
        "input_dtypes": ["BFloat16"], "output_sizes": [given], "output_dtypes": ["BFloat16"],
        "state": "completed", "time_discovered_started_ns": None,
        "time_discovered_completed_ns": created + 2_000_000, "retired": True, "timeout_ms": 600_000,
        "is_p2p": False, "frames": [],
    }  # fmt: skip


if __name__ == "__main__":
    main()
