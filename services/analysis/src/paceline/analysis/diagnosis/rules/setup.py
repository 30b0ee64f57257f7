"""Setups that differ between the processes of one job: library versions, NCCL's environment."""

from collections import Counter, defaultdict

from paceline.analysis.diagnosis.answer import Blame, Ground
from paceline.analysis.diagnosis.case import Case
from paceline.analysis.diagnosis.rules.finding import (
    Finding,
    complaining,
    main_operation,
    operation_text,
    origins_of,
)
from paceline.analysis.facts import Fact, Membership, NetworkFailure, SettingSeen, WorkTimeout
from paceline.contracts.verdicts import Action, ActionKind, Owner, RootKind, SubReason, VerdictClass

_LOCAL = ("DEBUG", "TOPO", "GRAPH_FILE", "IB_HCA", "SOCKET_IFNAME", "HOSTID", "CONF_FILE", "SET_THREAD_NAME")
SHOWN = 8


def differs_and_calls(case: Case) -> Finding | None:
    """As `differs`, of libraries, where the ranks also wait in different operations of one sequence."""
    calls: dict[int | None, set[str]] = defaultdict(set)
    for timeout in case.of(WorkTimeout):
        calls[timeout.work.sequence].add(timeout.work.function)
    return differs(case) if any(len(functions) > 1 for functions in calls.values()) else None


def differs(case: Case) -> Finding | None:
    """A job that stands or fails, whose processes were not set up alike; what every host may have its own of
    (adapters, interfaces, logs) does not count."""
    begun = any(fact.complete is False for fact in case.of(Membership))
    if not (complaining(case) or begun or case.of(NetworkFailure)):
        return None
    by_name: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    facts: dict[str, list[SettingSeen]] = defaultdict(list)
    for fact in case.of(SettingSeen):
        who = _who(case, fact)
        if fact.name not in ("library", "nccl_env") or not who:
            continue
        name, value = fact.value.split("=" if fact.name == "nccl_env" else " ", 1)
        if not any(word in name for word in _LOCAL):
            by_name[name][value].add(who)
            facts[name].append(fact)
    for name, values in sorted(by_name.items(), key=lambda item: item[0].startswith("NCCL_")):
        if len(values) < 2 or len(values) > SHOWN or _is_mixed(values):
            continue
        return _finding(case, name, values, facts[name])
    return None


def _who(case: Case, fact: Fact) -> str:
    rank = case.rank_of(fact)
    return fact.speaker.host or (f"rank {rank}" if rank is not None else "")


def _is_mixed(values: dict[str, set[str]]) -> bool:
    """The same process says two values: it prints something else, or changes it while it runs."""
    count = Counter(who for whos in values.values() for who in whos)
    return any(times > 1 for times in count.values())


def _finding(case: Case, name: str, values: dict[str, set[str]], facts: list[SettingSeen]) -> Finding:
    ordered = sorted(values.items(), key=lambda item: len(item[1]))
    words = ", ".join(f"{value} on {_names(whos)}" for value, whos in ordered)
    communicator, operation = main_operation(case)
    network = bool(case.of(NetworkFailure))
    where = f"; the job stands in {operation_text(operation)}" if operation else ""
    return Finding(
        reason="setup_differs",
        verdict_class=VerdictClass.H3 if network else VerdictClass.H2,
        sub_reason=SubReason.BOOTSTRAP if network else SubReason.OPERATION_MISMATCH,
        roots=(Blame(RootKind.CONFIGURATION, name=f"{name} differs: {words}"),),
        communicator=communicator,
        operation=operation,
        phase="inter-node transfer (net)" if network else "",
        owner=Owner.FRAMEWORK,
        action=Action(ActionKind.FIX_CONFIGURATION, name, "one value on all processes"),
        confidence=0.7,
        grounds=(Ground("setup", f"{name}: {words}", origins_of(facts)),),
        summary=f"The processes of the job are not set up alike: {name} is {words}{where}",
    )


def _names(whos: set[str]) -> str:
    ordered = sorted(whos, key=lambda who: (len(who), who))
    return ", ".join(ordered[:4]) + (f" and {len(ordered) - 4} more" if len(ordered) > 4 else "")
