"""Before the first collective: endpoints that differ, members that never came, an init that never ends."""

import re
from collections import Counter, defaultdict

from paceline.analysis.diagnosis.answer import Blame, Ground
from paceline.analysis.diagnosis.case import Case
from paceline.analysis.diagnosis.rules.finding import Finding, origins_of, rank_roots, ranks_text
from paceline.analysis.facts import (
    BarrierReport,
    Fact,
    Membership,
    NetworkFailure,
    NetworkKind,
    SettingSeen,
    WorkTimeout,
)
from paceline.contracts.verdicts import (
    Action,
    ActionKind,
    Operation,
    Owner,
    RootKind,
    SubReason,
    VerdictClass,
)

_STORE_WAIT = re.compile(r"wait timeout after|Timeout waiting for key|StoreTimeout|Socket Timeout")
_UNIQUE_ID = re.compile(r"ncclUniqueId from \[(?P<rank>\d{1,6})\]")
_OTHER_GROUP = re.compile(r"keys?: ?/?(?!default_pg)\w")


def is_store_wait(failure: NetworkFailure) -> bool:
    """Somebody waited for a key that nobody set: no connection failed."""
    return failure.kind is NetworkKind.TIMEOUT and bool(_STORE_WAIT.search(failure.text))


def key_not_set(case: Case) -> Finding | None:
    """Ranks wait in a store for what another one has to give: its id of a communicator, or its arrival."""
    waits = [f for f in case.of(NetworkFailure) if is_store_wait(f)]
    if not waits or case.of(WorkTimeout):
        return None
    waiting = sorted({rank for fact in waits if (rank := case.rank_of(fact)) is not None})
    givers = {
        int(found["rank"])
        for fact in waits
        if (found := _UNIQUE_ID.search(fact.text)) and not _OTHER_GROUP.search(fact.text)
    } - set(waiting)
    who = ranks_text(sorted(givers)) if givers else "The rank that sets the key"
    return Finding(
        reason="key_not_set",
        verdict_class=VerdictClass.H1,
        sub_reason=SubReason.BOOTSTRAP,
        roots=rank_roots(givers, "did not give the communicator's id")
        or (Blame(RootKind.NONE, name="the rank that has to set the key"),),
        victims=tuple(waiting),
        phase="rendezvous (communicator init)",
        owner=Owner.USER_CODE,
        action=Action(ActionKind.COLLECT, who, "its stack, and its work before the first collective"),
        confidence=0.75 if givers else 0.5,
        grounds=(Ground("store_wait", waits[0].text[:200], origins_of(waits)),),
        summary=f"{who} did not reach the init of the communicator; "
        f"{ranks_text(waiting) if waiting else 'others'} waited for its key in the store",
        would_decide=() if givers else ("logs of all ranks: which of them does not wait",),
    )


def endpoints_differ(case: Case) -> Finding | None:
    """The coordinator listens on one endpoint, others connect to another."""
    serving: dict[str, list[SettingSeen]] = defaultdict(list)
    asking: dict[str, list[SettingSeen]] = defaultdict(list)
    for fact in case.of(SettingSeen):
        if fact.name == "endpoint_served":
            serving[fact.value].append(fact)
        elif fact.name == "endpoint_used":
            asking[fact.value].append(fact)
    wrong = {value: facts for value, facts in asking.items() if value not in serving}
    if not serving or not wrong:
        return None
    served = next(iter(serving))
    facts = [fact for found in wrong.values() for fact in found]
    server = {rank for fact in serving[served] if (rank := case.rank_of(fact)) is not None}
    askers = sorted({rank for fact in facts if (rank := case.rank_of(fact)) is not None})
    wanted = ", ".join(list(wrong)[:4])
    return Finding(
        reason="endpoints_differ",
        verdict_class=VerdictClass.H1,
        sub_reason=SubReason.BOOTSTRAP,
        roots=rank_roots(server, f"serves {served}, the others ask {wanted}")
        or (Blame(RootKind.CONFIGURATION, name=f"endpoint {served} against {wanted}"),),
        victims=tuple(askers),
        phase="rendezvous (distributed initialize)",
        owner=Owner.FRAMEWORK,
        action=Action(ActionKind.FIX_CONFIGURATION, served, "restart all with one fresh endpoint"),
        confidence=0.85,
        grounds=(
            Ground("served", f"coordinator at {served}", origins_of(serving[served])),
            Ground(
                "asked",
                f"{ranks_text(askers) if askers else 'others'} connect to {wanted}",
                origins_of(facts),
            ),
        ),
        summary=f"Rendezvous mismatch: the coordinator serves {served}, "
        f"{ranks_text(askers) if askers else 'the others'} "
        f"connect to {wanted}, which is stale; not a network fault",
    )


