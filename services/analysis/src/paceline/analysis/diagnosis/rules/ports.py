"""Ports that went down or flap, of the adapters that the job uses, at the time when it failed."""

from collections import Counter, defaultdict
from collections.abc import Sequence

from paceline.analysis.adapters.kernel_network import KERNEL
from paceline.analysis.diagnosis.answer import Blame, Ground
from paceline.analysis.diagnosis.case import Case, first_and_last, seconds_after
from paceline.analysis.diagnosis.rules.finding import Finding, main_operation, origins_of
from paceline.analysis.facts import (
    Fact,
    NetworkFailure,
    NetworkKind,
    ProgressSeen,
    SettingSeen,
    WorkTimeout,
)
from paceline.contracts.verdicts import Action, ActionKind, Owner, RootKind, SubReason, VerdictClass

_UP = frozenset({"active", "linkup", "link_up"})
_SKEW_S = 60.0
_RELEVANT_S = 7200.0  # a timeout of two hours is the longest that is usual


def port_events(case: Case) -> Finding | None:
    """Ports that went down or flap: the places that say so, not those that print the failed completion."""
    every = [f for f in case.of(NetworkFailure) if f.kind is NetworkKind.PORT]
    events = _of_the_job(case, every) if every else []
    if not events:
        return None
    count = Counter((f.speaker.host, f.device or index_of(f)) for f in events)
    roots = tuple(
        Blame(RootKind.NODE, node=host, name=device, why=f"{times} port events")
        for (host, device), times in sorted(count.items(), key=lambda item: (-item[1], item[0]))
    )
    merged = _by_node(roots)
    completions = [f for f in case.of(NetworkFailure) if f.kind is NetworkKind.COMPLETION]
    nodes = ", ".join(root.node or "a node" for root in merged)
    communicator, operation = main_operation(case)
    return Finding(
        reason="port_events",
        verdict_class=VerdictClass.H3,
        sub_reason=SubReason.MISSING_EXIT,
        roots=merged,
        communicator=communicator,
        operation=operation,
        phase="inter-node collective",
        owner=Owner.FABRIC,
        action=Action(
            ActionKind.NETWORK_TICKET, nodes, "switch ports and cables of these adapters (ibqueryerrors)"
        ),
        confidence=0.85,
        grounds=(
            Ground("port_event", f"port events on {nodes}", origins_of(events)),
            *(
                (
                    Ground(
                        "completion",
                        f"{len(completions)} failed completions follow; they name the other end",
                        origins_of(completions),
                    ),
                )
                if completions
                else ()
            ),
        ),
        summary=f"Network ports went down or flap on {nodes}; failed completions elsewhere are the "
        "consequence",
    )


def index_of(fact: NetworkFailure) -> str:
    """The CUDA device of the line."""
    return "" if fact.speaker.local_rank is None else str(fact.speaker.local_rank)


def _of_the_job(case: Case, events: Sequence[NetworkFailure]) -> list[NetworkFailure]:
    """Without ports that nobody uses, events that steps came after, and a kernel's words of another time."""
    steps = first_and_last(case.of(ProgressSeen))
    complaints: list[Fact] = [*case.of(WorkTimeout)]
    complaints += [f for f in case.of(NetworkFailure) if not f.text.startswith(KERNEL)]
    bounds = first_and_last(complaints)
    unused = _unused(case)
    found: list[NetworkFailure] = []
    for event in events:
        state = event.text.split(" ")[0] if event.text.startswith(f"{event.device}/") else ""
        if state in unused:
            continue
        if event.text.startswith(KERNEL):
            gaps = [gap for fact in bounds if (gap := seconds_after(event, fact)) is not None]
            apart = bool(gaps) and (max(gaps) < -_SKEW_S or min(gaps) > _RELEVANT_S)
            if apart or not complaints:
                continue
        elif any((seconds_after(event, step) or 0.0) > _SKEW_S for step in steps):
            continue
        found.append(event)
    return found


def _unused(case: Case) -> set[str]:
    """Ports that listings show as down on every node, or that no transfer and no NCCL line names."""
    listed: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    used: set[str] = set()
    for fact in case.of(SettingSeen):
        if fact.name == "ib_port":
            port, _, state = fact.value.partition(" ")
            listed[port][fact.speaker.host or fact.origin.file].add(state)
        elif fact.name == "ib_devices":
            used |= set(fact.value.split(","))
    failed = {f.device for f in case.of(NetworkFailure) if f.kind is NetworkKind.COMPLETION}
    unused: set[str] = set()
    for port, places in listed.items():
        named = port.split("/")[0] in used | failed or "" in failed
        up = any(states <= _UP for states in places.values())
        if (len(places) > 1 and not up) or (len(places) == 1 and not named):
            unused.add(port)
    return unused


def _by_node(roots: tuple[Blame, ...]) -> tuple[Blame, ...]:
    nodes: dict[str, list[str]] = defaultdict(list)
    for root in roots:
        nodes[root.node].append(root.name)
    return tuple(
        Blame(RootKind.NODE, node=node, name=", ".join(name for name in names if name), why="port events")
        for node, names in nodes.items()
    )
