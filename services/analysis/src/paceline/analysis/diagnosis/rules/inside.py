"""Everybody entered and nothing moves: network failures first, then communicators that hold each other."""

from collections import Counter, defaultdict

from paceline.analysis.diagnosis.answer import Blame, Ground
from paceline.analysis.diagnosis.case import DEFAULT_GROUP, Case
from paceline.analysis.diagnosis.rules.differ import shared_peer
from paceline.analysis.diagnosis.rules.finding import (
    Finding,
    main_operation,
    operation_text,
    origins_of,
    ranks_text,
)
from paceline.analysis.diagnosis.rules.start import is_store_wait
from paceline.analysis.facts import NetworkFailure, NetworkKind, SettingSeen, WorkTimeout
from paceline.contracts.verdicts import Action, ActionKind, Owner, RootKind, SubReason, VerdictClass

_RETRIES = 12  # IBV_WC_RETRY_EXC_ERR: the other end did not acknowledge
_CONCURRENT = 2


def port_events(case: Case) -> Finding | None:
    """Ports that went down or flap: the places that say so, not those that print the failed completion."""
    events = [f for f in case.of(NetworkFailure) if f.kind is NetworkKind.PORT]
    if not events:
        return None
    count = Counter((f.speaker.host, f.device or _index(f)) for f in events)
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


def completions(case: Case) -> Finding | None:
    """InfiniBand completions with an error: a path between two ends, neither of which is proven guilty."""
    failed = [f for f in case.of(NetworkFailure) if f.kind is NetworkKind.COMPLETION]
    if not failed:
        return None
    seen = Counter((f.speaker.host, _index(f)) for f in failed)
    peers = Counter(f.peer.split("<")[0] for f in failed if f.peer)
    peer = peers.most_common(1)[0][0] if peers else ""
    far = shared_peer([(f.speaker.host, f.peer.split("<")[0]) for f in failed if f.peer], _addresses(case))
    roots = (
        (Blame(RootKind.NODE, node=far, why="far end of all failed completions"),)
        if far
        else tuple(
            Blame(
                RootKind.LINK,
                rank=_rank_at(case, failed, host, gpu),
                node=host,
                gpu=gpu,
                name=" ".join(
                    part for part in (_device(failed, host, gpu), f"to {peer}" if peer else "") if part
                ),
                why=f"{times} failed completions",
            )
            for (host, gpu), times in seen.most_common(8)
        )
    )
    status = Counter(f.status for f in failed).most_common(1)[0][0]
    meaning = "retries exceeded: the peer did not acknowledge" if status == _RETRIES else f"status {status}"
    places = [f"{host or 'a node'} GPU {gpu}".strip() for (host, gpu), _ in seen.most_common(8)]
    where = ", ".join(places)
    communicator, operation = main_operation(case)
    return Finding(
        reason="completions",
        verdict_class=VerdictClass.H3,
        sub_reason=SubReason.MISSING_EXIT,
        roots=roots,
        communicator=communicator,
        operation=operation,
        phase="inter-node transfer",
        owner=Owner.FABRIC,
        action=Action(
            ActionKind.NETWORK_TICKET, where, f"the path to {peer or 'the peer'}: adapter, cable, switch port"
        ),
        confidence=0.8,
        grounds=(
            Ground(
                "completion",
                f"status {status} ({meaning}) towards {peer or 'a peer'}, {len(failed)} times; opcode "
                "and length mean nothing",
                origins_of(failed),
            ),
        ),
        summary=f"The path from {where} to {peer or 'its peer'} failed ({meaning})",
        would_decide=("counters of both ends' adapters and switch ports",),
    )


def _addresses(case: Case) -> dict[str, str]:
    """Host by the address of its bootstrap."""
    said = [fact for fact in case.of(SettingSeen) if fact.name == "own_address" and fact.speaker.host]
    return {fact.value: fact.speaker.host for fact in said}


def connects(case: Case) -> Finding | None:
    """NCCL could not connect to a peer's address: an interface, a firewall, or the peer is gone."""
    failed = [f for f in case.of(NetworkFailure) if f.kind is NetworkKind.TIMEOUT and not is_store_wait(f)]
    if not failed:
        return None
    peers = Counter(f.peer.split("<")[0] for f in failed if f.peer)
    peer = peers.most_common(1)[0][0] if peers else "a peer"
    return Finding(
        reason="connects",
        verdict_class=VerdictClass.H3,
        sub_reason=SubReason.LAZY_CONNECT,
        roots=(Blame(RootKind.LINK, name=f"connection to {peer}", why=f"{len(failed)} connects failed"),),
        phase="connection setup",
        owner=Owner.FABRIC,
        action=Action(
            ActionKind.NETWORK_TICKET,
            peer,
            "interface choice (NCCL_SOCKET_IFNAME), routes, firewall; is the peer alive",
        ),
        confidence=0.6,
        grounds=(Ground("connect", failed[0].text[:160], origins_of(failed)),),
        summary=f"Connections to {peer} fail: a network path, an interface choice, or that process is gone",
        would_decide=("the log of the process at that address",),
    )


