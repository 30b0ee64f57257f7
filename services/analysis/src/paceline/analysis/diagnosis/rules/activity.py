"""The last thing that a rank was seen at."""

from paceline.analysis.diagnosis.case import Case
from paceline.analysis.facts import (
    Fact,
    PhaseKind,
    PhaseSeen,
    ProgressSeen,
)
from paceline.contracts.verdicts import (
    Owner,
)


def last_phase(case: Case, ranks: set[int]) -> PhaseSeen | ProgressSeen | None:
    """The last thing that was under way and whose end nobody reports, of these ranks or of nobody named."""
    found: PhaseSeen | ProgressSeen | None = None
    for fact in case.facts:
        if isinstance(fact, PhaseSeen | ProgressSeen) and case.rank_of(fact) in (*ranks, None):
            if isinstance(fact, PhaseSeen):
                found = None if fact.ended else fact
            elif fact.what and not fact.what.startswith("iteration") and fact.done != fact.total:
                found = fact
    return found


def words_of(fact: Fact | None) -> str:
    if isinstance(fact, ProgressSeen):
        total = f"/{fact.total}" if fact.total is not None else ""
        return f"{fact.what} {fact.done}{total}".strip()
    text = str(getattr(fact, "text", ""))
    return text[:160] if text else (fact.kind.value if isinstance(fact, PhaseSeen) else "")


def owner_of(phase: PhaseSeen | ProgressSeen | None) -> Owner:
    if isinstance(phase, PhaseSeen) and phase.kind is PhaseKind.CHECKPOINT:
        return Owner.STORAGE
    return Owner.USER_CODE
