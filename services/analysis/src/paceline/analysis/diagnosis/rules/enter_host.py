"""A member that its host holds: a process that the kernel says is blocked."""

from paceline.analysis.diagnosis.answer import Ground
from paceline.analysis.diagnosis.case import Case
from paceline.analysis.diagnosis.rules.finding import (
    Finding,
    complaining,
    main_operation,
    operation_text,
    origins_of,
    rank_roots,
    ranks_text,
)
from paceline.analysis.facts import SettingSeen
from paceline.contracts.verdicts import Action, ActionKind, Owner, SubReason, VerdictClass


def blocked_task(case: Case) -> Finding | None:
    """Few ranks are blocked in the kernel and do not complain, others wait."""
    facts = [fact for fact in case.of(SettingSeen) if fact.name == "task_blocked"]
    waiting = set(complaining(case))
    ranks = sorted({rank for fact in facts if (rank := case.rank_of(fact)) is not None} - waiting)
    if not ranks or not waiting or len(ranks) > len(waiting):
        return None
    communicator, operation = main_operation(case)
    return Finding(
        reason="blocked_task",
        verdict_class=VerdictClass.H1,
        sub_reason=SubReason.HOST_WAIT,
        roots=rank_roots(ranks, "its process is blocked in the kernel"),
        victims=tuple(sorted(waiting)),
        communicator=communicator,
        operation=operation,
        phase="blocked in the kernel (storage or driver)",
        owner=Owner.STORAGE,
        action=Action(
            ActionKind.COLLECT, ranks_text(ranks), "the kernel's stack in that log: file system or driver"
        ),
        confidence=0.8,
        grounds=(Ground("blocked", facts[0].text[:200], origins_of(facts)),),
        summary=f"{ranks_text(ranks)} is blocked in the kernel and never entered {operation_text(operation)}",
    )
