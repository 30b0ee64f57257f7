"""GPUs of a job that stands: all run a kernel but one that holds its memory and does nothing."""

from collections import defaultdict

import numpy as np

from paceline.analysis.diagnosis.answer import Blame, Ground
from paceline.analysis.diagnosis.case import Case
from paceline.analysis.diagnosis.rules.finding import Finding, origins_of, ranks_text
from paceline.analysis.facts import SampleRow
from paceline.contracts.verdicts import Action, ActionKind, Owner, RootKind, SubReason, VerdictClass

BUSY = 90.0  # % of utilisation: a kernel runs all the time
IDLE = 5.0
BUSY_MIN = 3
OF_ALL = 0.25
MEMORY = 0.5  # of the median of the others: the process is there


def idle_among_busy(case: Case) -> Finding | None:
    """Whose GPU is idle in every sample has not entered what the others spin in."""
    samples: dict[tuple[str, str], list[SampleRow]] = defaultdict(list)
    for row in case.of(SampleRow):
        if row.kind == "telemetry" and "sm_util" in row.numbers and "memory_used" in row.numbers:
            samples[row.speaker.host, row.words.get("gpu", "") or row.speaker.gpu].append(row)
    peak = {key: max(row.numbers["sm_util"] for row in rows) for key, rows in samples.items()}
    floor = {key: min(row.numbers["sm_util"] for row in rows) for key, rows in samples.items()}
    busy = [key for key in samples if floor[key] >= BUSY]
    idle = [key for key in samples if peak[key] <= IDLE]
    if (
        len(busy) < BUSY_MIN
        or not idle
        or len(idle) > OF_ALL * len(samples)
        or len(busy) + len(idle) < len(samples)
    ):
        return None
    usual = float(np.median([samples[key][-1].numbers["memory_used"] for key in busy]))
    idle = [key for key in idle if samples[key][-1].numbers["memory_used"] >= MEMORY * usual]
    if not idle:
        return None
    rows = [samples[key][-1] for key in idle]
    roots = tuple(
        Blame(RootKind.GPU, rank=case.rank_of(row), node=key[0], gpu=key[1], why="idle while the others spin")
        for key, row in zip(idle, rows, strict=True)
    )
    ranks = [root.rank for root in roots if root.rank is not None]
    who = ranks_text(ranks) if ranks else "GPU " + ", ".join(f"{host} {gpu}".strip() for host, gpu in idle)
    return Finding(
        reason="idle_among_busy",
        verdict_class=VerdictClass.H1,
        sub_reason=SubReason.HOST_WAIT,
        roots=roots,
        phase="collective of the step (device)",
        owner=Owner.USER_CODE,
        action=Action(ActionKind.COLLECT, who, "the stack of its process (py-spy): where it is instead"),
        confidence=0.65,
        grounds=(Ground("idle", f"{who} is idle, {len(busy)} others run a kernel", origins_of(rows)),),
        summary=f"{who} is idle with its memory in use while {len(busy)} others run a kernel: its process "
        "has not entered the collective in which they spin",
        would_decide=("stacks of all processes", "whether the steps still go on"),
    )
