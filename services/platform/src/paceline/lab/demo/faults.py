"""The control page between the demo and its ranks: one 128-byte row of aligned u64 words per rank.

The demo writes `COMMAND`, `DELAY_NS` and `RELEASE`; the rank writes all others. A rank looks at its row
at a few points of each step, which costs a few memory reads, so a healthy step is not changed by it.
"""

import mmap
import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from enum import IntEnum
from pathlib import Path
from typing import Final

WORDS: Final = 16
ROW_BYTES: Final = WORDS * 8
POLL_S: Final = 0.01


class Command(IntEnum):
    NONE = 0
    H1 = 1  # never enter
    H2 = 2  # call another operation
    H3 = 3  # frozen inside the operation, from outside
    S1 = 4  # late by DELAY_NS at every tensor-parallel operation
    HOLD = 5  # enter only after RELEASE, so that the partner waits inside
    PAUSE = 6  # one pause of DELAY_NS without a word, then go on
    CHECKPOINT = 7  # the same, declared as a checkpoint
    EVALUATE = 8  # the same, declared as an evaluation


PAUSES: Final = {Command.PAUSE: "", Command.CHECKPOINT: "checkpoint", Command.EVALUATE: "evaluate"}


class Word(IntEnum):
    COMMAND = 0
    DELAY_NS = 1
    RELEASE = 2
    STEPS = 3  # completed steps
    STEP_NS = 4  # duration of the newest
    LOSS_MICRO = 5
    STALL_NS = 6  # CLOCK_MONOTONIC when the fault began
    INSIDE = 7  # 1 + step while inside the operation, else 0
    HELD = 8  # 1 + step while held
    PID = 9
    FIRST_NS = 10  # CLOCK_MONOTONIC when the first step was complete


class FaultPage:
    """All rows; a file, mapped by the demo and by every rank."""

    def __init__(self, path: Path, ranks: int, *, create: bool = False) -> None:
        size = ranks * ROW_BYTES
        flags = os.O_RDWR | (os.O_CREAT | os.O_TRUNC if create else 0)
        descriptor = os.open(path, flags, 0o600)
        try:
            if create:
                os.ftruncate(descriptor, size)
            self._map = mmap.mmap(descriptor, size)
        finally:
            os.close(descriptor)
        self._words = memoryview(self._map).cast("Q")  # aligned 8-byte stores: no torn word

    def get(self, rank: int, word: Word) -> int:
        return self._words[rank * WORDS + word]

    def set(self, rank: int, word: Word, value: int) -> None:
        self._words[rank * WORDS + word] = value


class RankFaults:
    """What one rank does at its points. `sleep`, `now_ns` and `declare` are injected."""

    def __init__(
        self,
        page: FaultPage,
        rank: int,
        *,
        sleep: Callable[[float], None] = time.sleep,
        now_ns: Callable[[], int] = time.monotonic_ns,
        declare: Callable[[str], AbstractContextManager[None]] = lambda _: nullcontext(),
    ) -> None:
        self._page = page
        self._rank = rank
        self._sleep = sleep
        self._now_ns = now_ns
        self._declare = declare
        self._mark = 0  # 1 + step whose first operation is to be marked
        page.set(rank, Word.PID, os.getpid())

    def before_operation(self, step: int) -> None:
        """In front of the step's first tensor-parallel all_reduce."""
        command = self._page.get(self._rank, Word.COMMAND)
        if command == Command.H1:
            self._begin()
            while self._page.get(self._rank, Word.COMMAND) == Command.H1:
                self._sleep(POLL_S)
        elif command in PAUSES:
            self._begin()
            self._pause(PAUSES[Command(command)])
        elif command == Command.HOLD:
            self._page.set(self._rank, Word.HELD, step + 1)
            while not self._page.get(self._rank, Word.RELEASE):
                self._sleep(POLL_S)
            self._page.set(self._rank, Word.HELD, 0)
        self._mark = step + 1  # always: a command that comes while the rank is inside must find the mark

    def after_operation(self) -> None:
        """Behind it."""
        self._page.set(self._rank, Word.INSIDE, 0)

    def before_each_operation(self) -> None:
        """In front of every tensor-parallel all_reduce: a rank that computes slowly is late at each.

        The first one of a step is marked, for H3: nothing but the operation itself follows.
        """
        if self._mark:
            self._page.set(self._rank, Word.INSIDE, self._mark)
            self._mark = 0
        if self._page.get(self._rank, Word.COMMAND) == Command.S1:
            self._begin()
            self._sleep(self._page.get(self._rank, Word.DELAY_NS) / 1e9)

    def calls_another(self) -> bool:
        """Whether this step's all_reduce over all ranks is to be another operation."""
        if self._page.get(self._rank, Word.COMMAND) != Command.H2:
            return False
        self._begin()
        return True

    def finish_step(self, steps: int, duration_s: float, loss: float) -> None:
        page, rank = self._page, self._rank
        page.set(rank, Word.STEP_NS, int(duration_s * 1e9))
        page.set(rank, Word.LOSS_MICRO, int(max(loss, 0.0) * 1e6))
        if not page.get(rank, Word.FIRST_NS):
            page.set(rank, Word.FIRST_NS, self._now_ns())
        page.set(rank, Word.STEPS, steps)

    def _pause(self, phase: str) -> None:
        with self._declare(phase) if phase else nullcontext():
            self._sleep(self._page.get(self._rank, Word.DELAY_NS) / 1e9)
        self._page.set(self._rank, Word.COMMAND, Command.NONE)

    def _begin(self) -> None:
        if not self._page.get(self._rank, Word.STALL_NS):
            self._page.set(self._rank, Word.STALL_NS, self._now_ns())
