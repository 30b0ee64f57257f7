"""One process's part of a planned replacement. Whatever waits is on a side thread, so that training goes on.

PREPARE: `start` builds the groups of the new generation, compares the plan and learns everybody's replica
server. SWITCH: `switch` agrees on a boundary; a joiner then receives the leaver's copy. The training thread
asks `due` at each boundary and does the rest (docs/adr/0045-planned-switch.md).
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.contracts.recovery import Member, Order, OrderOutcome, parse_members
from paceline.trainer.groups import Groups, join_store
from paceline.trainer.groups.errors import first_line
from paceline.trainer.groups.stores import generation_store
from paceline.trainer.repair.control import epoch_of, number_of
from paceline.trainer.repair.protecting import Protection
from paceline.trainer.switch import Member as Process
from paceline.trainer.switch import Replacement as Leaver
from paceline.trainer.switch import derive_topology, plan_switch
from paceline.trainer.switch.agree import NO_BOUNDARY
from paceline.trainer.switch.confirming import confirm
from paceline.trainer.switch.copies import Arriving, Leaving, connect, invite
from paceline.trainer.switch.errors import PrepareFailed, SwitchCancelled, TransferFailed
from paceline.trainer.switch.meeting import Meeting
from paceline.trainer.switch.planner import Role

log = logging.getLogger("paceline")
PREPARE_S_MAX = 300.0
TAKE_OVER_WAIT_S = 600.0  # a prepared joiner waits so long for the others to become ready
HOLD_S = 20.0  # that a proposed boundary is held until everybody has proposed one
ARRIVE_S = 30.0  # until everybody has heard the order to switch; training goes on meanwhile
LOOK_S = 0.001


class BoundaryLost(RuntimeError):
    """Somebody has said nothing about a boundary that this process may not pass without it."""


@dataclass(frozen=True)
class Parts:
    """Who does what, as an order says it. `left`: ranks that change hands; `digest`: of the plan, which
    everybody computes alone."""

    members: tuple[Member, ...]
    left: tuple[int, ...]
    digest: str

    @property
    def everybody(self) -> list[str]:
        """Members of the new generation, and those that leave."""
        return [f"m{one.rank}" for one in self.members] + [f"l{rank}" for rank in self.left]


def parts_of(order: Order) -> Parts:
    """RecoveryMessageError and PlanRefused, both ValueErrors, for an order that nobody can follow."""
    members = parse_members(order.arguments.get("members", ""))
    joiners = set(filter(None, order.arguments.get("joiner", "").split(",")))
    left = tuple(one.rank for one in members if one.member in joiners)
    # Gloo connects everybody with everybody, so each process counts as a machine of its own.
    before = [f"leaves/{one.rank}" if one.rank in left else one.member for one in members]
    topology = derive_topology(
        [Process(name, name) for name in before], rings=1, generation=order.generation - 1
    )
    leaving = [
        Leaver(f"leaves/{one.rank}", (Process(one.member, one.member),))
        for one in members
        if one.rank in left
    ]
    plan, _ = plan_switch(topology, leaving)
    return Parts(tuple(members), left, plan.digest())


class Replacement:
    """Made and told by the control thread; `due` to `call_off` belong to the training thread."""

    def __init__(
        self,
        order: Order,
        me: str,
        rank: int,
        groups: Groups,
        protection: Protection,
        answer: Callable[[Order, OrderOutcome, str], None],
        wake: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.order = order
        self.parts = parts_of(order)
        self.epoch = epoch_of(order)
        mine = next((one for one in self.parts.members if one.member == me), None)
        if mine is None and rank not in self.parts.left:
            raise ValueError(f"the order gives rank {rank} to nobody, and this process holds it")
        self.role = (
            Role.LEAVER if mine is None else Role.JOINER if mine.rank in self.parts.left else Role.STAYER
        )
        self.rank = rank if mine is None else mine.rank
        if self.role is Role.STAYER and mine is not None and mine.rank != rank:
            raise ValueError(f"the order moves rank {rank} to {mine.rank}: ranks keep their place")
        self.prepared: Any = None
        self.leaving: Leaving | None = None  # the leaver's way to its joiner
        self.members: Sequence[Any] = ()  # of the new generation, as protection knows them
        self.switch_order: Order | None = None
        self.prepare_s = 0.0
        self.step = NO_BOUNDARY  # after which the leaver's state was taken, once it is on its way
        self.over = False
        self._groups, self._protection = groups, protection
        self._answer, self._wake, self._clock = answer, wake, clock
        self._limit_s = min(PREPARE_S_MAX, max(1.0, order.expires_unix_s - time.time()))
        self._lock = threading.Lock()
        self._arriving: Arriving | None = None  # the joiner's way from its leaver
        self._meeting: Meeting | None = None
        self._cancelled = ""
        self._hold: int | None = None  # the boundary that was proposed
        self._decided = threading.Event()
        self._agreed = NO_BOUNDARY
        self._lost: BaseException | None = None
        self._arrived = threading.Event()
        self._taken: Mapping[str, Any] = {}  # header of the leaver's copy

    @property
    def size(self) -> int:
        return len(self.parts.members)

    # the first phase

    def start(self) -> None:
        threading.Thread(target=self._run_prepare, name="paceline-prepare", daemon=True).start()

    def _run_prepare(self) -> None:
        started_s = self._clock()
        try:
            self._prepare()
        except Exception as error:
            self._give_up(self.order, OrderOutcome.FAILED, f"{type(error).__name__}: {first_line(error)}")
            return
        self.prepare_s = self._clock() - started_s
        if self._cancelled:
            self.let_go()
        else:
            self._answer(self.order, OrderOutcome.DONE, f"prepared in {self.prepare_s:.3f} s")

    def _prepare(self) -> None:
        store, digest = self._connect(), self.parts.digest
        mine = f"l{self.rank}" if self.role is Role.LEAVER else f"m{self.rank}"
        self._meeting = Meeting(self._own(self._connect(), "switch"), self.parts.everybody, mine)
        private, manifest = self._own(store, f"transfer/{self.rank}"), self._protection.manifest
        if self.role is Role.LEAVER:
            self.leaving = leaving = connect(private, digest, manifest, self._limit_s)
            leaving.offer()
            return
        refused: PrepareFailed | None = None
        if self.role is Role.JOINER:
            self._arriving = arriving = invite(
                private, self._protection.host, digest, manifest, self._limit_s
            )
            try:
                arriving.accept()
            except PrepareFailed as error:
                refused = error
        generation, attempt = number_of(self.epoch), self.epoch[1]
        prepared = self._groups.prepare(generation, attempt, store, self.rank, self.size, self._limit_s)
        try:
            confirm(prepared, self.rank, "" if refused else digest)
        except PrepareFailed as error:
            raise refused or error from None
        self.members = self._protection.meet(next(iter(prepared.inner.values())))
        if not self._protection.prepare(self.rank, self.members, generation, self._limit_s):
            raise PrepareFailed(f"rank {self.rank} does not reach who keeps its copies in the new generation")
        self.prepared = prepared

    def _connect(self) -> Any:
        return join_store(self.order.arguments.get("store", ""))

    def _own(self, store: Any, purpose: str) -> Any:
        return generation_store(store, f"{self._groups.job}/{purpose}", *self.epoch)

    # the second phase

    def switch(self, order: Order, boundary: Callable[[], int]) -> None:
        """Agree on a boundary in the background; `boundary` says the first one that can be reached."""
        self.switch_order = order
        threading.Thread(
            target=self._run_switch, args=(order, boundary), name="paceline-agree", daemon=True
        ).start()

    def _run_switch(self, order: Order, boundary: Callable[[], int]) -> None:
        try:
            self._agree(boundary)
        except Exception as error:
            self._lost = error
            self._decided.set()
            if self._hold is None or self.role is Role.JOINER:
                self._give_up(order, OrderOutcome.REFUSED, f"no agreement: {first_line(error)}")
            return
        if self._agreed == NO_BOUNDARY:
            self._give_up(
                order, OrderOutcome.REFUSED, f"cancelled: {self._cancelled or 'somebody cannot switch'}"
            )
        elif self.role is Role.JOINER:
            self._receive(order)

    def _agree(self, boundary: Callable[[], int]) -> None:
        meeting = self._meeting
        if meeting is None:
            raise ValueError("nothing was prepared")
        try:
            if not self._cancelled:
                meeting.arrive(ARRIVE_S)
        except RuntimeError as error:
            self._cancelled = self._cancelled or f"not everybody has heard of the switch: {first_line(error)}"
        with self._lock:
            proposed = NO_BOUNDARY
            if not self._cancelled:
                proposed = 0 if self.role is Role.JOINER else boundary()
                self._hold = proposed
        meeting.propose(proposed)
        self._agreed = meeting.agreed(HOLD_S)
        self._decided.set()

    def _receive(self, order: Order) -> None:
        arriving, protection = self._arriving, self._protection
        try:
            if arriving is None:
                raise SwitchCancelled("it was dropped")
            self.step, text = arriving.await_state(TAKE_OVER_WAIT_S)
            self._wake()
            self._taken = arriving.take(text, protection.room_for, protection.is_whole)
        except Exception as error:
            self._lost = error
            if self.step == NO_BOUNDARY:
                called_off = isinstance(error, SwitchCancelled)
                outcome = OrderOutcome.REFUSED if called_off else OrderOutcome.FAILED
                self._give_up(order, outcome, f"{type(error).__name__}: {first_line(error)}")
        self._arrived.set()

    # the training thread

    def due(self, step: int, is_superseded: Callable[[], bool]) -> bool:
        """Whether everybody switches at the end of `step`. Waits where this process has proposed it and does
        not know yet what others have; BoundaryLost where it never gets to know it."""
        with self._lock:
            hold = self._hold
        if hold is None or step < hold or self.over or self.role is Role.JOINER:
            return False
        until_s = self._clock() + HOLD_S
        while not self._decided.wait(LOOK_S):
            if is_superseded():
                return False
            if self._clock() >= until_s:
                raise BoundaryLost(f"no agreement on a boundary within {HOLD_S:g} s")
        if self._lost is not None:
            raise BoundaryLost(f"no agreement on a boundary: {first_line(self._lost)}")
        return self._agreed == step

    def await_copy(self, is_superseded: Callable[[], bool]) -> Mapping[str, Any]:
        """The joiner's: the header of the leaver's copy, once all of it is here. TransferFailed."""
        while not self._arrived.wait(LOOK_S):
            if is_superseded():
                raise TransferFailed("a newer generation begins")
        if self._lost is not None:
            raise TransferFailed(f"{type(self._lost).__name__}: {first_line(self._lost)}") from self._lost
        return self._taken

    @property
    def is_ready(self) -> bool:
        """Whether nothing has come between since the agreement."""
        return not self._cancelled and not self.over

    def call_off(self, why: str) -> None:
        """All have decided at one boundary that it does not take place."""
        if self.leaving is not None:
            try:
                self.leaving.cancel()
            except OSError as error:
                log.warning("the joiner could not be told: %s", first_line(error))
        if self.switch_order is not None:
            self._give_up(self.switch_order, OrderOutcome.REFUSED, why)

    # the end

    def cancel(self, why: str = "it was cancelled", unless_bound: bool = False) -> bool:
        """Forget it, from any thread. False where this process has said at which boundary it can switch: only
        all together can cancel then, by its vote, which is against it now except with `unless_bound`."""
        with self._lock:
            bound = self._hold is not None and not self.over
            if not (bound and unless_bound):
                self._cancelled = self._cancelled or why
        if bound:
            return False
        if self.switch_order is None:
            self.let_go()
        return True

    def done(self) -> None:
        """It took place: the groups are in use, and what is not needed any more is closed later."""
        self.over, self.prepared = True, None
        if self._arriving is not None:
            self._arriving.close()

    def _give_up(self, order: Order, outcome: OrderOutcome, message: str) -> None:
        self._answer(order, outcome, message)
        self.let_go()

    def let_go(self) -> None:
        """Drop what was prepared. Closing groups takes tens of ms: on a thread of its own."""
        self.over = True
        for link in (self.leaving, self._arriving):
            if link is not None:
                link.close()
        if self.role is not Role.LEAVER:
            self._protection.drop(number_of(self.epoch))
        held = [self.prepared, self._meeting]
        self.prepared = self.leaving = self._arriving = self._meeting = None
        threading.Thread(target=held.clear, name="paceline-drop", daemon=True).start()
