"""Everybody entered and nothing moves: network failures first, then communicators that hold each other."""

from collections import Counter, defaultdict
from collections.abc import Sequence

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
from paceline.analysis.diagnosis.rules.ports import index_of
from paceline.analysis.diagnosis.rules.start import is_store_wait
from paceline.analysis.facts import (
    NetworkFailure,
    NetworkKind,
    SettingSeen,
    WorkTimeout,
)
from paceline.contracts.verdicts import Action, ActionKind, Owner, RootKind, SubReason, VerdictClass

_RETRIES = 12  # IBV_WC_RETRY_EXC_ERR: the other end did not acknowledge
_FLUSHED = 5  # IBV_WC_WR_FLUSH_ERR: another work of the same queue pair had failed
_LOCAL = {1: "local length", 2: "local queue pair operation", 4: "local protection", 6: "memory window"}
_CONCURRENT = 2


def completions(case: Case) -> Finding | None:
    """InfiniBand completions with an error: a path between two ends, neither of which is proven guilty."""
    failed = first_completions([f for f in case.of(NetworkFailure) if f.kind is NetworkKind.COMPLETION])
    if not failed:
        return None
    if all(f.status in _LOCAL for f in failed):
        return _local(case, failed)
    seen = Counter((f.speaker.host, index_of(f)) for f in failed)
    peers = Counter(f.peer.split("<")[0] for f in failed if f.peer)
    peer = peers.most_common(1)[0][0] if peers else ""
    far = shared_peer(
        [(f.speaker.host or f.origin.file, f.peer.split("<")[0]) for f in failed if f.peer], _addresses(case)
    )
    rail = _rail(failed)
    roots = (
        (Blame(RootKind.NODE, node=far, why="far end of all failed completions"),)
        if far
        else (Blame(RootKind.DOMAIN, name=f"rail of {rail}", why="that adapter fails on every node"),)
        if rail
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


def first_completions(failed: Sequence[NetworkFailure]) -> list[NetworkFailure]:
    """Without the flushed ones, which every queue pair gives after its first failure."""
    return [f for f in failed if f.status != _FLUSHED] or list(failed)


def _rail(failed: Sequence[NetworkFailure]) -> str:
    """The one adapter that fails on several hosts towards several peers: the switch of its rail."""
    devices = {f.device for f in failed}
    hosts, peers = {f.speaker.host for f in failed}, {f.peer.split("<")[0] for f in failed}
    return (
        devices.pop() if len(devices) == 1 and len(hosts) > _CONCURRENT and len(peers) > _CONCURRENT else ""
    )


def _local(case: Case, failed: Sequence[NetworkFailure]) -> Finding:
    """The speaker's own adapter or memory refused the work: no path is to blame."""
    hosts = sorted({f.speaker.host for f in failed if f.speaker.host})
    status = Counter(f.status for f in failed).most_common(1)[0][0]
    words = f"status {status}: {_LOCAL[status or 0]}"
    everywhere = len(hosts) != 1
    communicator, operation = main_operation(case)
    advice = "registration of GPU memory (peer memory module or dma-buf, ACS, IOMMU), adapter's driver"
    where = ", ".join(hosts[:8]) or "a node"
    return Finding(
        reason="local_completions",
        verdict_class=VerdictClass.H3,
        sub_reason=SubReason.MISSING_EXIT,
        roots=(Blame(RootKind.CONFIGURATION, name="memory registration of all hosts alike", why=words),)
        if everywhere
        else (Blame(RootKind.NODE, node=hosts[0], name=_device(list(failed), hosts[0], ""), why=words),),
        communicator=communicator,
        operation=operation,
        phase="inter-node transfer",
        owner=Owner.HOST,
        action=Action(ActionKind.FIX_CONFIGURATION, where, advice),
        confidence=0.7,
        grounds=(Ground("completion", f"{words}, {len(failed)} times on {where}", origins_of(failed)),),
        summary=f"Transfers fail on their own side ({words}) on {where}: {advice}; no path is to blame",
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
    said = {
        (f.speaker.host, f.value) for f in case.of(SettingSeen) if f.name == "own_address" and f.speaker.host
    }
    shared = {value for _, value in said if sum(value == other for _, other in said) > 1}
    if peer in shared:
        return _shared_address(peer, failed)
    addresses = _addresses(case)
    far = shared_peer([(f.speaker.host, f.peer.split("<")[0]) for f in failed if f.peer], addresses)
    return Finding(
        reason="connects",
        verdict_class=VerdictClass.H3,
        sub_reason=SubReason.LAZY_CONNECT,
        roots=(Blame(RootKind.NODE, node=far, name=peer, why="nobody can connect to it"),)
        if far
        else (Blame(RootKind.LINK, name=f"connection to {peer}", why=f"{len(failed)} connects failed"),),
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


def _shared_address(peer: str, failed: Sequence[NetworkFailure]) -> Finding:
    """Several hosts chose an interface that has the same address on each: a bridge of containers."""
    return Finding(
        reason="shared_address",
        verdict_class=VerdictClass.H3,
        sub_reason=SubReason.BOOTSTRAP,
        roots=(
            Blame(RootKind.CONFIGURATION, name=f"interface with {peer} on several hosts", why="a bridge"),
        ),
        victims=(),
        phase="connection setup (bootstrap)",
        owner=Owner.HOST,
        action=Action(
            ActionKind.FIX_CONFIGURATION, "NCCL_SOCKET_IFNAME", "name the interface between the hosts"
        ),
        confidence=0.85,
        grounds=(Ground("connect", failed[0].text[:200], origins_of(failed)),),
        summary=f"Several hosts use {peer} as their own address (a bridge of containers): set "
        "NCCL_SOCKET_IFNAME to the interface that connects them",
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


def _device(facts: list[NetworkFailure], host: str, gpu: str) -> str:
    return next((f.device for f in facts if f.device and f.speaker.host == host and index_of(f) == gpu), "")


def _rank_at(case: Case, facts: list[NetworkFailure], host: str, gpu: str) -> int | None:
    return next((case.rank_of(f) for f in facts if f.speaker.host == host and index_of(f) == gpu), None)
