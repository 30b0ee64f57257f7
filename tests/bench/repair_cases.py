"""What happens to a job in one run of `repair_platform`, and what has to follow from it. Pure.

A kill and a stop are losses. An error that may pass brings a new generation with the same members; one that
cannot pass (a process that is killed, or that ends by an error of its script) brings a replacement; of
three errors that may pass within ten minutes the third one does, too.
"""

import itertools
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.trainer.testing import Fault, draw_fault
from paceline.trainer.testing.faults import STEP_PHASES

STEPS = 14  # as in `recovery`: the fault comes in the middle of them
FLAPS = 3  # errors that may pass, of which the last is taken for a permanent one
FLAP_STEPS = 10  # from one to the next: more than a recovery replays, so that each one counts
KINDS: Mapping[str, tuple[str, ...]] = {
    "sigkill": ("sigkill",),
    "sigstop": ("sigstop",),
    "transient": ("transient",),
    "permanent": ("sigkill", "exception"),
    "flapping": ("transient",),
}
Seats = Mapping[int, tuple[str, int]]  # rank -> member, pid


@dataclass(frozen=True)
class Case:
    """`faults` come in turn, each in the generation that the one before has led to."""

    kind: str
    faults: tuple[Fault, ...]

    @property
    def text(self) -> str:
        first = self.faults[0]
        return f"{self.kind} {first.kind} rank {first.rank} " + ", ".join(
            f"{fault.phase} step {fault.step}" for fault in self.faults
        )

    @property
    def replaced(self) -> list[list[int]]:
        """Ranks that change hands with each generation, if all goes as it should."""
        rank = self.faults[0].rank
        if self.kind == "transient":
            return [[]]
        return [[]] * (FLAPS - 1) + [[rank]] if self.kind == "flapping" else [[rank]]


def draw_case(kind: str, seed: int, ranks: int) -> Case:
    """The case of a seed: random rank, phases and step, none of them in the first two steps."""
    fault = draw_fault(seed, ranks, STEPS, kinds=KINDS[kind])
    if kind != "flapping":
        return Case(kind, (fault,))
    draw = random.Random(seed)
    faults = []
    for number in range(FLAPS):
        step = 3 + FLAP_STEPS * number + draw.randrange(3)
        faults.append(Fault("transient", fault.rank, step, draw.choice(STEP_PHASES), generation=number))
    return Case(kind, tuple(faults))


def seats_of(rows: Sequence[Mapping[str, Any]]) -> dict[int, tuple[str, int]]:
    """Of the JSON of a recovery."""
    return {int(row["rank"]): (str(row["member"]), int(row["child_pid"])) for row in rows}


def changed_hands(generations: Sequence[Seats]) -> list[list[int]]:
    """Ranks whose member or process is another one than in the generation before; the first is the start."""
    return [
        sorted(rank for rank in {*before, *after} if before.get(rank) != after.get(rank))
        for before, after in itertools.pairwise(generations)
    ]
