"""Puts one fault into one rank of a running job and says when the stall began."""

import os
import signal
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median

from paceline.lab.demo.faults import Command, FaultPage, Word
from paceline.lab.processes import LabError

STEP_WAIT_S = 30.0
SETTLE_S = 0.05  # asleep without any CPU time for so long behind the mark: it waits in the operation
POLL_S = 0.005
LATE_STEPS = 7  # S1: the slow rank loses seven healthy steps in each step, 175 ms at each operation

OPERATIONS_PER_STEP = 8  # tensor-parallel all_reduces of a rank: 2 blocks, 2 microbatches, both directions

Sleep = Callable[[float], Awaitable[None]]


async def inject(page: FaultPage, fault: str, rank: int, partner: int, ranks: int, sleep: Sleep) -> int:
    """CLOCK_MONOTONIC ns of the beginning of the stall. `partner` shares the rank's tensor group.

    LabError where the rank did not come by in time.
    """
    if fault == "h3":
        return await _freeze_inside(page, rank, partner, sleep)
    if fault == "s1":
        step_ns = median(page.get(other, Word.STEP_NS) for other in range(ranks))
        page.set(rank, Word.DELAY_NS, int(LATE_STEPS * step_ns / OPERATIONS_PER_STEP))
    page.set(rank, Word.COMMAND, Command[fault.upper()])
    await _until(lambda: page.get(rank, Word.STALL_NS) != 0, f"rank {rank} did not take up {fault}", sleep)
    return page.get(rank, Word.STALL_NS)


async def _freeze_inside(page: FaultPage, rank: int, partner: int, sleep: Sleep) -> int:
    """SIGSTOP while the rank waits inside its all_reduce, which its partner is made to enter later."""
    page.set(partner, Word.RELEASE, 0)
    page.set(rank, Word.COMMAND, Command.H3)
    page.set(partner, Word.COMMAND, Command.HOLD)
    await _until(lambda: page.get(partner, Word.HELD) != 0, f"rank {partner} was not held", sleep)
    step = page.get(partner, Word.HELD)
    await _until(lambda: page.get(rank, Word.INSIDE) == step, f"rank {rank} did not enter", sleep)
    pid = page.get(rank, Word.PID)
    deadline = time.monotonic() + STEP_WAIT_S
    while not await _is_blocked(pid, sleep):
        if time.monotonic() > deadline:
            raise LabError(f"rank {rank} does not come to rest inside the operation")
    os.kill(pid, signal.SIGSTOP)
    stall_ns = time.monotonic_ns()
    page.set(partner, Word.COMMAND, Command.NONE)
    page.set(partner, Word.RELEASE, 1)
    return stall_ns


async def _is_blocked(pid: int, sleep: Sleep) -> bool:
    """Whether the main thread sleeps and used no CPU time for SETTLE_S."""
    before = _activity(pid)
    await sleep(SETTLE_S)
    return before[0] == "S" and _activity(pid) == before


def _activity(pid: int) -> tuple[str, int]:
    """State and context switches of the main thread; a switch is seen even where it cost no tick."""
    text = Path(f"/proc/{pid}/task/{pid}/status").read_text()
    fields = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    switches = int(fields["voluntary_ctxt_switches"]) + int(fields["nonvoluntary_ctxt_switches"])
    return fields["State"].split()[0], switches


async def _until(condition: Callable[[], bool], problem: str, sleep: Sleep) -> None:
    deadline = time.monotonic() + STEP_WAIT_S
    while not condition():
        if time.monotonic() > deadline:
            raise LabError(f"{problem} within {STEP_WAIT_S:g} s: does the job still step?")
        await sleep(POLL_S)


def page_of(folder: Path, ranks: int) -> FaultPage:
    """A new control page in `folder`."""
    return FaultPage(folder / "faults", ranks, create=True)
