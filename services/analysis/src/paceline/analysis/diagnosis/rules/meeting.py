"""Why processes did not come together: a port that is taken, a name nobody knows, the wrong interface."""

import re
from collections import defaultdict

from paceline.analysis.diagnosis.answer import Blame, Ground
from paceline.analysis.diagnosis.case import Case
from paceline.analysis.diagnosis.rules.finding import Finding, complaining, origins_of, rank_roots, ranks_text
from paceline.analysis.facts import (
    BarrierReport,
    GlooFailure,
    GlooKind,
    Membership,
    NetworkFailure,
    NetworkKind,
    SettingSeen,
    WorkTimeout,
)
from paceline.contracts.verdicts import Action, ActionKind, Owner, RootKind, SubReason, VerdictClass

_VIRTUAL = re.compile(
    r"(?:docker|lo\b|virbr|veth|cni|flannel|br-|podman|tailscale|tun\d|tap\d|wg\d|vnet|kube|cali|lxc|dummy)"
)
_NUMERIC = re.compile(r"\d{1,3}(?:\.\d{1,3}){3}|\[")
_LOOPBACK = re.compile(r"127\.|\[?::1\b|localhost")


def launch_failed(case: Case) -> Finding | None:
    """srun or ssh could not start processes on a node: its daemon cannot be reached, or refuses."""
    facts = [fact for fact in case.of(SettingSeen) if fact.name == "launch_failed"]
    nodes = sorted({fact.speaker.host for fact in facts})
    if not nodes or case.of(WorkTimeout):
        return None
    why = facts[0].value
    who = ", ".join(nodes[:8])
    return Finding(
        reason="launch_failed",
        verdict_class=VerdictClass.H1,
        sub_reason=SubReason.BOOTSTRAP,
        roots=tuple(Blame(RootKind.NODE, node=node, why=why) for node in nodes[:8]),
        victims=(),
        phase="launch of the job step (init)",
        owner=Owner.HOST,
        action=Action(
            ActionKind.COLLECT, who, "its daemon (slurmd, sshd), network and clock; leave it out meanwhile"
        ),
        confidence=0.8,
        grounds=(Ground("launch", facts[0].text[:200], origins_of(facts)),),
        summary=f"The job never started: the launch of its processes failed on {who} ({why})",
    )


def port_taken(case: Case) -> Finding | None:
    """The store's server could not listen: an older process, or a second job, has its port."""
    facts = [fact for fact in case.of(SettingSeen) if fact.name == "port_in_use"]
    if not facts or case.of(WorkTimeout):
        return None
    ranks = sorted({rank for fact in facts if (rank := case.rank_of(fact)) is not None})
    port = next((fact.value for fact in facts if fact.value), "")
    what = f"port {port}" if port else "the port of the rendezvous"
    lone = ranks if len(ranks) == 1 else []
    return Finding(
        reason="port_taken",
        verdict_class=VerdictClass.H1,
        sub_reason=SubReason.BOOTSTRAP,
        roots=rank_roots(lone, f"cannot listen: {what} is in use")
        or (Blame(RootKind.CONFIGURATION, name=f"{what} is in use", why="an older process or a second job"),),
        victims=tuple(rank for rank in complaining(case) if rank not in lone),
        phase="rendezvous (init)",
        owner=Owner.USER_CODE,
        action=Action(
            ActionKind.FIX_CONFIGURATION,
            what,
            "end the process that holds it, or give the job another port (rdzv endpoint, MASTER_PORT)",
        ),
        confidence=0.9,
        grounds=(Ground("in_use", facts[0].text[:200], origins_of(facts)),),
        summary=f"The rendezvous cannot begin: {what} is already in use"
        + (f" where {ranks_text(lone)} should listen" if lone else "")
        + "; the others only cannot connect",
    )


def name_unknown(case: Case) -> Finding | None:
    """A process could not resolve the rendezvous host's name, and never joined."""
    facts = [fact for fact in case.of(SettingSeen) if fact.name == "name_unresolved"]
    late = [fact for fact in case.of(NetworkFailure) if fact.kind is NetworkKind.RENDEZVOUS]
    failed = {fact.origin.file for fact in late}
    facts = [fact for fact in facts if fact.origin.file in failed]
    if not facts or case.of(WorkTimeout):
        return None
    name = facts[0].value
    files = sorted({fact.origin.file.rpartition("/")[2] for fact in facts})
    where = ", ".join(files[:4]) if len(failed) > len(files) else ""
    return Finding(
        reason="name_unknown",
        verdict_class=VerdictClass.H1,
        sub_reason=SubReason.BOOTSTRAP,
        roots=(
            Blame(
                RootKind.CONFIGURATION,
                name=f"the name {name} cannot be resolved" + (f" (in {where})" if where else ""),
            ),
        ),
        victims=(),
        phase="rendezvous (init)",
        owner=Owner.HOST,
        action=Action(
            ActionKind.FIX_CONFIGURATION, name, "name service, /etc/hosts, or the address instead of the name"
        ),
        confidence=0.8,
        grounds=(Ground("unresolved", facts[0].text[:200], origins_of(facts)),),
        summary=f"The job never came together: {name} cannot be resolved"
        + (f" by the process of {where}" if where else "")
        + "; who joined only waited",
    )