def everybody_inside(case: Case) -> Finding | None:
    """All members of every waiting group report the same place: the stall is inside the operations."""
    waits: dict[str, dict[int, int]] = defaultdict(dict)
    for (group, rank), standing in case.table.items():
        if standing.work is not None and standing.waits_in is not None:
            waits[group][rank] = standing.waits_in
    if not waits:
        return None
    whole = {group for group, members in waits.items() if _is_whole(case, group, set(members))}
    alike = {group for group in whole if len(set(waits[group].values())) == 1}
    if not alike or alike != set(waits):
        return None
    ranks = sorted({rank for group in alike for rank in waits[group]})
    if len(ranks) < 2:
        return None
    several = len(alike) >= _CONCURRENT
    communicator, operation = main_operation(case)
    names = ", ".join(sorted((case.groups[g].description or g) if g in case.groups else g for g in alike))
    return Finding(
        reason="everybody_inside",
        verdict_class=VerdictClass.H3,
        sub_reason=SubReason.QUEUE_EXHAUSTION if several else SubReason.ALL_RANKS_STUCK,
        roots=(
            Blame(
                RootKind.CONFIGURATION,
                name=f"concurrent collectives on {names}",
                ranks=(),
                why="all ranks alike; no rank is to blame",
            )
            if several
            else Blame(RootKind.NONE, name="no rank differs", why="all entered alike"),
        ),
        victims=tuple(ranks),
        communicator=communicator,
        operation=operation,
        phase=f"concurrent collectives on {len(alike)} communicators" if several else "",
        owner=Owner.FRAMEWORK if several else Owner.FABRIC,
        action=Action(
            ActionKind.FIX_CONFIGURATION if several else ActionKind.COLLECT,
            "",
            "one launch order over communicators (NCCL_LAUNCH_ORDER_IMPLICIT=1), or one stream after "
            "the other"
            if several
            else "NCCL's network log and device state of all ranks",
        ),
        confidence=0.8 if several else 0.6,
        grounds=(
            Ground(
                "alike",
                f"{ranks_text(ranks)} stand at the same sequence on {names}",
                origins_of(case.of(WorkTimeout)),
            ),
        ),
        summary=(
            f"All ranks entered the same operations on {len(alike)} communicators and none ends: "
            "they hold each other's device resources; no rank is at fault"
            if several
            else f"All ranks entered {operation_text(operation)} alike and none ends"
        ),
        would_decide=() if several else ("NCCL_DEBUG=INFO with SUBSYS=NET, device telemetry, kernel logs",),
    )


def _is_whole(case: Case, group: str, members: set[int]) -> bool:
    """Whether every member speaks; where nobody knows the members, their places in the group have no gap.

    A last rank that is missing cannot be seen so, save that one less than a power of two is no group's size.
    """
    known = set(case.members(group))
    if known:
        return members >= known
    said = (case.table[group, rank].place for rank in members)
    everybody = group in ("", DEFAULT_GROUP)
    places = members if everybody else {place for place in said if place is not None}
    if everybody and not set(case.ranks_named) <= places:
        return False  # somebody else speaks, and does not wait
    count = len(places)
    return count >= 2 and places == set(range(count)) and not _lacks_one(count)


def _lacks_one(count: int) -> bool:
    return count > 2 and (count + 1) & count == 0


def _by_node(roots: tuple[Blame, ...]) -> tuple[Blame, ...]:
    nodes: dict[str, list[str]] = defaultdict(list)
    for root in roots:
        nodes[root.node].append(root.name)
    return tuple(
        Blame(RootKind.NODE, node=node, name=", ".join(name for name in names if name), why="port events")
        for node, names in nodes.items()
    )


def _index(fact: NetworkFailure) -> str:
    return "" if fact.speaker.local_rank is None else str(fact.speaker.local_rank)


def _device(facts: list[NetworkFailure], host: str, gpu: str) -> str:
    return next((f.device for f in facts if f.device and f.speaker.host == host and _index(f) == gpu), "")


def _rank_at(case: Case, facts: list[NetworkFailure], host: str, gpu: str) -> int | None:
    return next((case.rank_of(f) for f in facts if f.speaker.host == host and _index(f) == gpu), None)
