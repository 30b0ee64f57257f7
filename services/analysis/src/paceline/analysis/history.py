"""What the fleet remembers about a verdict: repeat offenders, and symptoms that follow a version.

Most hangs are software, so only what a machine can cause counts against one, and only where it came
back in other jobs of other programs, more often than chance explains. A symptom that many jobs of one
version show on many nodes speaks for that version and against every node
(docs/adr/0023-fleet-memory.md).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Protocol

from paceline.contracts.verdicts import (
    Action,
    ActionKind,
    Evidence,
    Role,
    Root,
    RootKind,
    SubReason,
    Verdict,
    VerdictClass,
)

# What a machine can cause. The rest is shown as history and never held against a node.
SUSPICIOUS_CLASSES = (
    VerdictClass.H3.value,
    VerdictClass.S1.value,
    VerdictClass.S2.value,
    VerdictClass.S3.value,
    VerdictClass.DEAD_PROCESS.value,
)
EXEMPT_REASONS = (
    SubReason.PROCESS_EXITED.value,  # Python raised, or the program chose to leave
    SubReason.ROTATING_STRAGGLER.value,
    SubReason.HOST_WAIT.value,
    SubReason.GIL_HELD.value,
    SubReason.MISSING_EVIDENCE.value,
)
# What a library can cause: hangs without a sign of hardware.
SYMPTOM_CLASSES = (
    VerdictClass.H1,
    VerdictClass.H2,
    VerdictClass.H3,
    VerdictClass.DEADLOCK,
    VerdictClass.INIT,
)
HARDWARE_REASONS = (SubReason.HARDWARE_EVENT, SubReason.NODE_LOST)
PLACES_MAX = 16
_PLACE_KINDS = (RootKind.RANK, RootKind.NODE, RootKind.GPU, RootKind.LINK)
_NODE_ACTIONS = (ActionKind.REPLACE_NODE, ActionKind.RESET_GPU)
_NO_FRAMEWORK = ("python",)


class NodeReason(str, Enum):
    """What the history of a node says about it."""

    NOTHING_KNOWN = "nothing_known"
    NO_OFFENCE = "no_offence"  # only incidents that a machine does not cause
    FEW_JOBS = "few_jobs"
    ONE_PROGRAM = "one_program"  # the same program again and again: rather its code
    NO_COMPARISON = "no_comparison"  # too few nodes to say what is usual
    AS_OTHERS = "as_others"  # not more often than chance explains
    REPEAT_OFFENDER = "repeat_offender"


class VersionReason(str, Enum):
    """What other jobs with the same symptom say about the versions."""

    NO_SYMPTOM = "no_symptom"  # of a kind that no library causes, or versions not known
    FEW_JOBS = "few_jobs"
    ONE_PROGRAM = "one_program"
    FEW_NODES = "few_nodes"  # rather those nodes
    AS_OTHER_VERSIONS = "as_other_versions"
    NOT_COMPARED = "not_compared"  # nearly all jobs run these versions: it may be what else they share
    SAME_VERSION = "same_version"


class Effect(str, Enum):
    """What memory changed about the verdict."""

    NONE = "none"
    VERSION = "version"  # a version is named; no node is accused by its history
    SOFTWARE = "software"  # an offender, but not a fault that a machine causes
    UNDECIDED = "undecided"  # several nodes of this incident are offenders, such as both ends of a link
    CONFIDENCE = "confidence"
    NODE_ACTION = "node_action"


@dataclass(frozen=True)
class HistoryPolicy:
    """Bounds of what memory may do."""

    node_days: int = 30
    jobs_min: int = 2  # other jobs with an offence; with the present one three, which is a habit
    programs_min: int = 2
    nodes_min: int = 4  # below it nobody can say what is usual for a node
    chance_max: float = 1e-3
    confidence_max: float = 0.97
    may_act_on_node: bool = True
    version_days: int = 7
    version_jobs_min: int = 3
    version_nodes_min: int = 3
    version_chance_max: float = 1e-2


class PastIncident(Protocol):
    """An earlier incident of another job; `gpu` is -1 where none is named."""

    @property
    def node(self) -> str: ...
    @property
    def gpu(self) -> int: ...
    @property
    def kind(self) -> str: ...
    @property
    def job(self) -> str: ...
    @property
    def program(self) -> str: ...
    @property
    def verdict_class(self) -> str: ...
    @property
    def sub_reason(self) -> str: ...


class SymptomHits(Protocol):
    """How many jobs, programs and nodes showed one symptom with one combination of versions."""

    @property
    def versions(self) -> str: ...
    @property
    def jobs(self) -> int: ...
    @property
    def programs(self) -> int: ...
    @property
    def nodes(self) -> int: ...


class FleetFacts(Protocol):
    """What the tables say of an incident and its like."""

    @property
    def places(self) -> Sequence[tuple[str, int, str]]:
        """(node, gpu, kind) of the present incident."""

    @property
    def program(self) -> str: ...
    @property
    def past(self) -> Sequence[PastIncident]:
        """On these nodes in other jobs, within `node_days`."""

    @property
    def offences(self) -> int:
        """Pairs of node and other job, of all nodes."""

    @property
    def nodes(self) -> int:
        """A lower bound of how many nodes the fleet has."""

    @property
    def versions(self) -> str: ...
    @property
    def hits(self) -> Sequence[SymptomHits]:
        """The present job included, within `version_days`."""

    @property
    def jobs_of_versions(self) -> Mapping[str, int]: ...


@dataclass(frozen=True)
class NodeFinding:
    """The history of one node of the incident."""

    node: str
    gpu: int | None  # where every offence names this one
    reason: NodeReason
    incidents: int
    jobs: int  # other jobs with an offence
    programs: int  # with the present one
    chance: float  # of as many offences on a usual node


@dataclass(frozen=True)
class VersionFinding:
    """Whether the symptom follows the versions. `root` names them where it does."""

    reason: VersionReason
    versions: str
    jobs: int
    programs: int
    nodes: int
    jobs_of_version: int
    other_jobs: int  # with the symptom
    jobs_of_others: int
    root: Root | None


@dataclass(frozen=True)
class Recollection:
    """Everything that memory says, and the verdict with it."""

    effect: Effect
    nodes: tuple[NodeFinding, ...]
    version: VersionFinding
    verdict: Verdict


def is_suspicious(verdict_class: str, sub_reason: str) -> bool:
    """Whether such an incident counts against the machine it happened on."""
    return verdict_class in SUSPICIOUS_CLASSES and sub_reason not in EXEMPT_REASONS


def symptom_of(verdict: Verdict) -> str:
    """Equal for equal symptoms; empty where no library causes such."""
    operation = verdict.operation
    if verdict.verdict_class not in SYMPTOM_CLASSES or verdict.sub_reason in HARDWARE_REASONS:
        return ""
    parts = (verdict.verdict_class.value, verdict.sub_reason.value, operation.function if operation else "")
    return "|".join(parts)[:200]


def versions_text(versions: Mapping[str, str]) -> str:
    """`nccl 2.28.9, torch 2.13.0`; Python itself is no framework. Empty where nothing is known."""
    known = [f"{name} {versions[name]}" for name in sorted(versions) if name not in _NO_FRAMEWORK]
    return ", ".join(known)[:300]


def places_of(
    verdict: Verdict, locate: Callable[[int], tuple[str, int | None] | None]
) -> list[tuple[str, int, str]]:
    """(node, gpu, kind) of the first causes, at most PLACES_MAX; both ends of a link.

    `locate` gives node and GPU of a rank where the verdict does not.
    """
    found: dict[tuple[str, int], str] = {}
    for root in verdict.roots:
        if root.role is not Role.INITIATING or root.kind not in _PLACE_KINDS:
            continue
        ends: list[tuple[str, int | None] | None] = []
        if root.node is not None:
            ends.append((root.node, root.gpu))
        elif root.rank is not None:
            ends.append(locate(root.rank))
        if root.kind is RootKind.LINK and root.peer_rank is not None:
            ends.append(locate(root.peer_rank))
        for node, gpu in filter(None, ends):
            found.setdefault((node, -1 if gpu is None else gpu), root.kind.value)
    return [(node, gpu, kind) for (node, gpu), kind in list(found.items())[:PLACES_MAX]]


def recall(verdict: Verdict, facts: FleetFacts, policy: HistoryPolicy) -> Recollection:
    """Weigh the history of a verdict as it was judged; never weakens it, never accuses another root."""
    names = dict.fromkeys(node for node, _, _ in facts.places)
    nodes = tuple(weigh_node(node, facts, policy) for node in names)
    version = weigh_version(facts, policy) if symptom_of(verdict) else _no_symptom(facts.versions)
    offenders = [node for node in nodes if node.reason is NodeReason.REPEAT_OFFENDER]
    if version.root is not None:
        note = _version_note(version, policy)
        return Recollection(Effect.VERSION, nodes, version, _with(verdict, (note,)))
    if not offenders:
        return Recollection(Effect.NONE, nodes, version, verdict)
    if not is_suspicious(verdict.verdict_class, verdict.sub_reason):
        return Recollection(Effect.SOFTWARE, nodes, version, verdict)
    notes = tuple(_node_note(node, policy) for node in offenders)
    if len(offenders) > 1:
        return Recollection(Effect.UNDECIDED, nodes, version, _with(verdict, notes))
    raised = replace(_with(verdict, notes), confidence=_raise(verdict.confidence, policy))
    if not policy.may_act_on_node or verdict.action.kind in _NODE_ACTIONS:
        return Recollection(Effect.CONFIDENCE, nodes, version, raised)
    action = Action(ActionKind.REPLACE_NODE, offenders[0].node, notes[0].statement)
    return Recollection(Effect.NODE_ACTION, nodes, version, replace(raised, action=action))


def weigh_node(node: str, facts: FleetFacts, policy: HistoryPolicy) -> NodeFinding:
    """Offences in other jobs against what chance gives a node of this fleet."""
    past = [item for item in facts.past if item.node == node]
    offences = [item for item in past if is_suspicious(item.verdict_class, item.sub_reason)]
    jobs = len({item.job for item in offences})
    programs = len({facts.program, *(item.program for item in offences)})
    # Half an offence more than was seen: none on few nodes is not never.
    usual = (max(facts.offences - jobs, 0) + 0.5) / max(facts.nodes - 1, 1)
    chance = tail_chance(jobs, usual)
    gpus = {item.gpu for item in offences} & {gpu for name, gpu, _ in facts.places if name == node}
    one_gpu = len({item.gpu for item in offences}) == 1 and gpus and min(gpus) >= 0
    if not past:
        reason = NodeReason.NOTHING_KNOWN
    elif not offences:
        reason = NodeReason.NO_OFFENCE
    elif jobs < policy.jobs_min:
        reason = NodeReason.FEW_JOBS
    elif programs < policy.programs_min:
        reason = NodeReason.ONE_PROGRAM
    elif facts.nodes < policy.nodes_min:
        reason = NodeReason.NO_COMPARISON
    else:
        reason = NodeReason.AS_OTHERS if chance > policy.chance_max else NodeReason.REPEAT_OFFENDER
    return NodeFinding(node, min(gpus) if one_gpu else None, reason, len(past), jobs, programs, chance)


def weigh_version(facts: FleetFacts, policy: HistoryPolicy) -> VersionFinding:
    """The symptom among jobs of these versions against the others."""
    if not facts.versions:
        return _no_symptom("")
    here = [hit for hit in facts.hits if hit.versions == facts.versions]
    jobs, programs, nodes = (
        sum(getattr(hit, name) for hit in here) for name in ("jobs", "programs", "nodes")
    )
    other_jobs = sum(hit.jobs for hit in facts.hits if hit.versions not in ("", facts.versions))
    of_version = max(facts.jobs_of_versions.get(facts.versions, 0), jobs)
    of_others = sum(
        count for text, count in facts.jobs_of_versions.items() if text not in ("", facts.versions)
    )
    # Half a job more than was seen: none among few is not never.
    expected = of_version * (other_jobs + 0.5) / max(of_others, 1)
    if jobs < policy.version_jobs_min:
        reason = VersionReason.FEW_JOBS
    elif programs < policy.programs_min:
        reason = VersionReason.ONE_PROGRAM
    elif nodes < policy.version_nodes_min:
        reason = VersionReason.FEW_NODES
    elif of_others < policy.version_jobs_min:
        reason = VersionReason.NOT_COMPARED
    elif tail_chance(jobs, expected) > policy.version_chance_max:
        reason = VersionReason.AS_OTHER_VERSIONS
    else:
        reason = VersionReason.SAME_VERSION
    points = reason in (VersionReason.SAME_VERSION, VersionReason.NOT_COMPARED)
    root = Root(RootKind.VERSION, name=facts.versions, role=Role.UNKNOWN) if points else None
    return VersionFinding(
        reason, facts.versions, jobs, programs, nodes, of_version, other_jobs, of_others, root
    )


def tail_chance(count: int, expected: float) -> float:
    """Poisson P(X >= count)."""
    if count <= 0:
        return 1.0
    if expected <= 0:
        return 0.0
    below = sum(math.exp(k * math.log(expected) - expected - math.lgamma(k + 1)) for k in range(count))
    return min(max(1.0 - below, 0.0), 1.0)


def _no_symptom(versions: str) -> VersionFinding:
    return VersionFinding(VersionReason.NO_SYMPTOM, versions, 0, 0, 0, 0, 0, 0, None)


def _raise(confidence: float, policy: HistoryPolicy) -> float:
    """Halfway to certain, never beyond the bound, never lower than it was."""
    return max(confidence, round(min(1 - (1 - confidence) / 2, policy.confidence_max), 3))


def _with(verdict: Verdict, notes: tuple[Evidence, ...]) -> Verdict:
    return replace(verdict, evidence=(*verdict.evidence, *notes))


def _node_note(node: NodeFinding, policy: HistoryPolicy) -> Evidence:
    place = node.node if node.gpu is None else f"{node.node} (GPU {node.gpu})"
    return Evidence(
        "memory.node",
        f"{place} was the first cause in {node.jobs} other jobs within {policy.node_days} days",
        {
            "jobs": str(node.jobs),
            "programs": str(node.programs),
            "incidents": str(node.incidents),
            "chance": f"{node.chance:.1e}",
        },
        f"{policy.jobs_min} other jobs of {policy.programs_min} programs, chance at most "
        f"{policy.chance_max:g}",
    )


def _version_note(version: VersionFinding, policy: HistoryPolicy) -> Evidence:
    other = (
        f"{version.other_jobs} of {version.jobs_of_others} jobs with other versions"
        if version.reason is VersionReason.SAME_VERSION
        else "nearly no job runs other versions, so it may be what else they share"
    )
    return Evidence(
        "memory.version",
        f"{version.jobs} jobs on {version.nodes} nodes showed this symptom with {version.versions} within "
        f"{policy.version_days} days; {other}",
        {"jobs": str(version.jobs), "programs": str(version.programs), "nodes": str(version.nodes)},
        f"{policy.version_jobs_min} jobs of {policy.programs_min} programs on "
        f"{policy.version_nodes_min} nodes",
    )
