"""Slow steps from rows of each rank and step: who was late each time, or which transfers were slow.

Attribution is for each occurrence, never by averages: a straggler that changes every time has no rank to
replace. A step of 3 % above the usual is enough.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from paceline.analysis.diagnosis.answer import Blame, Ground
from paceline.analysis.diagnosis.case import Case
from paceline.analysis.diagnosis.rules.finding import Finding, origins_of, rank_roots, ranks_text
from paceline.analysis.facts import SampleRow
from paceline.contracts.verdicts import Action, ActionKind, Owner, RootKind, SubReason, VerdictClass

RATIO_MIN = 1.03
SHARE_OF_LOSS = 0.5  # a rank that adds so much of what a step lost was late
ALIKE = 0.8  # of the ranks late together: it is none of them
PERSISTENT = 0.6  # of the slow steps with the same late rank: one rank, not a rotation
RATE_DROP = 0.9  # a rate below this share of its usual is a slow transfer
COLLECTION_MIN_S = 0.3
ROTATION_SPREAD = 1.2  # without a usual step, the latest rank must be that much later to count
ROTATION_STEPS_MIN = 4
CELLS_MAX = 1 << 24
Table = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Steps:
    """Seconds by step and rank, NaN where no row is; `own` before the collective or queued behind it."""

    steps: list[int]
    ranks: list[int]
    own: Table
    collective: Table
    whole: Table  # by step

    @property
    def usual(self) -> npt.NDArray[np.bool_]:
        """Steps that took the usual time."""
        return np.asarray(self.whole <= RATIO_MIN * self.base)

    @property
    def base(self) -> float:
        return float(np.nanpercentile(self.whole, 20))


def read_steps(case: Case) -> Steps | None:
    """The table of all step rows, None where there are too few."""
    rows = [row for row in case.of(SampleRow) if row.kind == "steps" and "step" in row.numbers]
    cells = [(int(row.numbers["step"]), rank, row) for row in rows if (rank := case.rank_of(row)) is not None]
    steps = sorted({step for step, _, _ in cells})
    ranks = sorted({rank for _, rank, _ in cells})
    if len(steps) < 2 or len(ranks) < 2 or len(steps) * len(ranks) > CELLS_MAX:
        return None
    row_of = {step: at for at, step in enumerate(steps)}
    column_of = {rank: at for at, rank in enumerate(ranks)}
    own = np.full((len(steps), len(ranks)), np.nan)
    collective, whole = own.copy(), own.copy()
    for step, rank, row in cells:
        at = row_of[step], column_of[rank]
        numbers = row.numbers
        own[at] = numbers.get("own_s", numbers.get("tail_s", np.nan))
        collective[at] = numbers.get("collective_s", numbers.get("wait_s", np.nan))
        parts = sum(
            numbers.get(name, 0.0) for name in ("own_s", "collective_s", "tail_s", "wait_s", "data_s")
        )
        whole[at] = numbers.get("step_s", parts)
    return Steps(steps, ranks, own, collective, np.asarray(np.nanmax(whole, axis=1)))


def collections(case: Case) -> Finding | None:
    """Garbage collections of different ranks at different steps: each time all wait for another rank."""
    rows = [row for row in case.of(SampleRow) if row.kind == "collections"]
    long = [row for row in rows if row.numbers.get("duration_s", 0.0) >= COLLECTION_MIN_S]
    found = [(rank, row) for row in long if (rank := case.rank_of(row)) is not None]
    moments = Counter(row.numbers.get("step", row.time_s) for _, row in found)
    ranks = sorted({rank for rank, _ in found})
    if len(ranks) < 2 or not moments or (max(moments.values()) > len(ranks) / 2 and len(moments) < 2):
        return None
    waits = [row for row in case.of(SampleRow) if row.kind == "waits"]
    where = waits[0].words.get("at", "") if waits else ""
    longest = max(row.numbers["duration_s"] for _, row in found)
    victims = sorted({r for row in waits if (r := case.rank_of(row)) is not None} - set(ranks))
    return Finding(
        reason="rotating_collections",
        verdict_class=VerdictClass.S1,
        sub_reason=SubReason.ROTATING_STRAGGLER,
        roots=(
            Blame(
                RootKind.ROTATING, name="garbage collection", ranks=tuple(ranks), why="another rank each time"
            ),
        ),
        victims=tuple(victims),
        phase=f"every step that waits for all ranks{f': {where}' if where else ''}",
        owner=Owner.USER_CODE,
        action=Action(
            ActionKind.FIX_CODE, "", "collect garbage on all ranks at the same step, not when it happens"
        ),
        confidence=0.85,
        grounds=(
            Ground(
                "collections",
                f"{ranks_text(ranks)} collect at different steps",
                origins_of(row for _, row in found),
            ),
            *((Ground("waits", "the waits fall on those steps", origins_of(waits)),) if waits else ()),
        ),
        summary=f"Garbage collections of up to {longest:.2f} s fall on another rank each time "
        f"({ranks_text(ranks)}); "
        "nobody is to be replaced",
    )


def queued_tail(case: Case) -> Finding | None:
    """Work queued behind the collective on some ranks: the others wait at the next synchronisation."""
    rows = [row for row in case.of(SampleRow) if row.kind == "steps" and "tail_s" in row.numbers]
    tails: dict[int, list[float]] = {}
    for row in rows:
        if (rank := case.rank_of(row)) is not None:
            tails.setdefault(rank, []).append(row.numbers["tail_s"])
    if len(tails) < 2:
        return None
    middle = {rank: float(np.median(values)) for rank, values in tails.items()}
    low, high = min(middle.values()), max(middle.values())
    collective = float(np.median([row.numbers.get("collective_s", 0.0) for row in rows]))
    if high < 2 * low or high < collective:
        return None
    late = [rank for rank, value in middle.items() if value > (low + high) / 2]
    return Finding(
        reason="queued_tail",
        verdict_class=VerdictClass.S1,
        sub_reason=SubReason.LATE_RANK,
        roots=rank_roots(late, f"{high:.2f} s of work behind the collective"),
        victims=tuple(rank for rank in middle if rank not in late),
        phase="compute tail after the collective (all_reduce)",
        owner=Owner.USER_CODE,
        action=Action(
            ActionKind.FIX_CODE, ranks_text(late), "spread the work that is queued behind the collective"
        ),
        confidence=0.75,
        grounds=(
            Ground(
                "tail",
                f"{ranks_text(late)}: {high:.2f} s behind it, the others {low:.2f} s",
                origins_of(rows),
            ),
            Ground("collective", f"the collective itself takes {collective:.2f} s", (), supports=False),
        ),
        summary=f"{ranks_text(late)} have {high:.2f} s of own work queued after the collective, for "
        "which the others "
        f"wait; the collective itself is healthy ({collective:.2f} s)",
    )


def slow_steps(case: Case) -> Finding | None:
    """Steps that took longer than usual, by who was late in each of them."""
    table = read_steps(case)
    if table is None or np.isnan(table.own).all():
        return None
    slow = np.flatnonzero(~table.usual)
    if len(slow) == 0 or len(slow) == len(table.steps):
        return _slower_always(case, table)
    usual = table.usual
    excess = table.own[slow] - np.nanmedian(table.own[usual], axis=0)
    lost = table.whole[slow] - np.nanmedian(table.whole[usual])
    late = excess >= SHARE_OF_LOSS * lost[:, None]
    alike = late.mean(axis=1) >= ALIKE
    transfer = np.nanmin(table.collective[slow], axis=1) - np.nanmedian(
        np.nanmin(table.collective[usual], axis=1)
    )
    ratio = float(np.median(table.whole[slow]) / table.base)
    facts = [row for row in case.of(SampleRow) if row.kind == "steps"]
    if alike.mean() >= ALIKE:
        return _input_bound(table, slow, ratio, facts)
    if not late.any():
        return (
            _transfers(case, table, slow, ratio, facts)
            if (transfer >= SHARE_OF_LOSS * lost).mean() > 0.5
            else None
        )
    return _late_ranks(case, table, slow, late, ratio, facts)


def _late_ranks(
    case: Case, table: Steps, slow: npt.NDArray[np.int64], late: npt.NDArray[np.bool_], ratio: float,
    facts: Sequence[SampleRow],
) -> Finding:  # fmt: skip
    share = late.mean(axis=0)
    persistent = [table.ranks[at] for at in np.flatnonzero(share >= PERSISTENT)]
    some = [table.ranks[at] for at in np.flatnonzero(share > 0)]
    first = table.steps[int(slow[0])]
    if not persistent and len(some) >= 2:
        return _rotating(some, len(slow), ratio, facts)
    ranks = persistent or some
    slower = _slower_rates(case, ranks, set(np.asarray(table.steps)[slow].tolist()))
    nodes = sorted(
        {case.places[rank].host for rank in ranks if rank in case.places and case.places[rank].host}
    )
    klass = VerdictClass.S3 if slower else VerdictClass.S1
    return Finding(
        reason="late_ranks",
        verdict_class=klass,
        sub_reason=SubReason.LATE_RANK,
        roots=tuple(
            Blame(
                RootKind.RANK,
                rank=rank,
                node=nodes[0] if len(nodes) == 1 else "",
                why="late in the slow steps",
            )
            for rank in ranks
        ),
        victims=tuple(rank for rank in table.ranks if rank not in ranks),
        phase=f"collective of every step, from step (iteration) {first}",
        owner=Owner.HOST if slower or len(ranks) > 1 else Owner.GPU,
        action=Action(
            ActionKind.FIX_CONFIGURATION,
            ranks_text(ranks),
            "free cores of that host: launch and proxies starve",
        )
        if slower or len(ranks) > 1
        else Action(
            ActionKind.COLLECT,
            ranks_text(ranks),
            "clocks, temperature and a benchmark of its GPU; replace it if slow",
        ),
        confidence=0.85,
        grounds=(
            Ground(
                "late",
                f"{ranks_text(ranks)} add the loss in {len(slow)} slow steps; their wait is the shortest",
                origins_of(facts),
            ),
            *((Ground("rates", f"their transfers are slower as well: {slower}", ()),) if slower else ()),
        ),
        summary=f"{ranks_text(ranks)} became late at step {first}: steps take {ratio:.3f} times as long"
        + ("; their transfers are slow too, so their host is" if slower else ""),
    )


def _rotating(ranks: list[int], times: int, ratio: float, facts: Sequence[SampleRow]) -> Finding:
    return Finding(
        reason="rotating_late",
        verdict_class=VerdictClass.S1,
        sub_reason=SubReason.ROTATING_STRAGGLER,
        roots=(Blame(RootKind.ROTATING, ranks=tuple(ranks), why="another rank each time"),),
        victims=(),
        phase="collective of the step",
        owner=Owner.HOST,
        action=Action(
            ActionKind.FIX_CONFIGURATION, "", "a cause on the hosts: collections, contention, jitter"
        ),
        confidence=0.75,
        grounds=(
            Ground(
                "late",
                f"late rank changes over {times} slow steps: {ranks_text(ranks)}",
                origins_of(facts),
            ),
        ),
        summary=f"Steps are {ratio:.2f} times as long now and then, each time for another late rank",
    )


def _input_bound(
    table: Steps, slow: npt.NDArray[np.int64], ratio: float, facts: Sequence[SampleRow]
) -> Finding:
    starts = [table.steps[at] for at in slow.tolist()]
    gaps = Counter(later - earlier for earlier, later in pairwise(starts))
    period, times = gaps.most_common(1)[0] if gaps else (0, 0)
    regular = period > 1 and times * 2 > len(starts) - 1
    every = f" every {period} steps" if regular else ""
    return Finding(
        reason="input_bound",
        verdict_class=VerdictClass.S1,
        sub_reason=SubReason.LATE_RANK,
        roots=(
            Blame(RootKind.NONE, name="all ranks together: data loading (input bound)", why="no straggler"),
        ),
        victims=(),
        phase=f"input (data loading) before the step{every}",
        owner=Owner.STORAGE,
        action=Action(ActionKind.FIX_CONFIGURATION, "", "data loader: workers, prefetch, storage"),
        confidence=0.75 if regular else 0.6,
        grounds=(
            Ground("alike", f"all ranks are late together in {len(slow)} steps{every}", origins_of(facts)),
        ),
        summary=f"All ranks stall together{every} (steps {ratio:.1f} times as long): input bound, no "
        "straggler",
    )


def _transfers(
    case: Case, table: Steps, slow: npt.NDArray[np.int64], ratio: float, facts: Sequence[SampleRow]
) -> Finding:
    steps = set(np.asarray(table.steps)[slow].tolist())
    ranks = _lowest_rates(case, steps)
    return Finding(
        reason="slow_transfers",
        verdict_class=VerdictClass.S2,
        sub_reason=SubReason.SLOW_LINK,
        roots=tuple(Blame(RootKind.LINK, rank=rank, why="its rate fell") for rank in ranks)
        or (Blame(RootKind.NONE, name="the fabric as a whole", why="no end differs"),),
        victims=(),
        phase="collective of the step",
        owner=Owner.FABRIC,
        action=Action(
            ActionKind.NETWORK_TICKET, ranks_text(ranks) if ranks else "", "rates and counters of the links"
        ),
        confidence=0.7,
        grounds=(
            Ground(
                "transfers",
                f"collectives are longer on every rank in {len(slow)} steps, nobody is late",
                origins_of(facts),
            ),
        ),
        summary=f"Collectives became slow (steps {ratio:.2f} times as long) and no rank is late"
        + (f": {ranks_text(ranks)} send or receive slowly" if ranks else ""),
    )


def _slower_always(case: Case, table: Steps) -> Finding | None:
    """No step is faster than the others: compare ranks. The latest one has the shortest collective."""
    rotating = _rotates(table)
    if rotating:
        facts = [row for row in case.of(SampleRow) if row.kind == "steps"]
        return _rotating(rotating, len(table.steps), _spread(table), facts)
    own = np.nanmedian(table.own, axis=0)
    usual, latest = float(np.nanmedian(own)), float(np.nanmax(own))
    if not usual or latest < RATIO_MIN * usual:
        return None
    at = int(np.nanargmax(own))
    late = [table.ranks[i] for i in np.flatnonzero(own - usual >= SHARE_OF_LOSS * (latest - usual))]
    if len(late) * 2 > len(table.ranks):
        return None
    facts = [row for row in case.of(SampleRow) if row.kind == "steps"]
    return Finding(
        reason="later_than_others",
        verdict_class=VerdictClass.S1,
        sub_reason=SubReason.LATE_RANK,
        roots=rank_roots(late, "later than the others in every step"),
        victims=tuple(rank for rank in table.ranks if rank not in late),
        phase="collective of every step",
        owner=Owner.GPU,
        action=Action(ActionKind.COLLECT, ranks_text(late), "clocks, temperature and a benchmark of its GPU"),
        confidence=0.7,
        grounds=(
            Ground("late", f"own time {latest:.3f} s against {usual:.3f} s of the others", origins_of(facts)),
        ),
        summary=f"rank {table.ranks[at]} is late in every step: {latest / usual:.3f} times the own "
        "time of the others",
    )


def _spread(table: Steps) -> float:
    """The latest rank's own time over the median one, in the middle of the steps."""
    return float(np.nanmedian(np.nanmax(table.own, axis=1) / np.nanmedian(table.own, axis=1)))


