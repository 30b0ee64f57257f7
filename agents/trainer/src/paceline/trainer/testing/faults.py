"""Which fault happens where and when; plain data that travels in an environment variable."""

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from paceline.trainer.repair.points import Point

FAULTS_VARIABLE = "PACELINE_TEST_FAULTS"
KINDS = (
    "exception",  # a RuntimeError in the script
    "sigkill",
    "sigterm",
    "sigstop",
    "held_gil",  # nothing of Python runs for `seconds`
    "slow_rank",  # each step from `step` on takes `seconds` longer
    "transient",  # the connections of this rank fail, all processes live
    "store_loss",  # this rank's control store is gone
    "corrupt_replica",  # what this rank holds of its neighbour is damaged
)
PHASES = tuple(point.value for point in Point)
STEP_PHASES = tuple(phase for phase in PHASES if phase != Point.REBUILD.value)


@dataclass(frozen=True)
class Fault:
    """`kind` happens once on `rank`, when it reaches `phase` of `step` in `generation`.

    Generation 0 is the one the job starts with, so a standby that takes the rank over and runs the step
    again is spared; -1 is any. The phase `rebuild` belongs to generation 1 at the earliest, and `step`
    is not looked at.
    """

    kind: str
    rank: int
    step: int
    phase: str = "forward"
    generation: int = 0
    seconds: float = 0.0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"kind is {self.kind!r}, expected one of {', '.join(KINDS)}")
        if self.phase not in PHASES:
            raise ValueError(f"phase is {self.phase!r}, expected one of {', '.join(PHASES)}")


def draw_fault(
    seed: int,
    ranks: int,
    steps: int,
    kinds: Sequence[str] = ("sigkill",),
    phases: Sequence[str] = STEP_PHASES,
) -> Fault:
    """The fault of a seed: a random rank and phase, in neither the first two steps nor the last."""
    draw = random.Random(seed)
    step = draw.randrange(min(2, steps - 1), max(3, steps - 1))
    return Fault(draw.choice(list(kinds)), draw.randrange(ranks), step, draw.choice(list(phases)))


def faults_text(faults: Sequence[Fault]) -> str:
    return json.dumps([asdict(fault) for fault in faults])


def read_faults(environment: Mapping[str, str]) -> tuple[Fault, ...]:
    """Faults of `PACELINE_TEST_FAULTS`; ValueError where they cannot be read."""
    text = environment.get(FAULTS_VARIABLE, "")
    if not text:
        return ()
    try:
        return tuple(Fault(**entry) for entry in json.loads(text))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{FAULTS_VARIABLE}: {error}") from error


def is_stopped(pid: int) -> bool:
    """Whether a process stands still, as after SIGSTOP."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] in ("T", "t")
    except (OSError, IndexError):
        return False
