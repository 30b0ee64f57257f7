"""What measured rows say about slowness: S1, S2, S3 or nothing. Pure; every answer has a named reason.

`judge_rows(facts)` reads `SampleRow`s of steps and operations (and collections, actions, rates, phases beside
them). Attribution is by occurrence and never by averages over a run, against the other ranks of the same
step, so that what all share (sequence lengths, stalls) does not look like a straggler. Thresholds:

- a lasting shift counts from 2 % of a step on (of a collective alone: half of it) where it is six standard
  errors of the noise and at least 3 steps long; a constant difference from the first row on counts from 5 %;
- a single slow step counts from 5 % of a step and six deviations of the noise on; together they must cost 5 %
  of the time, or 1 % and stand apart from what the latest place of any other step loses, or be collections;
- P = lateness / (lateness + growth of the transfer): S1 from alpha = 0.8 on, S2 up to beta = 0.2, else S3
  (papers.md 1.4). The transfer is the time in the collective of whoever comes last.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from paceline.analysis.diagnosis.slow_actions import AgentWrites, agent_writes
from paceline.analysis.diagnosis.slow_answer import (
    OF_COLLECTIVE,
    SlowReason,
    SlowRows,
    answer_of,
    limits_of,
    named,
    ratio_of,
    waits,
    works,
)
from paceline.analysis.diagnosis.slow_ends import slow_ends
from paceline.analysis.diagnosis.slow_shifts import Shift, find_episode, find_shift, low_median
from paceline.analysis.diagnosis.slow_single import ALIKE, SINGLE_NOISE, in_turn, now_and_then
from paceline.analysis.diagnosis.slow_table import RankOf, Steps, read_operations, read_steps
from paceline.analysis.facts import Fact, SampleRow
from paceline.analysis.policy import JudgePolicy
from paceline.contracts.verdicts import VerdictClass

LASTING_MIN = 0.02  # of a step
CONSTANT_MIN = 0.05
GROWTH_MIN = 0.15  # of the transfer itself
Table = npt.NDArray[np.float64]


def rank_said(row: SampleRow) -> int | None:
    return row.speaker.rank


def judge_rows(
    facts: Iterable[Fact], rank_of: RankOf = rank_said, policy: JudgePolicy | None = None
) -> SlowRows | None:
    """What the rows say; None where no steps or operations of at least two places are there to judge."""
    policy = policy or JudgePolicy()
    seen = list(facts)
    rows = [fact for fact in seen if isinstance(fact, SampleRow)]
    tables = [*read_steps(rows, rank_of), *read_operations(rows, rank_of)]
    writes = agent_writes(rows, rank_of)
    if writes is not None:
        return _by_agent(writes)
    answers = [judge_steps(table, seen, rows, rank_of, policy) for table in tables if len(table.steps) >= 3]
    slow = [answer for answer in answers if answer.is_slow]
    if slow:
        return max(slow, key=lambda answer: answer.lost_s * max(answer.slow_steps, 1))
    return answers[0] if answers else None


def judge_steps(
    table: Steps, facts: Sequence[Fact], rows: Sequence[SampleRow], rank_of: RankOf, policy: JudgePolicy
) -> SlowRows:
    """The answer of one table: lasting changes first, then constant differences, then single steps."""
    relative = table.own - low_median(table.own)[:, None]
    late = _lasting(table, relative)
    growth = _growth(table)
    if late or growth:
        return _changed(table, late, growth, rows, rank_of, policy)
    together = find_shift(low_median(table.own), *limits_of(table, low_median(table.own), LASTING_MIN))
    if together and table.measured:
        return _slower_together(table, together)
    return (
        in_turn(table, relative, rows, rank_of)
        or _always(table, relative)
        or now_and_then(table, relative, facts, rows, rank_of)
        or answer_of(
            table, SlowReason.HEALTHY, VerdictClass.NONE, "no rank, link or input stands out", confidence=0.6
        )
    )


# Lasting changes


def _lasting(table: Steps, relative: Table) -> dict[int, Shift]:
    """Columns whose own time rose against the others and stayed, with the shifts; a minority or nobody."""
    noise, least = limits_of(table, relative, LASTING_MIN)
    found = {}
    for column in range(relative.shape[1]):
        shift = find_shift(relative[:, column], noise, least) or find_episode(
            relative[:, column], noise, least
        )
        if shift is not None:
            found[column] = shift
    worst = max((shift.size for shift in found.values()), default=0.0)
    kept = {column: shift for column, shift in found.items() if shift.size >= ALIKE * worst}
    return kept if len(kept) * 2 <= relative.shape[1] else {}


def _growth(table: Steps) -> Shift | None:
    """How the transfer itself grew and stayed."""
    transfer = table.transfer
    if transfer is None:
        return None
    shift = find_shift(transfer, *limits_of(table, transfer, LASTING_MIN))
    return shift if shift and shift.size >= GROWTH_MIN * max(shift.before, 1e-12) else None


def _changed(
    table: Steps,
    late: dict[int, Shift],
    growth: Shift | None,
    rows: Sequence[SampleRow],
    rank_of: RankOf,
    policy: JudgePolicy,
) -> SlowRows:
    lateness = max((shift.size for shift in late.values()), default=0.0)
    grown = growth.size if growth else 0.0
    share = lateness / max(lateness + grown, 1e-12)
    onset = min(shift.at for shift in [*late.values(), *([growth] if growth else [])])
    slow = np.arange(len(table.steps)) >= onset
    ends = slow_ends(rows, rank_of, {table.steps[at] for at in np.flatnonzero(slow).tolist()})
    places = [table.places[column] for column in sorted(late, key=lambda column: -late[column].size)]
    ratio = ratio_of(table, slow)
    words = f"from step {table.steps[onset]} on, {ratio:.3f} times the time before"
    if share <= policy.beta or not late:
        place = f"; {ends.statement}" if ends else ""
        answer = answer_of(
            table,
            SlowReason.TRANSFERS,
            VerdictClass.S2,
            f"collectives grew on all, nobody is late: {words}{place}",
        )
        return replace(
            answer,
            since=int(table.steps[onset]),
            share=share,
            slow_steps=int(slow.sum()),
            ends=ends,
            ratio=ratio,
            lost_s=grown,
        )
    both = share < policy.alpha or bool(ends and places and set(ends.places) & set(places))
    reason = SlowReason.LATE_AND_TRANSFERS if both else SlowReason.LATE
    if not both and table.what != "collective of the step" and table.measured:
        reason = SlowReason.TAIL
    answer = answer_of(
        table,
        reason,
        VerdictClass.S3 if both else VerdictClass.S1,
        f"{named(places)} {works(places)} longest and {waits(places)} least {words}"
        + ("; transfers grew as well" if both else ""),
        places,
        confidence=0.9,
    )
    return replace(
        answer,
        since=int(table.steps[onset]),
        share=share,
        slow_steps=int(slow.sum()),
        ends=ends,
        ratio=ratio,
        lost_s=lateness + grown,
    )


def _slower_together(table: Steps, shift: Shift) -> SlowRows:
    """Own work of all rose: input where their data time did, else something they share."""
    data = None if table.data is None else find_shift(low_median(table.data), 0.0 + 1e-9, ALIKE * shift.size)
    slow = np.arange(len(table.steps)) >= shift.at
    ratio = ratio_of(table, slow)
    answer = answer_of(
        table,
        SlowReason.INPUT_BOUND if data else SlowReason.SLOWER_TOGETHER,
        VerdictClass.S1,
        f"own work of all grew together from step {table.steps[shift.at]} on, "
        f"{ratio:.3f} times the time before" + (": they wait for input" if data else ", nobody is late"),
    )
    return replace(
        answer, since=int(table.steps[shift.at]), slow_steps=int(slow.sum()), ratio=ratio, lost_s=shift.size
    )


# Constant differences


def _always(table: Steps, relative: Table) -> SlowRows | None:
    """Places slower than the others from the first row to the last."""
    level = np.nanpercentile(relative, 20, axis=0)  # usual even where single steps are slow
    usual = float(low_median(level[None, :])[0])
    spread = float(np.median(np.abs(level - usual))) * 1.4826
    least = CONSTANT_MIN * table.reference if table.measured else OF_COLLECTIVE * table.reference
    over = level - usual
    alone = len(level) <= 3 or spread * SINGLE_NOISE <= over.max()
    if over.max() < least:
        return None
    late = np.flatnonzero(over >= max(least, ALIKE * float(over.max())))
    if len(late) * 2 > len(level) or (not alone and not _two_levels(level)):
        return None
    tail = table.what != "collective of the step" and table.measured
    places = [table.places[at] for at in late[np.argsort(-over[late])].tolist()]
    if table.wait is not None and table.measured and not _waits_least(table.wait, late):
        return None
    answer = answer_of(
        table,
        SlowReason.TAIL if tail else SlowReason.LATE_ALWAYS,
        VerdictClass.S1,
        f"{named(places)} {works(places)} {float(over.max()):.3g} s longer than the others "
        f"in every step ({table.what})",
        places,
        confidence=0.8 if tail else 0.6,
    )
    rest = table.reference - float(over.max())
    ratio = table.reference / rest if rest > 0 else 1.0
    return replace(answer, ratio=ratio, share=1.0, slow_steps=len(table.steps), lost_s=float(over.max()))


def _two_levels(level: Table) -> bool:
    """Half of the places alike and fast, half alike and slow: spread is no noise then."""
    ordered = np.sort(level)
    gaps = np.diff(ordered)
    return len(gaps) > 0 and float(gaps.max()) >= ALIKE * float(ordered[-1] - ordered[0])


def _waits_least(wait: Table, late: npt.NDArray[np.int64]) -> bool:
    """The ones that work longest wait less than the others; else the others do not wait for them."""
    level = np.nanmedian(wait, axis=0)
    rest = np.delete(level, late)
    return bool(len(rest) and level[late].max() <= np.median(rest))


def _by_agent(writes: AgentWrites) -> SlowRows:
    return SlowRows(
        reason=SlowReason.AGENT_WRITES,
        verdict_class=VerdictClass.S2,
        statement=writes.statement,
        ranks=(),
        ratio=writes.ratio,
        slow_steps=writes.slow,
        steps=writes.operations,
        lost_s=writes.lost_s,
        what=writes.what,
        agent=writes,
        confidence=0.85,
        origins=writes.origins,
    )
