"""What straggler detectors inside a framework report: one rank slow in most reports, or another each time."""

from collections import defaultdict

import numpy as np

from paceline.analysis.diagnosis.answer import Blame, Ground
from paceline.analysis.diagnosis.case import Case
from paceline.analysis.diagnosis.rules.finding import Finding, origins_of, rank_roots, ranks_text, verb
from paceline.analysis.facts import SampleRow
from paceline.contracts.verdicts import Action, ActionKind, Owner, RootKind, SubReason, VerdictClass

SLOW_SCORE = 0.92  # of the usual score; frameworks call 0.7 to 0.9 a straggler, healthy GPUs differ by 2 %
OF_REPORTS = 0.5  # in so many of the reports that name it
TURNS_MIN = 3  # ranks that are slow now and then: nobody's GPU


def straggler_reports(case: Case) -> Finding | None:
    """Ranks that the job's own detector finds slow; None where scores are even and nobody is flagged."""
    rows = [row for row in case.of(SampleRow) if row.kind == "scores"]
    scores: dict[int, list[float]] = defaultdict(list)
    flagged: dict[int, int] = defaultdict(int)
    for row in rows:
        rank = case.rank_of(row)
        if rank is not None and "score" in row.numbers:
            scores[rank].append(row.numbers["score"])
        elif rank is not None and "flagged" in row.numbers:
            flagged[rank] += 1
    every = [value for values in scores.values() for value in values]
    usual = float(np.median(every)) if len(scores) >= 3 else 0.0
    low = {rank: sum(value < SLOW_SCORE * usual for value in values) for rank, values in scores.items()}
    steady = sorted(r for r, times in low.items() if times > OF_REPORTS * len(scores[r]))
    now_and_then = sorted(rank for rank, times in low.items() if times and rank not in steady)
    most = max(flagged.values(), default=0)
    if not steady and not now_and_then and most > 1:
        steady = sorted(rank for rank, times in flagged.items() if times > OF_REPORTS * most)
    if not steady and len(now_and_then) < TURNS_MIN:
        return None
    turns = not steady
    ranks = now_and_then if turns else steady
    if len(ranks) * 2 > max(len(scores), len(flagged)) and len(ranks) > 1 and not turns:
        return None
    worst = min((min(scores[rank]) for rank in ranks if scores[rank]), default=0.0)
    ratio = f" ({worst / usual:.2f} of the usual)" if usual and worst else ""
    words = "by the job's own straggler detector"
    return Finding(
        reason="straggler_reports",
        verdict_class=VerdictClass.S1,
        sub_reason=SubReason.ROTATING_STRAGGLER if turns else SubReason.LATE_RANK,
        roots=(Blame(RootKind.ROTATING, ranks=tuple(ranks), why="another one each time"),)
        if turns
        else rank_roots(ranks, f"computes slowest{ratio}"),
        victims=() if turns else tuple(rank for rank in scores if rank not in ranks),
        phase="compute of every step",
        owner=Owner.HOST if turns else Owner.GPU,
        action=_action(ranks, turns),
        confidence=0.7 if turns else 0.85,
        grounds=(Ground("scores", f"{ranks_text(ranks)} slow{ratio} {words}", origins_of(rows)),),
        summary=f"Another rank is slow each time ({ranks_text(ranks)}), {words}; "
        "no rank is to be replaced (steps)"
        if turns
        else f"{_name(ranks)} slow in every step{ratio}, {words}; the others wait",
    )


def _name(ranks: list[int]) -> str:
    return f"{ranks_text(ranks)} {verb(ranks, 'computes', 'compute')}".capitalize()


def _action(ranks: list[int], turns: bool) -> Action:
    if turns:
        words = "a cause on the hosts: collections, contention, jitter"
        return Action(ActionKind.FIX_CONFIGURATION, "", words)
    words = "clocks, temperature and a benchmark of its GPU; replace it if slow"
    return Action(ActionKind.COLLECT, ranks_text(ranks), words)