def init_stands(case: Case) -> Finding | None:
    """NCCL communicators that start and never complete."""
    begun: dict[str, dict[int, Membership]] = defaultdict(dict)
    done: dict[str, set[int]] = defaultdict(set)
    for fact in case.of(Membership):
        if fact.rank_in_group is None:
            continue
        if fact.complete:
            done[fact.group.name].add(fact.rank_in_group)
        elif fact.complete is False:
            begun[fact.group.name][fact.rank_in_group] = fact
    for name, members in begun.items():
        if done[name]:
            continue
        return _init(case, name, members)
    return None


def not_joined(case: Case) -> Finding | None:
    """A store or barrier at start counts who came; the missing are not named."""
    reports = [f for f in case.of(BarrierReport) if f.arrived is not None and f.expected and not f.missing]
    late = [f for f in case.of(NetworkFailure) if f.kind is NetworkKind.RENDEZVOUS]
    facts: list[Fact] = [*reports, *late]
    if not facts:
        return None
    words = (
        f"{reports[0].arrived} of {reports[0].expected} joined"
        if reports
        else "the store could not be reached"
    )
    idle = [f.value for f in case.of(SettingSeen) if f.name == "pod_not_started"]
    if idle:
        words += f"; never started: {', '.join(idle[:8])}"
    came = {rank for report in reports if (rank := case.rank_of(report)) is not None}
    expected, arrived = (reports[0].expected or 0, reports[0].arrived or 0) if reports else (0, 0)
    absent = set(range(expected)) - came
    counted = bool(came) and 0 < len(absent) == expected - arrived  # as many as are missing, and no others
    return Finding(
        reason="not_joined",
        verdict_class=VerdictClass.H1,
        sub_reason=SubReason.BOOTSTRAP,
        roots=(rank_roots(absent, "did not join") if counted else ())
        or tuple(Blame(RootKind.NONE, name=f"pod {pod}", why="its process never started") for pod in idle[:8])
        or (Blame(RootKind.NONE, name="the processes that did not join", why=words),),
        phase="rendezvous (init, barrier of the store)",
        owner=Owner.FRAMEWORK,
        action=Action(ActionKind.COLLECT, "", "logs of the processes that did not join"),
        confidence=0.5,
        grounds=(Ground("joined", words, origins_of(facts)),),
        summary=f"The job never came together: {words}",
        would_decide=("logs of every node's launcher",),
    )


def _init(case: Case, name: str, members: dict[int, Membership]) -> Finding:
    size = max(fact.group.size for fact in members.values())
    absent = sorted(set(range(size)) - set(members)) if size else []
    nodes = Counter(fact.speaker.host for fact in members.values() if fact.speaker.host)
    uneven = len(set(nodes.values())) > 1
    version = next((f.value for f in case.of(SettingSeen) if f.name == "nccl_version"), "")
    placement = " + ".join(str(count) for count in nodes.values())
    if absent and len(absent) * 2 <= size:
        roots, kind = rank_roots(absent, "never started the init"), VerdictClass.H1
        words = f"{ranks_text(absent)} never started the communicator's init"
    elif uneven:
        roots, kind = (
            (
                Blame(
                    RootKind.CONFIGURATION, name=f"{placement} ranks per node", why="unequal ranks per node"
                ),
            ),
            VerdictClass.H3,
        )
        words = f"no rank completes the init; placement is {placement} ranks per node" + (
            f", NCCL {version}" if version else ""
        )
    else:
        roots, kind = (Blame(RootKind.NONE, name="no rank differs"),), VerdictClass.H3
        words = "every rank started the communicator's init and none completes it"
    return Finding(
        reason="init_stands",
        verdict_class=kind,
        sub_reason=SubReason.BOOTSTRAP,
        roots=roots,
        victims=tuple(sorted(set(members) - set(absent))) if absent else (),
        communicator=name,
        operation=Operation(name, name, "init", 0, size=size),
        phase="ncclCommInitRank",
        owner=Owner.FRAMEWORK,
        action=Action(
            ActionKind.FIX_CONFIGURATION, placement, "equal ranks per node, or another NCCL version"
        )
        if uneven
        else Action(ActionKind.COLLECT, "", "NCCL_DEBUG=INFO of all ranks, stacks"),
        confidence=0.7,
        grounds=(
            Ground(
                "init",
                f"{len(members)} of {size or '?'} ranks logged Init START, none COMPLETE",
                origins_of(members.values()),
            ),
            *((Ground("placement", f"ranks per node: {placement}", ()),) if nodes else ()),
        ),
        summary=f"The job hangs in ncclCommInitRank: {words}",
        would_decide=() if uneven else ("stacks of the ranks inside ncclCommInitRank",),
    )
