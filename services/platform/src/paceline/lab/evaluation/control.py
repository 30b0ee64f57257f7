"""The control: blames whoever is furthest behind or has the smallest T, with no graph and no rules.

It shows that the corpus can tell a localisation from a guess; it must fail.
"""

import numpy as np

from paceline.contracts.batch import Batch, BatchKind, RowKind
from paceline.contracts.verdicts import (
    Action,
    ActionKind,
    Coverage,
    Owner,
    Root,
    RootKind,
    SubReason,
    Verdict,
    VerdictClass,
)


def argmin_verdict(signal: Batch) -> Verdict | None:
    """What a variant with nothing but argmin says about one signal; None where it has no rows."""
    slow = signal.kind is BatchKind.SLOW
    rows = signal.rows.get(RowKind.ROUND if slow else RowKind.STATE)
    if rows is None or len(rows) == 0:
        return None
    ranks = rows["rank"].astype(np.int64)
    if slow:
        done = rows["duration_ns"] > 0
        if not done.any():
            return None
        key = rows["duration_ns"][done].astype(np.float64)
        rank = int(ranks[done][int(np.argmin(key))])
        verdict_class, sub = VerdictClass.S1, SubReason.LATE_RANK
    else:
        progress = np.bincount(ranks, weights=rows["entered"].astype(np.float64) + rows["completed"])
        present = np.bincount(ranks) > 0
        rank = int(np.flatnonzero(present)[int(np.argmin(progress[present]))])
        inside = bool((rows["head_round"][ranks == rank] > 0).any())
        verdict_class = VerdictClass.H3 if inside else VerdictClass.H1
        sub = SubReason.MISSING_EXIT if inside else SubReason.MISSING_ENTER
    return Verdict(
        verdict_class,
        sub,
        (Root(RootKind.RANK, rank=rank),),
        (),
        0,
        None,
        Owner.UNKNOWN,
        Action(ActionKind.NONE),
        0.5,
        Coverage(0, 0, 0, 0),
        (),
        f"rank {rank} is furthest behind",
    )
