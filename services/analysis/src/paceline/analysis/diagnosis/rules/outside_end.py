"""Ranks that were asked to end from outside, while the others went on and waited for them."""

from paceline.analysis.diagnosis.answer import Ground
from paceline.analysis.diagnosis.case import Case, is_before
from paceline.analysis.diagnosis.rules.finding import (
    Finding,
    main_operation,
    operation_text,
    origins_of,
    rank_roots,
    ranks_text,
)
from paceline.analysis.facts import SettingSeen, WorkTimeout
from paceline.contracts.verdicts import Action, ActionKind, Owner, SubReason, VerdictClass


def asked_to_end(case: Case) -> Finding | None:
    """Only a minority that does not wait itself and said so before anybody complained: else it is the end
    of a job that had failed already."""
    timeouts = case.of(WorkTimeout)
    waiting = {rank for fact in timeouts if (rank := case.rank_of(fact)) is not None}
    facts = [fact for fact in case.of(SettingSeen) if fact.name == "asked_to_end"]
    facts = [fact for fact in facts if all(is_before(fact, timeout) for timeout in timeouts)]
    ranks = sorted({rank for fact in facts if (rank := case.rank_of(fact)) is not None} - waiting)
    if not waiting or not ranks or len(ranks) > len(waiting):
        return None
    communicator, operation = main_operation(case)
    return Finding(
        reason="asked_to_end",
        verdict_class=VerdictClass.H1,
        sub_reason=SubReason.PROCESS_EXITED,
        roots=rank_roots(ranks, "asked to end from outside"),
        communicator=communicator,
        operation=operation,
        owner=Owner.HOST,
        action=Action(ActionKind.RESTART_PROCESS, ranks_text(ranks), "who ended it: scheduler, preemption"),
        confidence=0.8,
        grounds=(Ground("asked_to_end", f"{ranks_text(ranks)}: {facts[0].text[:120]}", origins_of(facts)),),
        summary=f"{ranks_text(ranks)} was asked to end from outside before the others began to wait in "
        f"{operation_text(operation)}",
    )
