"""What torch's own reports name: desync reports and monitored barriers."""

from paceline.analysis.diagnosis.answer import Ground
from paceline.analysis.diagnosis.case import Case
from paceline.analysis.diagnosis.rules.activity import last_phase, words_of
from paceline.analysis.diagnosis.rules.finding import (
    Finding,
    main_operation,
    origins_of,
    rank_roots,
    ranks_text,
)
from paceline.analysis.facts import (
    BarrierReport,
    DesyncReport,
)
from paceline.contracts.verdicts import (
    Action,
    ActionKind,
    Owner,
    SubReason,
    VerdictClass,
)


def desync_report(case: Case) -> Finding | None:
    """torch's own report; its numbers count from one and are not the watchdog's sequence."""
    reports = [report for report in case.of(DesyncReport) if report.lagging or report.never_joined]
    if not reports:
        return _not_left(case)
    report = min(reports, key=lambda found: found.finished if found.finished is not None else -1)
    lagging = sorted({*report.lagging, *report.never_joined})
    finished = report.finished
    where = f"collective #{finished + 1} of the desync report" if finished is not None else "any collective"
    communicator, operation = main_operation(case)
    return Finding(
        reason="desync_report",
        verdict_class=VerdictClass.H1,
        sub_reason=SubReason.MISSING_ENTER,
        roots=rank_roots(lagging, f"did not join {where}"),
        victims=tuple(sorted(_others(case, report, lagging))),
        communicator=communicator or "default_pg",
        operation=operation,
        phase=where,
        owner=Owner.USER_CODE,
        action=Action(ActionKind.COLLECT, ranks_text(lagging), "its stack: where it is instead"),
        confidence=0.85,
        grounds=(
            Ground(
                "desync",
                f"{ranks_text(lagging)} finished #{finished}, never joined the next",
                (report.origin,),
            ),
            Ground(
                "numbering",
                "the report's numbers are not the watchdog's sequence numbers",
                (report.origin,),
                supports=False,
            ),
        ),
        summary=f"{ranks_text(lagging)} never joined {where}; the others are ahead because they are "
        "queued, not because they differ",
    )


def _not_left(case: Case) -> Finding | None:
    """A few stand in a collective that the others have left: they did enter it."""
    report = next((found for found in case.of(DesyncReport) if found.stuck and found.ahead), None)
    if report is None or len(report.stuck) >= len(report.ahead):
        return None
    communicator, operation = main_operation(case)
    stuck = ranks_text(report.stuck)
    statement = (
        f"{stuck} joined a collective and did not finish it; {ranks_text(report.ahead)} stand in a later one"
    )
    return Finding(
        reason="desync_not_left",
        verdict_class=VerdictClass.H3,
        sub_reason=SubReason.MISSING_EXIT,
        roots=rank_roots(report.stuck, "did not leave what the others have left"),
        victims=report.ahead,
        communicator=communicator or "default_pg",
        operation=operation,
        phase="collective of the desync report",
        action=Action(ActionKind.COLLECT, stuck, "native stack, state of its GPU, kernel log of its node"),
        confidence=0.6,
        grounds=(Ground("desync", statement, (report.origin,)),),
        summary=statement,
    )


def barrier_report(case: Case) -> Finding | None:
    """A monitored barrier names who did not come. Where nearly all are missing, they are not the cause."""
    reports = [report for report in case.of(BarrierReport) if report.missing]
    if not reports:
        return None
    missing = sorted({rank for report in reports for rank in report.missing})
    highest = max([*missing, *case.ranks_named])
    world = max([case.world_size, highest + 1, *(r.expected or 0 for r in reports)])
    if len(missing) * 2 > max(world, 2):
        return None
    speakers = [rank for report in reports if (rank := case.rank_of(report)) is not None]
    phase = last_phase(case, set(missing))
    return Finding(
        reason="barrier_report",
        verdict_class=VerdictClass.H1,
        sub_reason=SubReason.MISSING_ENTER,
        roots=rank_roots(missing, "did not reach the barrier"),
        victims=tuple(sorted(set(speakers) - set(missing))),
        communicator="gloo",
        phase="monitored barrier",
        owner=Owner.USER_CODE,
        action=Action(ActionKind.COLLECT, ranks_text(missing), "its stack: where it is instead"),
        confidence=0.85,
        grounds=(
            Ground("barrier", f"{ranks_text(missing)} did not reach the barrier", origins_of(reports)),
            *((Ground("still_working", words_of(phase), (phase.origin,)),) if phase else ()),
        ),
        summary=f"{ranks_text(missing)} did not reach the barrier; the rank that reports it only waited",
    )


def _others(case: Case, report: DesyncReport, lagging: list[int]) -> set[int]:
    highest = max([*lagging, *report.stuck, *case.ranks_named, case.world_size - 1])
    return set(range(highest + 1)) - set(lagging)
