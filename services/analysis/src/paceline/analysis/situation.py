"""The evidence, read once: which operations stand still and what each of them waits for."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from paceline.analysis.arrays import fold_at
from paceline.analysis.evidence import Ints, JobEvidence, Mask
from paceline.analysis.pairs import complete_pages, reported
from paceline.analysis.policy import JudgePolicy
from paceline.analysis.processes import Processes, read_processes
from paceline.analysis.unseen_ends import obscured_ranks, unseen_operations
from paceline.analysis.waits import Links, WaitGraph, build_graph
from paceline.contracts.codes import HostWait
from paceline.contracts.verdicts import Operation

SAMPLED_TOGETHER_MS = 1000  # ranks of a node are read within one sampling interval
_ANYBODY = (HostWait.STORE, HostWait.BARRIER, HostWait.BOOTSTRAP)


@dataclass(frozen=True, eq=False)
class Situation:
    """Everything the stages of the judgement share; all derived from `evidence`."""

    evidence: JobEvidence
    policy: JudgePolicy
    processes: Processes
    graph: WaitGraph

    @cached_property
    def stalled(self) -> Mask:
        """Operations whose oldest holder has waited long enough."""
        return np.logical_and(self.graph.age_ms >= self.stall_age_ms, self.graph.hold_count > 0)

    @cached_property
    def stall_age_ms(self) -> float:
        """How long a wait is no stall yet."""
        return max(self.policy.stall_age_s * 1000, self._slow_wait_ms)

    @cached_property
    def _slow_wait_ms(self) -> float:
        """Where rounds are known to be slow: a wait no longer than theirs, or than a step, is no hang."""
        evidence = self.evidence
        if len(evidence.baselines) == 0 and len(evidence.steps) == 0:
            return 0.0
        longest_ns = float(evidence.rounds["duration_ns"].max(initial=0))
        step_us = float(evidence.steps["step_us"].max(initial=0))
        return max(2 * longest_ns / 1e6, 1.5 * step_us / 1e3)

    @cached_property
    def unrecorded(self) -> Mask:
        """Operations that all others have left, held only by ranks whose Python cannot run.

        Such a rank cannot record its completions: it is not inside, whatever its page says.
        """
        graph = self.graph
        held_by_gil = np.bincount(graph.holds.op, self.processes.gil[graph.holds.rank], graph.ops)
        passed = np.zeros(graph.ops, np.int64)
        comms = self.evidence.communicators
        passed[:comms] = np.bincount(
            self.evidence.comm_of[graph.collectives.passed], minlength=max(comms, 0)
        )[:comms]
        mask: Mask = (held_by_gil == graph.hold_count) & (graph.hold_count > 0)
        return _flags(mask & (graph.lack_count == 0) & (passed > 0))

    @cached_property
    def strong_holds(self) -> Links:
        """Holds that really keep a rank from going on."""
        graph = self.graph
        inside = graph.holds.where(~graph.weak[graph.holds.op] & ~self.unrecorded[graph.holds.op])
        return Links.join([inside, graph.behind]) if len(graph.behind.op) else inside

    @cached_property
    def busy(self) -> Mask:
        """Ranks held by some operation, however young."""
        return self._ranks(self.strong_holds.rank)

    @cached_property
    def sending(self) -> Mask:
        """Ranks held by an open send only."""
        holds = self.graph.holds.rank[self.graph.weak[self.graph.holds.op]]
        return self._ranks(holds) & ~self.busy

    @cached_property
    def described(self) -> dict[int, Operation | None]:
        """What `findings.describe` has said, by operation."""
        return {}

    @cached_property
    def observed(self) -> Mask:
        """Ranks of which every registered frame was reported, none of them with a hidden wait."""
        evidence = self.evidence
        seen = reported(evidence, self.processes.lost)
        missing = self._ranks(evidence.member_rank[~seen])
        whole = complete_pages(evidence, self.processes.lost)
        stale = self._ranks(evidence.member_rank[self.graph.collectives.stale])
        return (~missing | whole) & ~stale & ~self.hidden & ~self.obscured

    @cached_property
    def obscured(self) -> Mask:
        """Ranks that may be held although nothing shows it (`unseen_ends.obscured_ranks`)."""
        return obscured_ranks(self.evidence, self.processes, self.graph)

    @cached_property
    def unseen_ends(self) -> Mask:
        """Operations whose completion no source shows: H1, H2 or INCONCLUSIVE may follow, nothing else."""
        return unseen_operations(self.evidence, self.graph)

    @cached_property
    def hidden(self) -> Mask:
        """Ranks with something open that no row explains."""
        evidence, pairs = self.evidence, self.graph.pairs
        suspicious = (evidence.column("open_ops") > 0) & (evidence.column("head_round") == 0)
        suspicious &= evidence.seen
        if not suspicious.any():
            return np.zeros(evidence.world_size, np.bool_)
        at = np.flatnonzero(suspicious)
        unexplained = ~_members(evidence, pairs.comm, pairs.rank)[at]
        # Without completions everything ever posted counts as open: any row of the pair explains it.
        blind = evidence.hidden_completion[at]
        if blind.any():
            rows = evidence.peers
            posted = _members(evidence, evidence.index_of(rows["comm"]), rows["rank"].astype(np.int64))
            unexplained &= ~(blind & posted[at])
        return self._ranks(evidence.member_rank[at[unexplained]])

    @cached_property
    def hosted(self) -> Mask:
        """Ranks in a store, barrier or bootstrap wait that may be for anybody."""
        rows = self.evidence.processes
        mask: Mask = self.evidence.process_seen & np.isin(rows["host_wait"], _ANYBODY)
        return _flags(mask & (rows["host_wait_rank"] < 0))

    @cached_property
    def stalled_lacks(self) -> Links:
        return self.graph.lacks.where(self.stalled[self.graph.lacks.op])

    @cached_property
    def idle_lacks(self) -> Links:
        """Lacks of stalled operations by ranks with nothing outstanding: observed, not absent."""
        lacks, processes = self.stalled_lacks, self.processes
        idle = ~self.busy & ~self.sending & self.observed
        idle &= ~processes.dead & ~processes.ended & ~processes.frozen & ~processes.lost
        return lacks.where(idle[lacks.rank])

    @cached_property
    def edges(self) -> "Edges":
        """Wait-for edges between operations."""
        by_lack = _join(self.graph.lacks, self.strong_holds)
        by_order = self._order_edges()
        return Edges(
            np.concatenate([by_lack.source, by_order.source]),
            np.concatenate([by_lack.target, by_order.target]),
            np.concatenate([by_lack.rank, by_order.rank]),
        )

    @cached_property
    def edges_with_sends(self) -> "Edges":
        """As `edges`, with open sends taken for something that keeps a rank."""
        graph = self.graph
        holds = Links.join([graph.holds.where(~self.unrecorded[graph.holds.op]), graph.behind])
        by_lack = _join(graph.lacks, holds)
        return Edges(
            np.concatenate([by_lack.source, self.edges.source]),
            np.concatenate([by_lack.target, self.edges.target]),
            np.concatenate([by_lack.rank, self.edges.rank]),
        )

    @cached_property
    def open_ends(self) -> Ints:
        """Stalled operations that wait for no other one: what holds everything else."""
        ends = self.stalled.copy()
        ends[self.edges.source] = False
        return np.flatnonzero(ends)

    @cached_property
    def satisfied(self) -> Mask:
        """Stalled operations that everybody has entered and that wait behind no other one."""
        graph = self.graph
        mask = self.stalled & self.settled & (graph.lack_count == 0) & (graph.blind_count == 0)
        mask &= ~graph.opaque & ~self.unrecorded & ~self.unseen_ends
        comms = self.evidence.communicators
        mask[:comms] &= ~self.evidence.inferred
        mask[graph.host_base :] = False
        mask[self.edges.source] = False
        # Where streams run in order, an earlier operation of a holder may be among the missing rows.
        held = Links.join([graph.holds, graph.mirrored])
        doubtful = held.op[self.ordered[held.op] & ~self.observed[held.rank]]
        mask[doubtful] = False
        return _flags(mask)

    @cached_property
    def satisfied_but_blind(self) -> Mask:
        """As `satisfied`, for operations of which some members were not reported."""
        graph = self.graph
        mask = self.stalled & (graph.lack_count == 0) & (graph.blind_count > 0) & self.settled
        mask &= ~graph.opaque & ~self.unrecorded & ~self.unseen_ends
        mask[graph.pair_base :] = False
        mask[: self.evidence.communicators] &= ~self.evidence.inferred
        mask[self.edges.source] = False
        return _flags(mask)

    @cached_property
    def settled(self) -> Mask:
        """Operations whose newest arrival has waited long enough, too: it may be what was missing."""
        youngest = np.full(self.graph.ops, np.iinfo(np.int64).max, np.int64)
        fold_at(np.minimum, youngest, self.graph.holds.op, self.graph.holds.age_ms)
        return _flags(youngest >= self.policy.stall_age_s * 1000)

    @cached_property
    def ordered(self) -> Mask:
        """Operations of streams that run in order; gloo runs different groups side by side."""
        graph, gloo = self.graph, np.array([name == "gloo" for name in self.evidence.comm_backends], np.bool_)
        ordered = np.ones(graph.ops, np.bool_)
        ordered[: self.evidence.communicators] = ~gloo
        ordered[graph.pair_base : graph.host_base] = ~gloo[graph.pairs.comm] if len(gloo) else True
        ordered[graph.host_base :] = False
        return ordered

    @cached_property
    def unanswered(self) -> Mask:
        """Stalled operations that wait for nobody we can see, and for somebody we cannot."""
        graph = self.graph
        unclear = graph.blind_count > 0
        unclear |= graph.opaque
        unclear[: self.evidence.communicators] |= self.evidence.inferred & (
            graph.lack_count[: self.evidence.communicators] == 0
        )
        return _flags(self.stalled & unclear & (graph.lack_count == 0))

    def holders(self, op: int) -> Ints:
        """Ranks inside operation `op`, ascending."""
        return np.flatnonzero(self._ranks(self.graph.holds.rank[self.graph.holds.op == op]))

    def lacking(self, op: int) -> Ints:
        """Observed ranks that have not entered `op`, ascending."""
        return np.flatnonzero(self._ranks(self.graph.lacks.rank[self.graph.lacks.op == op]))

    def blind(self, op: int) -> Ints:
        """Ranks of `op` that nobody reported, ascending."""
        return np.flatnonzero(self._ranks(self.graph.blind.rank[self.graph.blind.op == op]))

    def oldest(self, ops: Ints) -> int:
        """The operation of `ops` that has waited longest; ties go to the lower index."""
        return int(ops[np.argmax(self.graph.age_ms[ops])])

    def first_in_program(self, ops: Ints) -> int:
        """Of the operations of `ops` that began to wait together, the one that comes first in the
        program: its holders had issued least. Ages alone would not tell: ranks are sampled in turn.
        """
        graph = self.graph
        together = ops[graph.age_ms[ops] >= int(graph.age_ms[ops].max()) - SAMPLED_TOGETHER_MS]
        least = np.full(graph.ops, np.iinfo(np.uint64).max, np.uint64)
        fold_at(np.minimum, least, graph.holds.op, graph.holds.issue)
        return int(together[np.argmin(least[together])])

    def taking_part(self, op: int) -> Ints:
        """Ranks that a collective or a message needs."""
        if op < self.graph.pair_base:
            return self.evidence.members(op)
        at = op - self.graph.pair_base
        return np.array([self.graph.pairs.rank[at], self.graph.pairs.peer[at]], np.int64)

    def comm_of_op(self, op: int) -> int:
        """Index of the communicator of an operation, -1 for host waits."""
        if op < self.graph.pair_base:
            return op
        if op < self.graph.host_base:
            return int(self.graph.pairs.comm[op - self.graph.pair_base])
        return -1

    def _ranks(self, ranks: Ints) -> Mask:
        mask = np.zeros(self.evidence.world_size, np.bool_)
        mask[ranks] = True
        return mask

    def _order_edges(self) -> "Edges":
        """From an operation to an earlier one that one of its holders is still inside, or behind."""
        graph, ordered = self.graph, self.ordered
        usable = ordered[graph.holds.op] & (graph.holds.issue > 0) & ~self.unrecorded[graph.holds.op]
        holds = graph.holds.where(usable)
        behind = graph.behind.where(ordered[graph.behind.op] & (graph.behind.issue > 0))
        heads = Links.join([holds, behind])
        first = np.full(self.evidence.world_size, np.iinfo(np.uint64).max, np.uint64)
        np.minimum.at(first, heads.rank, heads.issue)
        head = np.full(self.evidence.world_size, -1, np.int64)
        is_first = heads.issue == first[heads.rank]
        head[heads.rank[is_first]] = heads.op[is_first]
        held = Links.join([holds, graph.mirrored.where(ordered[graph.mirrored.op])])
        later = (held.issue > first[held.rank]) & (graph.lack_count[held.op] == 0)
        return Edges(held.op[later], head[held.rank[later]], held.rank[later])


@dataclass(frozen=True, eq=False)
class Edges:
    """`source` waits for `target` because of `rank`, which the one needs and the other holds."""

    source: Ints
    target: Ints
    rank: Ints


def read_situation(evidence: JobEvidence, policy: JudgePolicy) -> Situation:
    """The situation of one job attempt; O(members log members)."""
    processes = read_processes(evidence, policy)
    return Situation(evidence, policy, processes, build_graph(evidence, processes))


def _members(evidence: JobEvidence, comm: Ints, rank: Ints) -> Mask:
    """M: who is among these ranks of these communicators."""
    mask = np.zeros(len(evidence.member_rank), np.bool_)
    slots = evidence.slots_of(comm, rank)
    mask[slots[slots >= 0]] = True
    return mask


def _flags(values: object) -> Mask:
    return np.asarray(values, np.bool_)


def _join(lacks: Links, holds: Links) -> Edges:
    """Edges from the operation that lacks a rank to the one that holds it, over all ranks."""
    order = np.argsort(holds.rank, kind="stable")
    ranks = holds.rank[order]
    low = np.searchsorted(ranks, lacks.rank, "left")
    high = np.searchsorted(ranks, lacks.rank, "right")
    count = high - low
    source = np.repeat(lacks.op, count)
    within = np.arange(len(source)) - np.repeat(np.cumsum(count) - count, count)
    target = holds.op[order][np.repeat(low, count) + within]
    different = source != target
    rank = np.repeat(lacks.rank, count)
    return Edges(source[different], target[different], rank[different])
