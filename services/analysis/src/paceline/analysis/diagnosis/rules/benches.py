"""The same bandwidth test run with two versions: slow with one of them at every size."""

from collections import defaultdict

import numpy as np

from paceline.analysis.diagnosis.answer import Blame, Ground
from paceline.analysis.diagnosis.case import Case
from paceline.analysis.diagnosis.rules.finding import Finding, origins_of
from paceline.analysis.facts import SampleRow, SettingSeen
from paceline.contracts.verdicts import Action, ActionKind, Owner, RootKind, SubReason, VerdictClass

RATIO = 1.15
LARGE_BYTES = 1 << 20  # below, the latency of a run decides


def version_of_tests(case: Case) -> Finding | None:
    """Files of tests that name one NCCL version each, compared size by size."""
    versions: dict[str, set[str]] = defaultdict(set)
    for fact in case.of(SettingSeen):
        if fact.name == "nccl_version":
            versions[fact.origin.file].add(fact.value)
    rows = [
        row for row in case.of(SampleRow) if row.kind == "nccl_tests" and len(versions[row.origin.file]) == 1
    ]
    reached: dict[str, dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        size, rate = row.numbers.get("bytes", 0.0), row.numbers.get("busbw_gbps", 0.0)
        if size >= LARGE_BYTES and rate > 0:
            reached[next(iter(versions[row.origin.file]))][size].append(rate)
    if len(reached) < 2:
        return None
    middle = {
        version: float(np.median([v for s in sizes.values() for v in s]))
        for version, sizes in reached.items()
    }
    best, worst = max(middle, key=lambda v: middle[v]), min(middle, key=lambda v: middle[v])
    shared = set(reached[best]) & set(reached[worst])
    slower = [size for size in shared if max(reached[worst][size]) * RATIO <= min(reached[best][size])]
    if not shared or len(slower) * 4 < len(shared) * 3:
        return None
    ratio = middle[worst] / middle[best]
    return Finding(
        reason="version_of_tests",
        verdict_class=VerdictClass.S2,
        sub_reason=SubReason.SHARED_PATH,
        roots=(
            Blame(RootKind.CONFIGURATION, name=f"NCCL {worst}", why=f"slow at every size, {best} is not"),
        ),
        victims=(),
        phase="bandwidth test of versions (all_reduce)",
        owner=Owner.FRAMEWORK,
        action=Action(ActionKind.FIX_CONFIGURATION, f"NCCL {worst}", f"use {best}; report the regression"),
        confidence=0.75,
        grounds=(
            Ground("versions", f"busbw with {worst} is {ratio:.2f} of that with {best}", origins_of(rows)),
        ),
        summary=f"The bandwidth test reaches {ratio:.2f} with NCCL {worst} of what it reaches with {best}: "
        "the version, no rank and no node",
    )
