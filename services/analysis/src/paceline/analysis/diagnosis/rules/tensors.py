"""Horovod's lists of tensors that only a part of the ranks submitted."""

from collections import Counter

from paceline.analysis.adapters.functions import function_of
from paceline.analysis.diagnosis.answer import Ground
from paceline.analysis.diagnosis.case import Case
from paceline.analysis.diagnosis.rules.finding import Finding, origins_of, rank_roots, ranks_text
from paceline.analysis.facts import BarrierReport
from paceline.contracts.verdicts import Action, ActionKind, Operation, Owner, SubReason, VerdictClass


def submitted_by_some(case: Case) -> Finding | None:
    """Who is missing for every tensor is late; where each side waits for the other, the few differ."""
    reports = [report for report in case.of(BarrierReport) if " " in report.text and _is_tensor(report)]
    if not reports:
        return None
    everybody = {rank for report in reports for rank in (*report.missing, *report.ready)} | set(
        case.ranks_named
    )
    world = max(case.world_size, max(everybody, default=0) + 1)
    absent: Counter[int] = Counter()
    present: set[int] = set()
    for report in reports:
        missing = set(report.missing) or set(range(world)) - set(report.ready)
        absent.update(missing)
        present |= set(report.ready)
    lone = [report for report in reports if report.ready and len(report.ready) * 2 < world]
    crossed = bool(lone) and any(len(report.ready) * 2 > world for report in reports)
    if crossed:
        ranks = sorted({rank for report in lone for rank in report.ready})
    else:
        most = max(absent.values(), default=0)
        ranks = sorted(rank for rank, times in absent.items() if times == most and rank not in present)
    if not ranks or len(ranks) * 2 > max(world, 2):
        return None
    tensor = (lone or reports)[0].text
    function = function_of(tensor.split(" ", 1)[0])
    what = f"{tensor.split(' ', 1)[1][:80]}"
    words = "submitted a tensor that the others did not" if crossed else "did not submit the tensors"
    return Finding(
        reason="submitted_by_some",
        verdict_class=VerdictClass.H2 if crossed else VerdictClass.H1,
        sub_reason=SubReason.OPERATION_MISMATCH if crossed else SubReason.MISSING_ENTER,
        roots=rank_roots(ranks, words),
        victims=tuple(rank for rank in sorted(everybody) if rank not in ranks),
        communicator="default_pg",
        operation=Operation("", "", function, 0, detail=what),
        owner=Owner.USER_CODE,
        action=Action(ActionKind.FIX_CODE, ranks_text(ranks), "make all ranks submit the same tensors")
        if crossed
        else Action(ActionKind.COLLECT, ranks_text(ranks), "its stack: where it is instead"),
        confidence=0.8,
        grounds=(
            Ground("tensors", f"{len(reports)} wait; {ranks_text(ranks)} {words}", origins_of(reports)),
        ),
        summary=f"{ranks_text(ranks).capitalize()} {words} ({function} {what}); the others wait",
    )


def _is_tensor(report: BarrierReport) -> bool:
    return (
        bool(report.ready or report.missing)
        and report.arrived is None
        and "barrier" not in report.text.lower()
    )
