"""How a `LocalController` leads a planned replacement: prepare, switch, or forget it. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from paceline.contracts.recovery import (
    Member,
    OrderKind,
    OrderOutcome,
    OrderResult,
    PhaseReport,
    RecoveryPhase,
    format_members,
)
from paceline.trainer.testing.roster import Known, Plan, plan_replacement

PLANNED_S = 30.0  # of each of the two phases
Send = Callable[[str, OrderKind, dict[str, str]], str]  # member, kind, arguments -> id of the order


@dataclass
class Planned:
    """One of them. `end` is empty while it goes on, then `resumed` or why it was rolled back."""

    plan: Plan
    generation: int
    leaver: str
    joiner: str
    deadline_s: float
    switching: bool = False
    orders: dict[str, str] = field(default_factory=dict)  # of the present phase: id -> member
    done: set[str] = field(default_factory=set)
    stepped: set[int] = field(default_factory=set)
    reached: bool = False  # somebody is in the new generation
    failed: bool = False  # after the switch: its rank is lost
    end: str = ""

    @property
    def names(self) -> list[str]:
        return [*(one.member for one in self.plan.members), self.leaver]

    def arguments(self) -> dict[str, str]:
        members: Sequence[Member] = self.plan.members
        return {
            "store": self.plan.store, "members": format_members(members), "leaver": self.leaver,
            "joiner": self.joiner, "reason": self.plan.reason,
        }  # fmt: skip

    def send(self, kind: OrderKind, send: Send, now_s: float) -> None:
        """The order of a phase to everybody who has a part."""
        self.deadline_s, self.done = now_s + PLANNED_S, set()
        self.switching = kind is OrderKind.SWITCH
        self.orders = {send(name, kind, self.arguments()): name for name in self.names}

    def on_result(self, result: OrderResult, send: Send, now_s: float) -> None:
        """All are ready: switch. Somebody is not: forget it. After the switch a failure is a loss as any."""
        if result.id not in self.orders or self.end:
            return
        if result.outcome is OrderOutcome.DONE:
            self.done.add(self.orders[result.id])
            if not self.switching and self.done >= set(self.names):
                self.send(OrderKind.SWITCH, send, now_s)
        elif not self.switching or (result.outcome is OrderOutcome.REFUSED and not self.reached):
            self.end = f"{self.orders[result.id]}: {result.message}"
        elif result.outcome is OrderOutcome.FAILED:
            self.failed = True

    def on_phase(self, report: PhaseReport) -> None:
        if report.generation != self.generation or not self.switching:
            return
        self.reached = True
        if report.phase is RecoveryPhase.FIRST_STEP:
            self.stepped.add(report.rank)
            if len(self.stepped) == len(self.plan.members):
                self.end = "resumed"


def begin(
    by_rank: dict[int, Known], rank: int, standbys: Sequence[Known], generation: int, now_s: float
) -> Planned | str:
    """A planned replacement of `rank`; in words why there is none."""
    ready = [one for one in standbys if one.alive and one.hello.ready]
    if rank not in by_rank or not by_rank[rank].alive:
        return f"rank {rank} has no living process"
    if not ready:
        return "no standby is ready"
    plan = plan_replacement(by_rank, (rank,), ready)
    joiner = next(one.member for one in plan.members if one.rank == rank)
    return Planned(plan, generation, by_rank[rank].hello.member, joiner, now_s + PLANNED_S)
