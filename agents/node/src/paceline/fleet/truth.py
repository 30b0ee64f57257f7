"""What was injected, and what an honest observer can say about it under a profile."""

from dataclasses import dataclass

import numpy as np

from paceline.contracts.verdicts import Root, RootKind, SubReason, VerdictClass
from paceline.fleet import trees
from paceline.fleet.faults import MISMATCHES, Fault, FaultKind
from paceline.fleet.layout import Topology
from paceline.fleet.profiles import Profile
from paceline.fleet.tree_reading import uses_tree

_SUB = SubReason
_TABLE: dict[FaultKind, tuple[VerdictClass, tuple[SubReason, ...]]] = {
    FaultKind.MISSING_ENTER: (VerdictClass.H1, (_SUB.MISSING_ENTER,)),
    FaultKind.DELAYED_ENTER: (VerdictClass.H1, (_SUB.DELAYED_ENTER, _SUB.MISSING_ENTER)),
    FaultKind.OPERATION: (VerdictClass.H2, (_SUB.OPERATION_MISMATCH,)),
    FaultKind.SIZE: (VerdictClass.H2, (_SUB.SIZE_MISMATCH,)),
    FaultKind.DTYPE: (VerdictClass.H2, (_SUB.DTYPE_MISMATCH,)),
    FaultKind.REDUCE_OP: (VerdictClass.H2, (_SUB.REDUCE_OP_MISMATCH,)),
    FaultKind.ROOT: (VerdictClass.H2, (_SUB.ROOT_MISMATCH,)),
    FaultKind.STUCK: (VerdictClass.H3, (_SUB.MISSING_EXIT, _SUB.ALL_RANKS_STUCK)),
    FaultKind.MISSING_EXIT: (VerdictClass.H3, (_SUB.MISSING_EXIT,)),
    FaultKind.LINK_DOWN: (VerdictClass.H3, (_SUB.MISSING_EXIT, _SUB.ALL_RANKS_STUCK)),
    FaultKind.ALL_STUCK: (VerdictClass.H3, (_SUB.ALL_RANKS_STUCK,)),
    FaultKind.LATE_RANK: (VerdictClass.S1, (_SUB.LATE_RANK,)),
    FaultKind.ROTATING: (VerdictClass.S1, (_SUB.ROTATING_STRAGGLER,)),
    FaultKind.SLOW_LINK: (VerdictClass.S2, (_SUB.SLOW_LINK,)),
    FaultKind.SHARED_PATH: (VerdictClass.S2, (_SUB.SHARED_PATH,)),
    FaultKind.MIXED: (VerdictClass.S3, (_SUB.SLOW_LINK, _SUB.LATE_RANK, _SUB.NONE)),
    FaultKind.ORDER_INVERSION: (VerdictClass.DEADLOCK, (_SUB.ORDER_INVERSION,)),
    FaultKind.QUEUE_EXHAUSTION: (VerdictClass.DEADLOCK, (_SUB.QUEUE_EXHAUSTION, _SUB.DEVICE_QUEUE)),
    FaultKind.BOOTSTRAP: (VerdictClass.INIT, (_SUB.BOOTSTRAP,)),
    FaultKind.LAZY_CONNECT: (VerdictClass.INIT, (_SUB.LAZY_CONNECT,)),
    FaultKind.DEAD_PROCESS: (VerdictClass.DEAD_PROCESS, (_SUB.PROCESS_KILLED, _SUB.PROCESS_EXITED)),
    FaultKind.FROZEN_PROCESS: (VerdictClass.H1, (_SUB.FROZEN_PROCESS,)),
}
# Nothing distinguishes one rank of these: the group is all that anybody can know.
_GROUP_ONLY = frozenset({FaultKind.ALL_STUCK, FaultKind.LAZY_CONNECT})


@dataclass(frozen=True)
class Fired:
    """Where a fault took effect: one entry per fault of the job that has."""

    fault: Fault
    at_s: float  # seconds of the job
    communicator: int  # id, 0 for faults of no single communicator
    round: int
    function: int
    inside: bool  # the rank had entered the operation
    receiving: bool = False  # it stood in a receive, and in no collective


