"""The answer about slow rows, its reasons and its words."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
import numpy.typing as npt

from paceline.analysis.diagnosis.slow_actions import AgentWrites
from paceline.analysis.diagnosis.slow_ends import SlowEnds
from paceline.analysis.diagnosis.slow_shifts import noise_of
from paceline.analysis.diagnosis.slow_table import Place, Steps
from paceline.analysis.facts import Origin
from paceline.contracts.verdicts import VerdictClass

OF_COLLECTIVE = 0.5  # instead of the shares of a step where only operations are measured
Table = npt.NDArray[np.float64]


class SlowReason(str, Enum):
    """Why rows are slow; the value is the word that answers and tests use."""

    HEALTHY = "healthy"
    LATE = "late"  # works longest and waits least, lasting
    LATE_ALWAYS = "late_always"  # from the first row on: slower than the others, its own past is not known
    LATE_NOW_AND_THEN = "late_now_and_then"  # the same place again and again, not always
    ROTATING = "rotating"  # another place each time
    COLLECTIONS = "collections"  # rotating or not: garbage collection of the late rank
    TAIL = "tail"  # work queued behind the collective
    INPUT_BOUND = "input_bound"  # all places stall together, with a period or by their data time
    STALL = "stall"  # all stall together, without a period
    SLOWER_TOGETHER = "slower_together"  # own work of all grew and stayed: clocks, versions, configuration
    TRANSFERS = "transfers"  # collectives grew on all, nobody is late
    BURSTS = "bursts"  # as TRANSFERS, now and then
    LATE_AND_TRANSFERS = "late_and_transfers"
    AGENT_WRITES = "agent_writes"


@dataclass(frozen=True)
class SlowRows:
    """The answer. `ranks` and `hosts` are to blame (empty: all alike, or none); `others` only wait."""

    reason: SlowReason
    verdict_class: VerdictClass
    statement: str
    ranks: tuple[int, ...] = ()
    hosts: tuple[str, ...] = ()  # where rows name no ranks
    others: tuple[int, ...] = ()
    ratio: float = 1.0  # slow step against the usual one
    share: float = 0.0  # P
    since: int | None = None  # first slow step
    period: int = 0  # steps between occurrences, 0 irregular
    slow_steps: int = 0
    steps: int = 0
    lost_s: float = 0.0  # per step, or per slow step where these are single
    what: str = ""  # where others wait
    ends: SlowEnds | None = None  # links or ends whose rates fell
    agent: AgentWrites | None = None
    confidence: float = 0.7
    origins: tuple[Origin, ...] = ()

    @property
    def is_slow(self) -> bool:
        return self.reason is not SlowReason.HEALTHY


def limits_of(table: Steps, column: Table, share: float) -> tuple[float, float]:
    """Noise of a series, and the least rise that counts."""
    least = share * table.reference if table.measured else OF_COLLECTIVE * table.reference
    return noise_of(column, table.reference), least


def answer_of(
    table: Steps, reason: SlowReason, klass: VerdictClass, statement: str, places: Sequence[Place] = (),
    confidence: float = 0.7,
) -> SlowRows:  # fmt: skip
    ranks = tuple(place for place in places if isinstance(place, int))
    return SlowRows(
        reason=reason,
        verdict_class=klass,
        statement=statement,
        ranks=ranks,
        hosts=tuple(place for place in places if isinstance(place, str)),
        others=tuple(rank for rank in table.ranks if rank not in ranks) if places else (),
        steps=len(table.steps),
        what=table.what,
        confidence=confidence if table.measured else confidence - 0.1,
        origins=table.origins,
    )


def ratio_of(table: Steps, slow: npt.NDArray[np.bool_]) -> float:
    """Median slow step against the median of the others."""
    if not slow.any() or slow.all():
        return 1.0
    usual = float(np.median(table.whole[~slow]))
    return float(np.median(table.whole[slow])) / usual if usual > 0 else 1.0


def named(places: Sequence[Place]) -> str:
    shown = ", ".join(f"rank {place}" if isinstance(place, int) else str(place) for place in places[:8])
    return shown + (f" and {len(places) - 8} more" if len(places) > 8 else "")


def works(places: Sequence[Place]) -> str:
    return "works" if len(places) == 1 else "work"


def waits(places: Sequence[Place]) -> str:
    return "waits" if len(places) == 1 else "wait"
