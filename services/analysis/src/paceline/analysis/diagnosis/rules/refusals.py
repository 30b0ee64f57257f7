"""What a host or its driver refused while NCCL set up: one node that differs, or all alike."""

from collections import Counter
from collections.abc import Sequence

from paceline.analysis.diagnosis.answer import Blame, Ground
from paceline.analysis.diagnosis.case import Case
from paceline.analysis.diagnosis.rules.finding import Finding, main_operation, origins_of, ranks_text
from paceline.analysis.facts import (
    Fact,
    Membership,
    NetworkFailure,
    ProcessFault,
    ProcessFaultKind,
    SettingSeen,
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

REFUSED = "setup_refused"
_WORDS = {  # what, and what to do
    "files": ("too many open files", "a higher limit (ulimit -n) for the processes of that node"),
    "shared_memory": ("shared memory (/dev/shm) is too small or cannot be opened", "enlarge /dev/shm "
        "(--shm-size, an emptyDir in memory, --ipc=host), remove stale segments"),
    "queue_pair": ("queue pairs between adapters cannot be connected", "GID index, routes between rails "
        "(NCCL_CROSS_NIC=0 where rails are apart), MTU, NCCL_IB_HCA"),
    "registration": ("memory cannot be registered with the adapter", "locked memory limit (ulimit -l), peer "
        "memory module or dma-buf, adapter's resources"),
    "endpoint": ("the provider gives no endpoint", "driver and limits of the adapters, security "
        "group, versions"),
    "multicast": ("NVSwitch multicast (NVLS) is refused", "state of fabric manager and NVSwitches; "
        "NCCL_NVLS_ENABLE=0 until then"),
    "handle": ("memory handles of peer GPUs cannot be imported", "IMEX domain and channels, visible devices, "
        "one container for the GPUs of a node"),
    "driver": ("CUDA does not start", "fabric manager, driver and visible devices of the node"),
}  # fmt: skip
_OF_NODE = ("endpoint", "multicast", "handle", "driver", "registration")


def refused(case: Case) -> Finding | None:
    """The refusal itself; sockets that close and errors that end the processes follow from it."""
    facts = _refusals(case)
    if not facts:
        return None
    kind = Counter(value for value, _ in facts).most_common(1)[0][0]
    said = [fact for value, fact in facts if value == kind]
    what, advice = _WORDS[kind]
    services = [f for f in case.of(SettingSeen) if f.name in ("fabric_service", "imex_node")]
    hosts = sorted({fact.speaker.host for fact in said if fact.speaker.host})
    known = {fact.speaker.host for fact in _everybody(case) if fact.speaker.host} | set(hosts)
    ranks = tuple(sorted({rank for fact in said if (rank := case.rank_of(fact)) is not None}))
    local = kind in _OF_NODE and len(hosts) * 2 <= len(known)
    roots = tuple(Blame(RootKind.NODE, node=host, why=what) for host in hosts) if local else ()
    if not roots and kind in _OF_NODE and not hosts and ranks and len(ranks) * 2 <= case.world_size:
        roots = tuple(Blame(RootKind.RANK, rank=rank, why=what) for rank in ranks)
    where = ", ".join(hosts[:8])
    text = _text(said[0])
    group = next((fact.group.name for fact in case.of(Membership) if fact.group.name), "")
    communicator, operation = main_operation(case)
    who = where or (ranks_text(list(ranks)) if ranks else "the job")
    return Finding(
        reason=f"setup_{kind}",
        verdict_class=VerdictClass.H3,
        sub_reason=SubReason.BOOTSTRAP,
        roots=roots or (Blame(RootKind.CONFIGURATION, name=f"{what}: {text[:160]}", why=who),),
        victims=tuple(rank for rank in case.ranks_named if rank not in ranks) if roots else (),
        communicator=communicator or group,
        operation=operation or Operation(group, group, "init", 0),
        phase="connection setup (ncclCommInitRank)",
        owner=Owner.HOST if kind != "queue_pair" else Owner.FABRIC,
        action=Action(ActionKind.FIX_CONFIGURATION, who, advice),
        confidence=0.8,
        grounds=(
            Ground("refused", f"{who}: {text[:200]}", origins_of(said)),
            *(
                Ground("service", f"{fact.speaker.host} {fact.value}", (fact.origin,))
                for fact in services[:4]
            ),
        ),
        summary=f"NCCL's setup is refused on {who}: {what} ({text[:120]}); "
        "closed connections elsewhere follow",
    )


def _refusals(case: Case) -> list[tuple[str, Fact]]:
    """(kind, fact); CUDA that does not start counts where it is all that the process says."""
    found: list[tuple[str, Fact]] = [(f.value, f) for f in case.of(SettingSeen) if f.name == REFUSED]
    found += [("driver", f) for f in case.of(ProcessFault) if f.kind is ProcessFaultKind.CUDA_SETUP]
    return [(kind, fact) for kind, fact in found if kind in _WORDS]


def _everybody(case: Case) -> Sequence[Fact]:
    return [*case.of(Membership), *case.of(NetworkFailure), *case.of(ProcessFault), *case.of(SettingSeen)]


def _text(fact: Fact) -> str:
    return str(getattr(fact, "text", "")).strip()