@dataclass(frozen=True)
class Truth:
    """The injection. `roots` is exact; where `root_observable` is False the best is `group`.

    `classes` are the classes that are right under the profile: the injected one, and INCONCLUSIVE
    or a weaker word where the profile hides the difference. Nothing was injected, or nothing has
    taken effect yet: class NONE.
    """

    verdict_class: VerdictClass = VerdictClass.NONE
    classes: frozenset[VerdictClass] = frozenset({VerdictClass.NONE})
    sub_reasons: frozenset[SubReason] = frozenset({SubReason.NONE})
    roots: tuple[Root, ...] = ()
    group: tuple[int, ...] = ()  # smallest set of ranks that contains the cause under the profile
    class_observable: bool = True
    root_observable: bool = True
    fired: tuple[Fired, ...] = ()

    @property
    def root_ranks(self) -> frozenset[int]:
        """Global ranks that may be named as a cause: roots, with both ends of a link."""
        ends = (rank for root in self.roots for rank in (root.rank, root.peer_rank, *root.ranks))
        return frozenset(rank for rank in ends if rank is not None)

    @property
    def at_s(self) -> float:
        """When the first fault took effect; infinite where none has."""
        return min((each.at_s for each in self.fired), default=float("inf"))


def judge_truth(fired: tuple[Fired, ...], topology: Topology, profile: Profile) -> Truth:
    """The truth about what has taken effect; the first fault decides the class."""
    if not fired:
        return Truth()
    first = fired[0].fault
    verdict_class, subs = _TABLE[first.kind]
    if first.kind is FaultKind.FROZEN_PROCESS and fired[0].inside:
        verdict_class = VerdictClass.H3
    if first.kind is FaultKind.DEAD_PROCESS:
        subs = (_SUB.PROCESS_KILLED,) if first.exit_code < 0 else (_SUB.PROCESS_EXITED,)
    class_seen, root_seen = _observable(fired[0], topology, profile)
    if first.kind is FaultKind.SHARED_PATH and len(slow_links(first, topology)) == 1:
        subs = (*subs, SubReason.SLOW_LINK)  # one link is all that shows
    if first.kind in MISMATCHES and topology.size(first.group) == 2:
        subs, root_seen = (*subs, SubReason.NO_MAJORITY), False  # no vote with two ranks
    roots = tuple(root for each in fired for root in _roots(each.fault, topology))
    group = _group(first, topology)
    classes = {verdict_class} | (set() if class_seen else {VerdictClass.INCONCLUSIVE, VerdictClass.NONE})
    # Without completions nobody can tell whether a stopped process is inside an earlier operation.
    if first.kind is FaultKind.FROZEN_PROCESS and (fired[0].receiving or not profile.completion):
        classes |= {VerdictClass.H1, VerdictClass.H3}
    if first.kind is FaultKind.MIXED:
        classes |= {VerdictClass.S1, VerdictClass.S2} if not root_seen else set()
    return Truth(
        verdict_class,
        frozenset(classes),
        frozenset(subs),
        roots,
        group if not root_seen else tuple(sorted({r for root in roots for r in _ranks(root)})),
        class_seen,
        root_seen,
        fired,
    )


def _ranks(root: Root) -> tuple[int, ...]:
    return tuple(rank for rank in (root.rank, root.peer_rank, *root.ranks) if rank is not None)


def _members(fault: Fault, topology: Topology) -> tuple[int, ...]:
    groups = topology.groups[fault.group]
    return tuple(int(rank) for rank in groups.members[groups.comm_of[fault.rank]])


def _group(fault: Fault, topology: Topology) -> tuple[int, ...]:
    if fault.kind is FaultKind.SHARED_PATH:
        return shared_members(fault, topology)
    return _members(fault, topology)