def _rotates(table: Steps) -> list[int]:
    """Ranks that take turns at being far later than the others, empty where it is not so."""
    if len(table.steps) < ROTATION_STEPS_MIN or _spread(table) < ROTATION_SPREAD:
        return []
    latest = Counter(np.nanargmax(table.own, axis=1).tolist())
    if len(latest) < 2 or max(latest.values()) > PERSISTENT * len(table.steps):
        return []
    return sorted(table.ranks[at] for at in latest)


def _slower_rates(case: Case, ranks: Sequence[int], steps: set[int]) -> str:
    """Words where these ranks' send or receive rates fell in the slow steps, empty where not."""
    fell = set(_lowest_rates(case, steps)) & set(ranks)
    return f"{ranks_text(sorted(fell))}" if fell else ""


def _lowest_rates(case: Case, steps: set[int]) -> list[int]:
    """Ranks whose rates in `steps` are below RATE_DROP of their usual and of the others'."""
    found = []
    rows = [row for row in case.of(SampleRow) if "send_rate" in row.numbers or "receive_rate" in row.numbers]
    by_rank: dict[int, tuple[list[float], list[float]]] = {}
    for row in rows:
        rank = case.rank_of(row)
        if rank is not None:
            slow, usual = by_rank.setdefault(rank, ([], []))
            rate = row.numbers.get("send_rate", row.numbers.get("receive_rate", 0.0))
            (slow if int(row.numbers.get("step", -1)) in steps else usual).append(rate)
    for rank, (slow, usual) in by_rank.items():
        if slow and usual and float(np.median(slow)) < RATE_DROP * float(np.median(usual)):
            found.append(rank)
    return sorted(found) if len(found) * 2 <= len(by_rank) else []
