"""A job of four ranks and two standbys as the registry has it, and a world around it."""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from paceline.contracts.recovery import OrderOutcome, RecoveryPhase, Role, Support
from paceline.contracts.repair import RepairCause, RepairLimits, RepairMode, RepairState
from paceline.remediator.machine import decide
from paceline.remediator.model import (
    Event,
    JobRepair,
    Member,
    OrderAnswer,
    PhaseDone,
    Policies,
    Policy,
    ProcessExit,
    SendOrder,
    Step,
    Tick,
    World,
)

NOW = 1000.0


def make_member(name: str, rank: int, node: str, **changes: object) -> Member:
    pid = 100 + sum(map(ord, name))
    member = Member(
        member=name, node=node, role=Role.MEMBER if rank >= 0 else Role.STANDBY, rank=rank, child_pid=pid,
        child_pid_start=pid * 7, generation=0, step=40, store=f"{name}:1", replica=f"{name}:2",
        failure_domain=node, ready=True, support=Support.VERIFIED, lease_s=0.0, left=False,
    )  # fmt: skip
    return replace(member, **changes)  # type: ignore[arg-type]


class Rig:
    """A job, its registry and its clock; `sent` are the orders so far."""

    def __init__(self, mode: RepairMode = RepairMode.AUTO, **limits: float) -> None:
        self.members = {
            name: make_member(name, rank, node)
            for name, rank, node in (
                ("m0", 0, "n0"), ("m1", 1, "n0"), ("m2", 2, "n1"), ("m3", 3, "n1"),
                ("s0", -1, "n1"), ("s1", -1, "n2"),
            )
        }  # fmt: skip
        self.policy = Policy(mode, limits=replace(RepairLimits(), **limits))  # type: ignore[arg-type]
        self.by_cause: dict[RepairCause, Policy] = {}
        self.may_act = True
        self.job = JobRepair("train", "a1")
        self.now_s = NOW
        self.heard_s = math.inf
        self.evidence_pending = False
        self.sent: list[SendOrder] = []
        self.steps: list[Step] = []
        self._events = 0

    def world(self) -> World:
        policies = Policies(self.policy, self.by_cause, self.may_act)
        return World(tuple(self.members.values()), policies, self.now_s, self.evidence_pending, self.heard_s)

    def feed(self, event: Event) -> Step:
        step = decide(self.job, event, self.world())
        assert step.job.generation >= self.job.generation
        self.job = step.job
        self.steps.append(step)
        self.sent += [effect for effect in step.effects if isinstance(effect, SendOrder)]
        return step

    def tick(self, seconds: float = 0.0) -> Step:
        self.now_s += seconds
        return self.feed(Tick())

    def change(self, name: str, **changes: object) -> None:
        self.members[name] = replace(self.members[name], **changes)  # type: ignore[arg-type]

    def new_id(self) -> str:
        self._events += 1
        return f"evt_{self._events}"

    def kill(self, name: str, code: int | None = -9, *, reported: bool = True) -> Step:
        member = self.members[name]
        event = ProcessExit(
            self.new_id(), self.now_s, member.rank, name if reported else "", member.child_pid,
            member.child_pid_start, code,
        )  # fmt: skip
        self.change(name, child_pid=0, child_pid_start=0, ready=False)
        return self.feed(event)

    def answer(self, name: str, outcome: OrderOutcome = OrderOutcome.DONE, message: str = "") -> Step:
        action = self.job.action
        generation = 0 if action is None else action.generation
        tried = 0 if action is None else action.attempt_no
        command = f"cmd-{generation}-{tried}"
        if self.job.state is RepairState.FENCING and action is not None:
            command = dict(action.fences).get(name, "")  # of the newest try
        return self.feed(OrderAnswer(self.new_id(), self.now_s, name, generation, command, outcome, message))

    def phase(
        self, name: str, phase: RecoveryPhase, generation: int | None = None, attempt_no: int = -1
    ) -> Step:
        found = self.job.generation if generation is None else generation
        return self.feed(PhaseDone(self.new_id(), self.now_s, name, found, phase, 41, 1, "", attempt_no))

    def finish(self) -> Step:
        """Every member of the open generation meets and makes a step; the registry follows."""
        assert self.job.action is not None
        seats = self.job.action.seats
        for phase in (RecoveryPhase.RENDEZVOUS, RecoveryPhase.FIRST_STEP):
            for seat in seats:
                step = self.phase(seat.member, phase)
        for seat in seats:
            self.change(
                seat.member, rank=seat.rank, role=Role.MEMBER, generation=self.job.generation, step=42
            )
        return step


@pytest.fixture
def make_rig() -> Callable[..., Rig]:
    return Rig


@pytest.fixture
def rig() -> Rig:
    return Rig()
