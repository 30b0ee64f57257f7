"""Operations that are slow while an agent acts on the devices: self-inflicted slowness."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from paceline.analysis.diagnosis.slow_table import RankOf
from paceline.analysis.facts import Clock, Origin, SampleRow

SLOW_TIMES = 2.0  # the median of the operation
NEAR_S = 0.02  # between an action and the begin of an operation, plus how long operations usually take
SHARE_NEAR = 0.8  # of the slow operations are near an action
LIFT_MIN = 3.0  # slow near an action as often as elsewhere
_WRITE = re.compile(r"set|lock|reset|limit|write|apply|config|enable|disable|-lgc|-pl|-ac", re.IGNORECASE)


@dataclass(frozen=True)
class AgentWrites:
    """`action` as the log names it, how often, and which ranks' operations became slow."""

    action: str
    actions: int
    is_write: bool  # it changes a setting; else it only reads
    interval_s: float
    ranks: tuple[int, ...]
    slow: int
    operations: int
    ratio: float
    lost_s: float
    what: str
    statement: str
    origins: tuple[Origin, ...]


def agent_writes(rows: Sequence[SampleRow], rank_of: RankOf) -> AgentWrites | None:
    """Where slow operations fall on actions, and operations elsewhere are not slow; else None."""
    acts = [row for row in rows if row.kind == "actions" and row.time_s is not None]
    timed = [
        row
        for row in rows
        if row.kind in ("operations", "steps") and row.time_s is not None and _took(row) > 0
    ]
    for clock in {row.clock for row in acts} - {Clock.NONE}:
        found = _judge(
            [row for row in acts if row.clock is clock], [row for row in timed if row.clock is clock], rank_of
        )
        if found is not None:
            return found
    return None


def _judge(acts: Sequence[SampleRow], timed: Sequence[SampleRow], rank_of: RankOf) -> AgentWrites | None:
    if len(acts) < 2 or len(timed) < 6:
        return None
    took = np.array([_took(row) for row in timed])
    kinds = [(row.kind, row.words.get("op", ""), row.numbers.get("size", 0.0)) for row in timed]
    usual = {kind: float(np.median(took[[one == kind for one in kinds]])) for kind in set(kinds)}
    base = np.array([usual[kind] for kind in kinds])
    slow = took >= SLOW_TIMES * base
    starts = np.array([row.time_s or 0.0 for row in timed])
    moments = np.sort(np.array([row.time_s or 0.0 for row in acts]))
    reach = NEAR_S + base
    after = np.searchsorted(moments, starts - reach)
    near = (after < len(moments)) & (moments[np.minimum(after, len(moments) - 1)] <= starts + reach + took)
    if slow.sum() < 2 or near.all() or not near.any() or slow[near].sum() < SHARE_NEAR * slow.sum():
        return None
    elsewhere = float(slow[~near].mean())
    if slow[near].mean() < LIFT_MIN * max(elsewhere, 1.0 / len(timed)):
        return None
    name, _ = Counter(row.words.get("action", "") for row in acts).most_common(1)[0]
    interval = float(np.median(np.diff(moments)))
    ranks = {
        rank
        for row, is_slow in zip(timed, slow.tolist(), strict=True)
        if is_slow and (rank := rank_of(row)) is not None
    }
    what = Counter(
        kind[1] for kind, is_slow in zip(kinds, slow.tolist(), strict=True) if is_slow
    ).most_common(1)[0][0]
    lost = float(np.median((took - base)[slow]))
    return AgentWrites(
        action=name,
        actions=len(acts),
        is_write=bool(_WRITE.search(name)),
        interval_s=interval,
        ranks=tuple(sorted(ranks)),
        slow=int(slow.sum()),
        operations=len(timed),
        ratio=float(np.median((took / base)[slow])),
        lost_s=lost,
        what=what or "collective",
        statement=f"{int(slow.sum())} of {len(timed)} operations take {lost:.3g} s longer, "
        f"{int(slow[near].sum())} of them while an agent calls {name} (every {interval:.3g} s); "
        f"elsewhere {elsewhere:.0%} are slow",
        origins=tuple(row.origin for row in [*acts[:16], *timed[:16]]),
    )


def _took(row: SampleRow) -> float:
    numbers = row.numbers
    return numbers.get("collective_s", numbers.get("duration_s", numbers.get("step_s", 0.0)))