def endpoints_disagree(case: Case) -> Finding | None:
    """Nodes that were started with another master or rendezvous endpoint than the rest."""
    late = [fact for fact in case.of(NetworkFailure) if fact.kind is NetworkKind.RENDEZVOUS]
    reports = [f for f in case.of(BarrierReport) if f.arrived is not None and f.expected]
    if not (late or reports) or case.of(WorkTimeout):
        return None
    said = [fact for fact in case.of(SettingSeen) if fact.name in ("master", "endpoint_used")]
    by_value: dict[str, list[SettingSeen]] = defaultdict(list)
    for fact in said:
        by_value[fact.value].append(fact)
    values = [value for value in by_value if not _LOOPBACK.search(value)]
    alike = {bool(_NUMERIC.match(value)) for value in values}  # a name and an address may be the same machine
    places = {(fact.origin.file, fact.speaker.host) for fact in said}
    if len(values) < 2 or len(alike) > 1 or len(places) < 2:
        return None
    failing = [value for value in values if any(_same_end(value, fact.peer) for fact in late)]
    odd = failing if 0 < len(failing) < len(values) else sorted(values, key=lambda v: len(by_value[v]))[:1]
    rest = [value for value in values if value not in odd]
    words = f"{', '.join(odd[:4])} against {', '.join(rest[:4])}"
    return Finding(
        reason="endpoints_disagree",
        verdict_class=VerdictClass.H1,
        sub_reason=SubReason.BOOTSTRAP,
        roots=(Blame(RootKind.CONFIGURATION, name=f"rendezvous endpoint {words}"),),
        victims=(),
        phase="rendezvous (init)",
        owner=Owner.USER_CODE,
        action=Action(
            ActionKind.FIX_CONFIGURATION,
            words,
            "one MASTER_ADDR and MASTER_PORT (rdzv endpoint) on all nodes",
        ),
        confidence=0.8,
        grounds=(Ground("endpoints", f"processes were started with {words}", origins_of(said)),),
        summary=f"The job never came together: its processes use different endpoints ({words}); "
        "no machine is to blame",
    )


def _same_end(value: str, peer: str) -> bool:
    host, _, port = value.partition(":")
    other, _, number = peer.partition(":")
    return host == other and (port in ("0", number))


def loopback_address(case: Case) -> Finding | None:
    """gloo's pairs connect to a loopback address: the host's own name resolves to it."""
    failed = [f for f in case.of(GlooFailure) if f.kind is GlooKind.CONNECT and _LOOPBACK.match(f.peer)]
    if not failed or case.of(WorkTimeout):
        return None
    address = failed[0].peer.rpartition(":")[0]
    return Finding(
        reason="loopback_address",
        verdict_class=VerdictClass.H3,
        sub_reason=SubReason.BOOTSTRAP,
        roots=(
            Blame(
                RootKind.CONFIGURATION,
                name=f"a host's name resolves to {address}",
                why="peers cannot reach it",
            ),
        ),
        phase="init (gloo connects its pairs)",
        owner=Owner.HOST,
        action=Action(
            ActionKind.FIX_CONFIGURATION, address, "GLOO_SOCKET_IFNAME, or the host's name in /etc/hosts"
        ),
        confidence=0.65,
        grounds=(Ground("connect", f"gloo connects to {failed[0].peer}", origins_of(failed)),),
        summary=f"gloo connects to {address}: a host's name resolves to its loopback address, and peers "
        "cannot reach it; no machine is to blame",
        would_decide=("the output of `getent hosts $(hostname)` on every node",),
    )


def wrong_interface(case: Case) -> Finding | None:
    """Processes that offer an address their peers cannot reach: a bridge, a loopback, another network."""
    said = [fact for fact in case.of(SettingSeen) if fact.name == "own_interface"]
    failed = [fact for fact in case.of(NetworkFailure) if fact.kind is NetworkKind.TIMEOUT and fact.peer]
    done = any(fact.complete for fact in case.of(Membership))
    begun = any(fact.complete is False for fact in case.of(Membership))
    if not said or done or not (failed or begun):
        return None
    by_host: dict[str, set[str]] = defaultdict(set)
    for fact in said:
        by_host[fact.speaker.host].add(fact.value)
    asked = {fact.peer.split("<")[0] for fact in failed}
    odd = {
        host: value
        for host, values in by_host.items()
        for value in values
        if _VIRTUAL.match(value) or _LOOPBACK.search(value.partition(":")[2])
    }
    names = {value.partition(":")[0] for values in by_host.values() for value in values}
    if len(by_host) < 2 and not asked & {value.partition(":")[2] for value in odd.values()}:
        return None
    if not odd:
        odd = {
            host: value
            for host, values in by_host.items()
            for value in values
            if value.partition(":")[2] in asked and len(names) > 1
        }
    if not odd:
        return None
    words = ", ".join(f"{value.partition(':')[0]} on {host}" for host, value in sorted(odd.items())[:4])
    facts = [fact for fact in said if fact.value in odd.values()]
    return Finding(
        reason="wrong_interface",
        verdict_class=VerdictClass.H3,
        sub_reason=SubReason.BOOTSTRAP,
        roots=(
            Blame(
                RootKind.CONFIGURATION,
                name=f"NCCL_SOCKET_IFNAME: {words}",
                why="its peers cannot reach that address",
            ),
        ),
        phase="init (bootstrap of the communicator)",
        owner=Owner.HOST,
        action=Action(
            ActionKind.FIX_CONFIGURATION,
            words,
            "name the interface that all hosts share (NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME)",
        ),
        confidence=0.8,
        grounds=(
            Ground("interface", f"{words}; others use {', '.join(sorted(names)[:4])}", origins_of(facts)),
            *((Ground("connect", failed[0].text[:160], origins_of(failed)),) if failed else ()),
        ),
        summary=f"The bootstrap uses the wrong interface ({words}): its peers cannot connect to it; "
        "no machine is to blame",
    )
