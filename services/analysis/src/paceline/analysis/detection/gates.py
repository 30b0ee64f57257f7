"""Which limits apply to the whole job right now, and why."""

from dataclasses import dataclass

import numpy as np

from paceline.analysis.detection.arrays import SECOND_NS
from paceline.analysis.detection.members import Members
from paceline.analysis.detection.policy import StallPolicy
from paceline.analysis.detection.processes import GONE, Mark, Processes
from paceline.analysis.detection.reasons import Gate
from paceline.contracts.codes import Function, Phase

LIMIT_NEVER_MS = 2**62


@dataclass(frozen=True)
class GateView:
    """`limit_ms` replaces every shorter limit while the gate is not NONE."""

    gate: Gate
    limit_ms: int = 0
    lets_learn: bool = True  # rounds are comparable with others

    @property
    def holds(self) -> bool:
        """Nothing can stall: nobody is meant to run."""
        return self.gate in (Gate.SUSPENDED, Gate.TRACED)


NO_GATE = GateView(Gate.NONE)


def judge_gate(processes: Processes, stepless_warm: bool, policy: StallPolicy) -> GateView:
    """The strongest gate; `stepless_warm` ends the warm-up of a job that declares no steps.

    The phase gate is job-wide on purpose: who waits for a rank in a checkpoint is itself waited
    for in other communicators, and through other shards we cannot see.
    """
    marks = processes.marks
    alive = (marks & GONE.value) == 0
    if np.any(marks & Mark.TRACED.value):
        return GateView(Gate.TRACED, LIMIT_NEVER_MS, False)
    stopped = (marks & Mark.STOPPED.value) != 0
    if alive.any() and bool(np.all(stopped[alive])):
        return GateView(Gate.SUSPENDED, LIMIT_NEVER_MS, False)
    orderly = np.count_nonzero(marks & (Mark.FINISHED | Mark.TOLD_TO_STOP).value)
    if orderly * 2 >= max(len(marks), 1) and not np.any(marks & Mark.DEAD.value):
        return GateView(Gate.ENDING, _long_ms(policy, Phase.FINISH), False)
    declared = np.flatnonzero(marks & Mark.DECLARED.value)
    if len(declared):
        phases = np.unique(processes.rows["phase"][declared])
        limit_ms = max(_long_ms(policy, Phase(int(phase))) for phase in phases)
        # loading data is part of every step; the other phases are not steps at all
        return GateView(Gate.PHASE, limit_ms, lets_learn=bool(np.all(phases == Phase.DATA)))
    if not _is_warm(processes, stepless_warm, policy):
        return GateView(Gate.WARMUP, int(policy.warmup_limit_s * 1000), False)
    return NO_GATE


def host_wait_limits_ms(gate: GateView, policy: StallPolicy) -> tuple[int, int]:
    """How long the rendezvous, and any other wait outside a collective, may last.

    The rendezvous is timed by the warm-up even in a declared phase: a rank that never arrives keeps
    everybody there, and waiting for it is no phase of its own.
    """
    if gate.holds or gate.gate is Gate.ENDING:
        return LIMIT_NEVER_MS, LIMIT_NEVER_MS
    usual = int(policy.backstop_s * 1000) if gate.gate is Gate.NONE else gate.limit_ms
    return int(policy.warmup_limit_s * 1000), usual


def _long_ms(policy: StallPolicy, phase: Phase) -> int:
    return int(policy.phase_limit_s.get(phase, policy.backstop_s) * 1000)


def moves_on(members: Members, since_ns: int) -> bool:
    """Whether something other than a broadcast went on in a sample taken since: set-up hands parameters
    out by broadcasts, for as long as it takes."""
    moved = (members.still == 0) & (members.seen_ns >= since_ns)
    return bool(moved.any()) and bool((members.rows["function"][moved] != Function.BROADCAST).any())


def is_stepless_warm(members: Members, beats: int, moves: bool, age_ns: int, policy: StallPolicy) -> bool:
    """The job is past its set-up although it counts no steps: by rounds that completed again and again.

    `beats`: ticks at which something moved on (`moves_on`), `moves`: this one is among them.
    """
    completed = int(members.completed.max()) if len(members) else 0
    if completed >= policy.stepless_rounds_sure:
        return True
    if completed >= policy.stepless_rounds and beats >= policy.stepless_beats:
        return True
    enough = completed >= policy.stepless_rounds or beats >= policy.stepless_rounds  # messages are no rounds
    return moves and enough and age_ns >= policy.stepless_s * SECOND_NS


def _is_warm(processes: Processes, stepless_warm: bool, policy: StallPolicy) -> bool:
    """The first step is done: everywhere, or provably by ranks that are well past it."""
    if len(processes) == 0:
        return False
    most = int(processes.step.max())
    if most == 0:
        return stepless_warm
    return most >= policy.warmup_steps or int(processes.step.min()) >= 1
