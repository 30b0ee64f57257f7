"""What a rule returns, and the words that rules share."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from paceline.analysis.diagnosis.answer import Blame, Ground
from paceline.analysis.diagnosis.case import Case, Standing
from paceline.analysis.facts import Fact, GlooFailure, NetworkFailure, Origin, Work, WorkTimeout
from paceline.contracts.verdicts import (
    Action,
    ActionKind,
    Coverage,
    Operation,
    Owner,
    RootKind,
    SubReason,
    VerdictClass,
)

ORIGINS_MAX = 64  # kept with one ground
RANKS_SHOWN = 8


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A decision of one rule; `reason` names it."""

    reason: str
    verdict_class: VerdictClass
    summary: str
    sub_reason: SubReason = SubReason.NONE
    roots: tuple[Blame, ...] = ()
    victims: tuple[int, ...] | None = None  # None: every rank that complains and is no root
    communicator: str = ""
    operation: Operation | None = None
    phase: str = ""
    owner: Owner = Owner.UNKNOWN
    action: Action = field(default_factory=lambda: Action(ActionKind.COLLECT))
    confidence: float = 0.5
    grounds: tuple[Ground, ...] = ()
    would_decide: tuple[str, ...] = ()
    coverage: Coverage | None = None  # where the evidence itself says what it could see


Rule = Callable[[Case], Finding | None]


def rank_roots(ranks: Iterable[int], why: str = "") -> tuple[Blame, ...]:
    return tuple(Blame(RootKind.RANK, rank=rank, why=why) for rank in sorted(set(ranks)))


def origins_of(facts: Iterable[Fact]) -> tuple[Origin, ...]:
    return tuple(fact.origin for fact in facts)[:ORIGINS_MAX]


def ranks_text(ranks: Sequence[int]) -> str:
    """`rank 3`, `ranks 0 and 4`, `ranks 1, 2, 3 and 61 more`."""
    ordered = sorted(set(ranks))
    if len(ordered) == 1:
        return f"rank {ordered[0]}"
    if len(ordered) <= RANKS_SHOWN:
        return f"ranks {', '.join(map(str, ordered[:-1]))} and {ordered[-1]}"
    shown = ", ".join(map(str, ordered[: RANKS_SHOWN - 1]))
    return f"ranks {shown} and {len(ordered) - RANKS_SHOWN + 1} more"


def verb(ranks: Sequence[int], one: str, many: str) -> str:
    return one if len(set(ranks)) == 1 else many


def operation_of(case: Case, group: str, work: Work | None, sequence: int | None = None) -> Operation | None:
    """The operation in words of the contracts; None where nothing is known of it."""
    sequence = sequence if sequence is not None else (work.sequence if work else None)
    if work is None and sequence is None:
        return None
    view = case.groups.get(group)
    name = (view.description or view.name) if view else group
    return Operation(
        communicator=group,
        communicator_name=name,
        function=work.function if work else "",
        round=sequence or 0,
        size=view.size if view else 0,
        detail=_detail(work) if work else "",
    )


def operation_text(operation: Operation | None) -> str:
    """`broadcast 78 of default_pg`."""
    if operation is None:
        return "the next collective"
    words = [operation.function or "collective"]
    if operation.round or operation.function:
        words.append(str(operation.round))
    where = f" of {operation.communicator_name}" if operation.communicator_name else ""
    return " ".join(words) + where


def complaining(case: Case) -> list[int]:
    """Ranks that say they waited in vain, or lost a peer."""
    found: set[int] = set()
    for kind in (WorkTimeout, GlooFailure, NetworkFailure):
        found |= {rank for fact in case.of(kind) if (rank := case.rank_of(fact)) is not None}
    return sorted(found)


def waiters(case: Case, group: str, sequence: int) -> list[Standing]:
    """Members that entered `sequence` and have not left it."""
    return [
        standing
        for standing in case.standings(group)
        if (standing.enqueued or 0) >= sequence or (standing.work and standing.work.sequence == sequence)
    ]


def main_wait(case: Case) -> tuple[str, Standing] | None:
    """The wait where the chain begins: the first to be entered, and from there to the group in which the
    ranks that are absent wait themselves."""
    timed = [standing for standing in case.table.values() if standing.work is not None]
    if not timed:
        timed = [standing for standing in case.table.values() if standing.waits_in is not None]
    if not timed:
        return None
    group = _first_group(timed)
    visited: set[str] = set()
    while group not in visited:
        visited.add(group)
        oldest = _oldest(timed, group)
        inside = {s.rank for s in waiters(case, group, oldest.waits_in or 0)}
        spoken = {s.rank for s in case.standings(group)}
        absent = set(case.members(group)) - inside or spoken - inside or set(case.ranks_named) - inside
        onwards = [s for s in timed if s.rank in absent and s.group != group and s.work is not None]
        if not onwards or onwards[0].group in visited:
            return group, oldest
        group = onwards[0].group
    return group, _oldest(timed, group)


def waits_elsewhere(case: Case, rank: int, group: str) -> bool:
    """Whether this rank gave up on an operation of another group: it waits, it is not where it begins."""
    return rank in case.waiting_in and bool(case.waiting_in[rank] - {group})


def _first_group(timed: Sequence[Standing]) -> str:
    entered = [standing for standing in timed if standing.entered_s is not None]
    if entered and len({standing.clock for standing in entered}) == 1:
        first = min(entered, key=lambda standing: (round(standing.entered_s or 0.0), standing.waits_in or 0))
        return first.group
    count = Counter(standing.group for standing in timed)
    return min(
        timed, key=lambda standing: (-count[standing.group], standing.waits_in or 0, standing.rank)
    ).group


def _oldest(timed: Sequence[Standing], group: str) -> Standing:
    same = [standing for standing in timed if standing.group == group]
    return min(same, key=lambda standing: standing.waits_in if standing.waits_in is not None else 1 << 62)


def main_operation(case: Case) -> tuple[str, Operation | None]:
    """Communicator and operation of the main wait, empty where nobody waits."""
    wait = main_wait(case)
    if wait is None:
        return "", None
    group, standing = wait
    operation = operation_of(case, group, standing.work, standing.waits_in)
    return (operation.communicator_name if operation else group), operation


def _detail(work: Work) -> str:
    if work.shapes:
        return f"{work.dtype} {work.shapes}".strip()
    counts = [
        f"{work.count_in} in" if work.count_in is not None else "",
        f"{work.count_out} out" if work.count_out is not None else "",
    ]
    return ", ".join(count for count in counts if count)
