"""Which communicators are stalled: one vectorised step over all members of a job shard."""

from dataclasses import dataclass

import numpy as np

from paceline.analysis.detection.arrays import (
    U8,
    U16,
    U64,
    Bools,
    Ints,
    Rows,
    group_any,
    group_max,
    group_min,
)
from paceline.analysis.detection.gates import GateView
from paceline.analysis.detection.members import Members
from paceline.analysis.detection.policy import StallPolicy
from paceline.analysis.detection.processes import GONE, Mark, Processes
from paceline.analysis.detection.reasons import Gate, Reason
from paceline.contracts.codes import FrameFlag, Phase

NO_HEAD = np.uint64(2**64 - 1)
_ANY_SOURCE = -2


@dataclass(frozen=True)
class Times:
    """Block time and how long ago a gate last applied, ms."""

    now_ns: int
    since_gate_ms: int
    since_held_ms: int
    stale_ns: int  # a row not refreshed for so long says nothing about progress


@dataclass(frozen=True)
class StallView:
    """One entry per communicator, in the order of `Members.comms`."""

    stalled: Bools
    reason: U8
    age_ms: Ints
    head: U64  # oldest open round of a live member, NO_HEAD where none is open
    advanced: U64  # newest round that a live member left behind
    live: Bools  # at least one live member
    idle_ms: Ints  # shortest time since progress among live members

    def stalls(self) -> Ints:
        """Indices of stalled communicators, oldest wait first, ties in order of their ids."""
        index = np.flatnonzero(self.stalled)
        return index[np.argsort(-self.age_ms[index], kind="stable")]


def may_stall(members: Members, peers: Rows, policy: StallPolicy) -> bool:
    """Cheap test that ends the step of a healthy job."""
    floor_ms = int(min(policy.dead_floor_s, policy.floor_s) * 1000)
    if len(members) and int(members.head_age_ms.max()) >= floor_ms:
        return True
    return len(peers) > 0 and int(peers["head_age_ms"].max()) >= floor_ms


def judge_stalls(
    members: Members,
    processes: Processes,
    process_of: Ints,
    peers: Rows,
    learned_ms: Ints,
    usual_ms: int,
    gate: GateView,
    times: Times,
    policy: StallPolicy,
) -> StallView:
    """`process_of`: position of each member's process, -1 unknown.

    `learned_ms`: limit per communicator; `usual_ms`: longest wait of the job while all is well.
    """
    starts = members.starts
    marks = np.zeros(len(members), np.uint16)
    if processes.marks.any():  # else nobody has one, and nothing has to be looked up
        marks = np.where(process_of >= 0, processes.marks[process_of], 0).astype(np.uint16)
    fresh = times.now_ns - members.seen_ns <= times.stale_ns
    live = fresh & ((marks & GONE.value) == 0)
    flags = members.flags
    has_head = live & (members.head_round > 0) & ((flags & FrameFlag.CLOSED) == 0)
    collective_age = group_max(members.head_age_ms * has_head, starts).astype(np.int64)
    pair_age = np.zeros(len(collective_age), np.int64)
    if len(peers):
        pair_age = group_max(_peer_ages(members, peers, live), starts)
    age_ms = np.maximum(collective_age, pair_age)
    still = group_min(np.where(live, members.still, np.uint8(255)), starts)
    limit_ms, reason, effective = _limits(
        age_ms, pair_age > collective_age, marks, starts, learned_ms, usual_ms, gate, times, policy
    )
    stalled = (age_ms > 0) & (effective >= limit_ms) & (still >= policy.still_samples_min)
    backstop_ms = int(policy.backstop_s * 1000)
    beyond = (effective >= backstop_ms) & (limit_ms <= backstop_ms) & ~stalled
    reason[beyond] = Reason.BACKSTOP
    stalled |= beyond
    if gate.holds:
        stalled[:] = False
    return StallView(
        stalled=stalled,
        reason=reason,
        age_ms=age_ms,
        head=group_min(np.where(has_head, members.head_round, NO_HEAD), starts),
        advanced=group_max(np.where(live, _left_behind(members), np.uint64(0)), starts),
        live=group_any(live, starts),
        idle_ms=group_min(np.where(live, members.idle_ms, np.uint32(2**31)), starts).astype(np.int64),
    )