def shared_members(fault: Fault, topology: Topology) -> tuple[int, ...]:
    """Members of all communicators whose ring leaves the nodes of a shared path."""
    groups = topology.groups[fault.group]
    here = [rank for rank in range(topology.ranks) if int(topology.node_of[rank]) in fault.nodes]
    ranks = groups.members[groups.comm_of[here]].reshape(-1)
    return tuple(sorted({int(rank) for rank in ranks}))


def slow_links(fault: Fault, topology: Topology) -> tuple[tuple[int, int], ...]:
    """(sender, receiver) of each slow link of a fault."""
    if fault.kind in (FaultKind.SLOW_LINK, FaultKind.MIXED):
        return ((fault.rank, fault.peer),)
    if fault.kind is not FaultKind.SHARED_PATH:
        return ()
    groups = topology.groups[fault.group]
    found = []
    for rank in range(topology.ranks):
        if int(topology.node_of[rank]) not in fault.nodes:
            continue
        members = groups.members[groups.comm_of[rank]]
        peer = int(members[(int(groups.place_of[rank]) + 1) % groups.size])
        if topology.node_of[peer] != topology.node_of[rank]:
            found.append((rank, peer))
    return tuple(found)


def _roots(fault: Fault, topology: Topology) -> tuple[Root, ...]:
    node = topology.node_name(int(topology.node_of[fault.rank]))
    rank_root = Root(RootKind.RANK, rank=fault.rank, node=node)
    if fault.kind is FaultKind.MIXED:
        node_late = topology.node_name(int(topology.node_of[fault.late]))
        rank_root = Root(RootKind.RANK, rank=fault.late, node=node_late)
    if fault.kind is FaultKind.LINK_DOWN:
        return (Root(RootKind.LINK, rank=fault.rank, node=node, peer_rank=fault.peer),)
    if fault.kind is FaultKind.ROTATING:
        return (Root(RootKind.ROTATING),)
    if fault.kind in _GROUP_ONLY:
        return (Root(RootKind.GROUP, ranks=_members(fault, topology)),)
    links = tuple(
        Root(RootKind.LINK, rank=a, node=topology.node_name(int(topology.node_of[a])), peer_rank=b)
        for a, b in slow_links(fault, topology)
    )
    if fault.kind is FaultKind.SHARED_PATH:
        return (*(Root(RootKind.NODE, node=topology.node_name(each)) for each in fault.nodes), *links)
    return (rank_root, *links) if fault.kind is FaultKind.MIXED else links or (rank_root,)


def _observable(fired: Fired, topology: Topology, profile: Profile) -> tuple[bool, bool]:
    """Whether class and exact root can be known from the rows of this profile."""
    kind = fired.fault.kind
    counted = profile.local_counts or (profile.network_counts and _leaves_node(fired, topology))
    if kind in (FaultKind.STUCK, FaultKind.LINK_DOWN):
        return profile.completion, profile.completion and counted
    if kind in _GROUP_ONLY or kind is FaultKind.MISSING_EXIT:
        return profile.completion, profile.completion
    if kind in (FaultKind.LATE_RANK, FaultKind.ROTATING):
        return profile.completion, profile.completion
    if kind in (FaultKind.SLOW_LINK, FaultKind.SHARED_PATH, FaultKind.MIXED):
        return profile.completion, profile.completion and counted
    if kind is FaultKind.QUEUE_EXHAUSTION:
        return not profile.blocking and profile.completion, not profile.blocking and profile.completion
    return True, True


def _leaves_node(fired: Fired, topology: Topology) -> bool:
    """Whether every link that the operation uses leaves its node, so that plugin counts show all of them."""
    groups = topology.groups[fired.fault.group]
    nodes = topology.node_of[np.array(_members(fired.fault, topology), np.int64)]
    if not uses_tree(groups, fired.function):
        return bool((nodes != np.roll(nodes, -1)).all())
    found = True
    for tree in range(trees.TREES):
        parents = trees.parents_of(groups.size, tree)
        linked = parents >= 0
        found &= bool((nodes[linked] != nodes[parents[linked]]).all())
    return found
