"""Slowness of single steps: one place late now and then or in turn, stalls of all, bursts of transfers."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from paceline.analysis.diagnosis.slow_answer import (
    OF_COLLECTIVE,
    SlowReason,
    SlowRows,
    answer_of,
    limits_of,
    named,
    ratio_of,
)
from paceline.analysis.diagnosis.slow_ends import slow_ends
from paceline.analysis.diagnosis.slow_shifts import low_median, lower_noise, noise_of, period_of, rises
from paceline.analysis.diagnosis.slow_table import Place, RankOf, Steps
from paceline.analysis.facts import Fact, PhaseKind, PhaseSeen, ProgressSeen, SampleRow
from paceline.contracts.verdicts import VerdictClass

ONCE_MIN = 0.05
TOTAL_MIN = 0.01  # of the time seen is lost to single steps that stand apart from all others ...
STANDS_APART = 2.0  # times what the latest place of other steps loses ...
TOTAL_LARGE = 0.05  # or so much is lost, however it is spread
OF_LOSS = 0.5  # of what a step has lost
ALIKE = 0.5  # of the largest rise: late as well
SINGLE_NOISE = 6.0
SAME_PLACE = 0.6  # of the slow steps: one place, not another each time
BY_COLLECTION = 0.5  # of the slow steps fall on a collection of the late rank
STALL_MIN = 0.25  # of a step, in which all stall together
Table = npt.NDArray[np.float64]


def in_turn(table: Steps, relative: Table, rows: Sequence[SampleRow], rank_of: RankOf) -> SlowRows | None:
    """Nearly every step somebody is late by far, and it is another one each time: contention on hosts."""
    spread = np.fmax.reduce(relative, axis=1)
    late = spread >= 0.2 * table.reference
    if late.mean() < SAME_PLACE or late.sum() < 5:
        return None
    who = Counter(int(np.nanargmax(relative[at])) for at in np.flatnonzero(late).tolist())
    return _single(table, late, who, relative, rows, rank_of) if len(who) >= 2 and _turns(who) else None


def now_and_then(
    table: Steps, relative: Table, facts: Sequence[Fact], rows: Sequence[SampleRow], rank_of: RankOf
) -> SlowRows | None:
    limit = max(
        (ONCE_MIN if table.measured else OF_COLLECTIVE) * table.reference,
        SINGLE_NOISE * noise_of(relative, table.reference),
    )
    usual = np.nanpercentile(relative, 25, axis=0)
    over = relative - usual[None, :]
    late = np.asarray((over >= limit).any(axis=1)) & ((over >= limit).mean(axis=1) <= 0.5)
    if table.measured:  # what all lose together, in a stall, is not the loss of one that varies more then
        late &= np.fmax.reduce(over, axis=1) >= OF_LOSS * (table.whole - np.percentile(table.whole, 25))
    if late.any():
        costly = _costs(np.fmax.reduce(over, axis=1), late, table)
        who = Counter(int(np.nanargmax(over[at])) for at in np.flatnonzero(late).tolist())
        found = _single(table, late, who, over, rows, rank_of)
        if found is not None and (costly or found.reason is SlowReason.COLLECTIONS):
            return found
    return _stalls(table, facts) or _bursts(table, rows, rank_of)


def _costs(excess: Table, late: npt.NDArray[np.bool_], table: Steps) -> bool:
    """Whether the marked steps are more than the tail of a jitter that every step has."""
    share = float(excess[late].sum()) / (table.reference * len(table.steps))
    others = float(excess[~late].max()) if (~late).any() else 0.0
    apart = float(np.median(excess[late])) >= STANDS_APART * others if late.any() else False
    return share >= TOTAL_LARGE or (share >= TOTAL_MIN and apart)


def _turns(who: Counter[int]) -> bool:
    return who.most_common(1)[0][1] <= SAME_PLACE * who.total()


def _single(
    table: Steps, late: npt.NDArray[np.bool_], who: Counter[int], over: Table, rows: Sequence[SampleRow],
    rank_of: RankOf,
) -> SlowRows | None:  # fmt: skip
    """Slow steps with one late place each; None for a single one that costs little."""
    at = np.flatnonzero(late)
    excess = np.array([float(np.nanmax(over[row])) for row in at.tolist()])
    if len(at) == 1 and excess[0] < 0.5 * table.reference:
        return None
    steps = [int(table.steps[row]) for row in at.tolist()]
    pairs = {(int(table.steps[row]), table.places[int(np.nanargmax(over[row]))]) for row in at.tolist()}
    turns = len(who) >= 2 and _turns(who)
    collected = _collected(rows, rank_of, pairs, float(np.median(excess))) >= BY_COLLECTION * len(pairs)
    places = (
        sorted({place for _, place in pairs}, key=str) if turns else [table.places[who.most_common(1)[0][0]]]
    )
    reason = SlowReason.ROTATING if turns else SlowReason.LATE_NOW_AND_THEN
    cause = "another one each time" if turns else "the same one"
    if collected:
        reason, cause = SlowReason.COLLECTIONS, f"{cause}, each while it collects garbage"
    every = period_of(steps)
    answer = answer_of(
        table, reason, VerdictClass.S1,
        f"in {len(at)} of {len(table.steps)} steps one place is late by {float(np.median(excess)):.3g} s, "
        f"{cause}: {named(places)}",
        places, confidence=0.85 if collected else 0.75 if len(at) >= 3 else 0.55,
    )  # fmt: skip
    ratio = ratio_of(table, late)
    if late.all():  # no other step to compare with
        ratio = table.reference / max(table.reference - float(np.median(excess)), 1e-3 * table.reference)
    return replace(
        answer, ratio=ratio, share=1.0, since=steps[0], period=every, slow_steps=len(at),
        lost_s=float(np.median(excess)),
    )  # fmt: skip


def _collected(
    rows: Sequence[SampleRow], rank_of: RankOf, pairs: set[tuple[int, Place]], excess: float
) -> int:
    """How many of the slow steps fall on a collection of the late rank, long enough to explain it."""
    long = [
        row
        for row in rows
        if row.kind == "collections" and row.numbers.get("duration_s", 0.0) >= ALIKE * excess
    ]
    at = {(int(row.numbers["step"]), rank_of(row)) for row in long if "step" in row.numbers}
    if at:
        return sum((step + shift, place) in at for step, place in pairs for shift in (0,)) or sum(
            any((step + shift, place) in at for shift in (-1, 1)) for step, place in pairs
        )
    ranks = {rank_of(row) for row in long}
    return sum(place in ranks for _, place in pairs)


def _stalls(table: Steps, facts: Sequence[Fact]) -> SlowRows | None:
    """Steps in which the own time of all jumps; announced pauses are none."""
    if not table.measured:
        return None
    own = low_median(table.own)
    limit = max(STALL_MIN * table.reference, SINGLE_NOISE * lower_noise(own, table.reference))
    slow = rises(own, limit)
    at = np.flatnonzero(slow)
    steps = [int(table.steps[row]) for row in at.tolist()]
    if len(at) < 2 or _announced(facts, steps):
        return None
    period = period_of(steps)
    by_data = False
    if table.data is not None:
        data = low_median(table.data)
        by_data = bool(
            np.median(data[slow] - np.median(data[~slow]))
            >= ALIKE * np.median(own[slow] - np.median(own[~slow]))
        )
    lost = float(np.median(own[slow]) - np.median(own[~slow])) if (~slow).any() else 0.0
    bound = bool(period) or by_data
    every = f" every {period} steps" if period else ""
    answer = answer_of(
        table,
        SlowReason.INPUT_BOUND if bound else SlowReason.STALL,
        VerdictClass.S1,
        f"all places stall together for {lost:.3g} s{every} before the collective, "
        f"{len(at)} of {len(table.steps)} " + ("steps: bound by input" if bound else "steps"),
        confidence=0.8 if bound else 0.55,
    )  # fmt: skip
    return replace(
        answer, ratio=ratio_of(table, slow), since=steps[0], period=period, slow_steps=len(at), lost_s=lost
    )


def _announced(facts: Sequence[Fact], steps: Sequence[int]) -> bool:
    """Whether checkpoints or evaluations that the job speaks of stand at half of these steps."""
    kinds = (PhaseKind.CHECKPOINT, PhaseKind.EVALUATION)
    phases = [fact for fact in facts if isinstance(fact, PhaseSeen) and fact.kind in kinds]
    places = {fact.origin for fact in phases}
    at = {fact.done for fact in facts if isinstance(fact, ProgressSeen) and fact.origin in places}
    at |= {
        int(fact.numbers["step"])
        for fact in facts
        if isinstance(fact, SampleRow)
        and "step" in fact.numbers
        and (fact.origin in places or _is_phase(fact))
    }
    near = sum(any(step + shift in at for shift in (-1, 0, 1)) for step in steps)
    return near * 2 >= len(steps) and near > 0


def _is_phase(row: SampleRow) -> bool:
    word = row.words.get("phase", "").lower()
    return any(part in word for part in ("checkpoint", "ckpt", "eval", "valid", "save"))


def _bursts(table: Steps, rows: Sequence[SampleRow], rank_of: RankOf) -> SlowRows | None:
    """Transfers that are slow in some steps only, on all alike."""
    transfer = table.transfer
    if transfer is None:
        return None
    _, least = limits_of(table, transfer, ONCE_MIN)
    noise = lower_noise(transfer, table.reference)
    usual = float(np.median(transfer))
    slow = rises(transfer, max(least, SINGLE_NOISE * noise, ALIKE * usual))
    at = np.flatnonzero(slow)
    if len(at) < 2 or slow.mean() > 0.5:
        return None
    steps = [int(table.steps[row]) for row in at.tolist()]
    lost = float(np.median(transfer[slow])) - usual
    ends = slow_ends(rows, rank_of, set(steps))
    answer = answer_of(
        table,
        SlowReason.BURSTS,
        VerdictClass.S2,
        f"{table.what}: {lost:.3g} s longer on all in {len(at)} of {len(table.steps)} steps, nobody is late"
        + (f"; {ends.statement}" if ends else ""),
    )
    return replace(
        answer, ratio=ratio_of(table, slow), since=steps[0], period=period_of(steps), slow_steps=len(at),
        lost_s=lost, ends=ends,
    )  # fmt: skip