def _left_behind(members: Members) -> U64:
    """Newest round each member is through with; where completion is not seen, the last but one."""
    unseen = (members.flags & FrameFlag.COMPLETION_UNOBSERVABLE) != 0
    if not unseen.any():
        return members.completed
    entered = members.rows["entered"]
    return np.where(unseen, np.where(entered > 0, entered - np.uint64(1), np.uint64(0)), members.completed)


def _peer_ages(members: Members, peers: Rows, live: Bools) -> Ints:
    """Oldest open send or receive of each member, ms; waits for any source may last for ever."""
    ages = np.zeros(len(members), np.int64)
    peers = peers[peers["peer"] != _ANY_SOURCE] if len(peers) else peers
    if len(peers) == 0:
        return ages
    positions = members.locate(peers["comm"].astype(np.uint64), peers["rank"].astype(np.uint32))
    known = positions >= 0
    np.maximum.at(ages, positions[known], peers["head_age_ms"].max(axis=1)[known].astype(np.int64))
    return np.where(live, ages, 0)


def _limits(
    age_ms: Ints,
    is_pair: Bools,
    marks: U16,
    starts: Ints,
    learned_ms: Ints,
    usual_ms: int,
    gate: GateView,
    times: Times,
    policy: StallPolicy,
) -> tuple[Ints, U8, Ints]:
    """Limit, reason and the age to compare with it, for each communicator; later rules win."""
    floor_ms, dead_ms = int(policy.floor_s * 1000), int(policy.dead_floor_s * 1000)
    patient_ms = floor_ms + min(usual_ms, floor_ms)
    limit = np.maximum(learned_ms, patient_ms)
    reason = np.where(is_pair, Reason.P2P_NO_PROGRESS, Reason.NO_PROGRESS).astype(np.uint8)
    reason[limit > patient_ms] = Reason.LEARNED_LIMIT
    # a wait that began under a gate is timed from the end of the gate
    effective = np.minimum(age_ms, times.since_gate_ms)

    finished = _any_marked(marks, Mark.FINISHED, starts)
    long_ms = int(policy.phase_limit_s.get(Phase.FINISH, policy.backstop_s) * 1000)
    limit[finished] = np.maximum(limit[finished], long_ms)
    reason[finished] = Reason.RAGGED_END

    if gate.gate is not Gate.NONE:
        limit = np.maximum(limit, gate.limit_ms)
        reason[:] = Reason.WARMUP_LIMIT if gate.gate is Gate.WARMUP else Reason.PHASE_LIMIT
        effective = age_ms.copy()

    frozen_mark = Mark.STOPPED if gate.gate is not Gate.NONE else Mark.STOPPED | Mark.FROZEN
    frozen = _any_marked(marks, frozen_mark, starts)
    limit[frozen], reason[frozen] = dead_ms, Reason.MEMBER_FROZEN
    effective[frozen] = np.minimum(age_ms[frozen], times.since_held_ms)

    vanished = _any_marked(marks, Mark.VANISHED, starts) & (gate.gate is not Gate.ENDING)
    limit[vanished], reason[vanished] = floor_ms, Reason.MEMBER_DEAD
    effective[vanished] = age_ms[vanished]

    dead = _any_marked(marks, Mark.DEAD, starts)
    limit[dead], reason[dead], effective[dead] = dead_ms, Reason.MEMBER_DEAD, age_ms[dead]
    return limit, reason, effective


def _any_marked(marks: U16, mark: Mark, starts: Ints) -> Bools:
    """Communicators with such a member; usually nobody is marked at all."""
    marked = (marks & mark.value) != 0
    return group_any(marked, starts) if marked.any() else np.zeros(len(starts) - 1, np.bool_)
