"""`paceline demo` as a user runs it: a right verdict, and nothing left behind however it ends."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from paceline.lab.postgres import LocalPostgres

pytestmark = [pytest.mark.needs_torch, pytest.mark.timeout(300)]
Eventually = Callable[..., Awaitable[object]]
COMMAND = [sys.executable, "-m", "paceline.contracts.cli", "demo", "--port", "0"]
READY_S_MAX = 150.0


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One home for all runs here: later ones are second starts."""
    return tmp_path_factory.mktemp("demo")


def _of(home: Path) -> list[str]:
    """Command lines of the processes that belong to `home`."""
    found = []
    marks = [os.fsencode(home), os.fsencode(LocalPostgres(home / "demo").directory)]
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes()
            text = command + (folder / "environ").read_bytes()
            if any(mark in text for mark in marks):
                found.append(command.replace(b"\0", b" ").decode(errors="replace"))
        except OSError:
            continue
    return found


@pytest.fixture
def demo(home: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """A demo in its warm-up, healthy and in a process group of its own."""
    command = [*COMMAND, "--home", str(home), "--fault", "h1", "--warmup", "600"]
    output = home / "output"
    with output.open("wb") as stdout:
        process = subprocess.Popen(command, stdout=stdout, start_new_session=True)
    try:
        deadline = time.monotonic() + READY_S_MAX
        while "\nconsole " not in output.read_text():
            assert process.poll() is None, f"the demo ended with {process.returncode}"
            assert time.monotonic() < deadline, f"not up within {READY_S_MAX:g} s: {output.read_text()!r}"
            time.sleep(0.1)
        yield process
    finally:
        process.kill()
        process.wait()


async def test_ctrl_c_stops_everything(
    demo: "subprocess.Popen[bytes]", home: Path, eventually: Eventually
) -> None:
    running = " ".join(_of(home))
    assert all(part in running for part in ("kafka.Kafka", "bin/postgres", "demo.launch", "demo.agent"))

    os.killpg(demo.pid, signal.SIGINT)  # as a terminal does it

    await eventually(lambda: demo.poll() is not None, deadline_s=60)
    assert demo.returncode == 0
    assert _of(home) == []


async def test_nothing_outlives_a_killed_demo(
    demo: "subprocess.Popen[bytes]", home: Path, eventually: Eventually
) -> None:
    assert len(_of(home)) > 10

    demo.kill()
    demo.wait()

    await eventually(lambda: not _of(home), deadline_s=30)


def test_verdict_names_class_and_rank_and_the_webhook_arrives(home: Path) -> None:
    """After a kill: the third start on the same home."""
    command = [*COMMAND, "--home", str(home), "--fault", "h3", "--warmup", "15", "--once", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)

    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    rank = result["fault"]["rank"]
    assert result["right"] is True
    assert (result["verdict"]["class"], result["verdict"]["ranks"]) == ("H3", [rank])
    assert 0 < result["stall_to_verdict_s"] <= 15
    assert result["webhook"]["signed"] is True
    line = next(line for line in done.stderr.splitlines() if line.startswith("H3"))
    assert f"rank {rank} " in line
    assert line.endswith(f"-> INC-1 {result['incident']['url']}")
    assert _of(home) == []


def test_rank_out_of_range_is_a_clear_error(home: Path) -> None:
    command = [*COMMAND, "--home", str(home), "--rank", "8"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    assert done.returncode == 1
    assert "--rank 8: expected 0 to 7" in done.stderr
