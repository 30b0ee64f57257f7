"""Rows that name the cause of slow steps themselves: collections, and work behind the collective.

What the times of steps alone say is decided in `diagnosis.slow_rows` (rule `slow.measured_rows`).
"""

from collections import Counter

import numpy as np

from paceline.analysis.diagnosis.answer import Blame, Ground
from paceline.analysis.diagnosis.case import Case
from paceline.analysis.diagnosis.rules.finding import Finding, origins_of, rank_roots, ranks_text
from paceline.analysis.facts import Fact, PhaseKind, PhaseSeen, SampleRow
from paceline.contracts.verdicts import Action, ActionKind, Owner, RootKind, SubReason, VerdictClass

COLLECTION_MIN_S = 0.3


def collections(case: Case) -> Finding | None:
    """Garbage collections of different ranks at different steps: each time all wait for another rank."""
    found = _collections(case)
    moments = Counter(moment for _, _, moment, _ in found)
    ranks = sorted({rank for rank, _, _, _ in found})
    if len(ranks) < 2 or not moments or (max(moments.values()) > len(ranks) / 2 and len(moments) < 2):
        return None
    waits = [row for row in case.of(SampleRow) if row.kind == "waits"]
    where = waits[0].words.get("at", "") if waits else ""
    longest = max(duration for _, duration, _, _ in found)
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
                origins_of(fact for _, _, _, fact in found),
            ),
            *((Ground("waits", "the waits fall on those steps", origins_of(waits)),) if waits else ()),
        ),
        summary=f"Garbage collections of up to {longest:.2f} s fall on another rank each time "
        f"({ranks_text(ranks)}); "
        "nobody is to be replaced",
    )


def _collections(case: Case) -> list[tuple[int, float, float | None, Fact]]:
    """(rank, seconds, when, fact) of each long collection; lines of logs where no rows are there."""
    found: list[tuple[int, float, float | None, Fact]] = []
    for row in case.of(SampleRow):
        rank, took = case.rank_of(row), row.numbers.get("duration_s", 0.0)
        if row.kind == "collections" and rank is not None and took >= COLLECTION_MIN_S:
            found.append((rank, took, row.numbers.get("step", row.time_s), row))
    if found:
        return found
    for phase in case.of(PhaseSeen):
        rank, took = case.rank_of(phase), phase.duration_s or 0.0
        if phase.kind is PhaseKind.COLLECT and rank is not None and took >= COLLECTION_MIN_S:
            found.append((rank, took, None if phase.time_s is None else round(phase.time_s), phase))
    return found


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
