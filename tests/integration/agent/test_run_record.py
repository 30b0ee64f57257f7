"""`paceline run --record` around real commands: they are as without it, and a hang can be read."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from paceline.analysis.diagnosis import diagnose
from paceline.contracts.recording import RecordKind, scan_records
from paceline.contracts.verdicts import VerdictClass

Eventually = Callable[..., Awaitable[object]]

pytestmark = pytest.mark.timeout(240)

RANK = """
import os, signal, torch, torch.distributed as dist

dist.init_process_group("gloo")
tensor = torch.ones(4)
for _ in range(3):
    dist.all_reduce(tensor)
if dist.get_rank() == 1:
    os.kill(os.getpid(), signal.SIGSTOP)
dist.all_reduce(tensor)
"""


def paceline(folder: Path, *command: str) -> list[str]:
    words = [sys.executable, "-m", "paceline.contracts.cli", "run", "--record", str(folder), "--", *command]
    return words


def recorders(folder: Path) -> list[int]:
    """Processes of agents that record into `folder`."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            words = (place / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"--follow" in words and os.fsencode(folder) in words:
            found.append(int(place.name))
    return found


def family(pid: int) -> list[int]:
    """`pid` and everything it started."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [pid, *(each for child in children for each in family(int(child)))]


def is_named(folder: Path, rank: int) -> bool:
    """Whether the recording says that `rank` never entered."""
    if not list(folder.glob("*.plrec")):
        return False
    found = diagnose([str(folder)])[-1]
    return found.verdict_class is VerdictClass.H1 and [root.rank for root in found.roots] == [rank]


def not_ours(errors: str) -> str:
    """Without what is said before the command starts: what is on for its NCCL."""
    return "".join(line for line in errors.splitlines(True) if not line.startswith("paceline run: "))


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "recorded"
    yield place
    for pid in recorders(place):
        os.kill(pid, signal.SIGKILL)


def test_the_command_is_as_without_it(folder: Path) -> None:
    script = "trap 'echo told; exit 7' USR1; echo err >&2; echo $$ $PPID; while :; do sleep 0.1; done"
    with subprocess.Popen(
        paceline(folder, "sh", "-c", script), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline().split() == [str(child.pid), str(os.getpid())]
        children = Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text().split()
        assert not set(map(int, children)) & set(recorders(folder))
        child.send_signal(signal.SIGUSR1)
        out, err = child.communicate(timeout=60)
    assert child.returncode == 7
    assert out == "told\n"
    assert not_ours(err).startswith("err\n")
    assert f"what happened: paceline diagnose {folder}" in err
    assert recorders(folder) == []
    (path,) = folder.glob("*.plrec")
    kinds = [record.kind for record in scan_records(path.read_bytes())]
    assert (kinds[0], kinds[-1]) == (RecordKind.HEAD, RecordKind.END)


def test_a_signal_ends_it_as_a_signal_and_success_says_nothing_more(folder: Path) -> None:
    killed = subprocess.run(paceline(folder, "sh", "-c", "kill -TERM $$"), capture_output=True, timeout=60)
    assert killed.returncode == -signal.SIGTERM
    done = subprocess.run(paceline(folder, "echo", "done"), capture_output=True, timeout=60, text=True)
    assert (done.returncode, done.stdout, not_ours(done.stderr)) == (0, "done\n", "")


def test_a_folder_that_cannot_be_costs_the_recording_only(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    ran = subprocess.run(
        paceline(tmp_path / "file" / "x", "echo", "done"), capture_output=True, timeout=60, text=True
    )
    assert (ran.returncode, ran.stdout) == (0, "done\n")
    assert ran.stderr.count("nothing is recorded: cannot record into") == 1


@pytest.mark.needs_torch
async def test_a_hang_survives_the_death_of_everything(
    folder: Path, tmp_path: Path, eventually: Eventually
) -> None:
    script = tmp_path / "train.py"
    script.write_text(RANK)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    child = await asyncio.create_subprocess_exec(
        *paceline(folder, *torchrun, str(script)), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )

    async def names_the_rank() -> bool:
        await asyncio.sleep(1)  # a reading takes as long as a sample
        return is_named(folder, 1)

    try:
        await eventually(names_the_rank, 180)
    finally:
        for pid in [*recorders(folder), *family(child.pid)]:
            os.kill(pid, signal.SIGKILL)
        await child.wait()
    assert await names_the_rank()
