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
from paceline.trainer.switch.copies import CopyTransfer
from paceline.trainer.switch.errors import PrepareFailed, SwitchCancelled
from paceline.trainer.switch.meeting import Meeting
from paceline.trainer.switch.members import TAKE_OVER_WAIT_S, confirm
from paceline.trainer.switch.planner import Role
from paceline.trainer.switch.transfer import JOINER, LEAVER

log = logging.getLogger("paceline")
PREPARE_S_MAX = 300.0
TRANSFER_S = 60.0  # of one message between leaver and joiner
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
        self.pair: CopyTransfer | None = None
        self.members: Sequence[Any] = ()  # of the new generation, as protection knows them
        self.switch_order: Order | None = None
        self.prepare_s = 0.0
        self.taken: Mapping[str, Any] | None = None  # header of the leaver's copy, once it is here
        self.step = NO_BOUNDARY  # after which it was taken
        self.over = False
        self._groups, self._protection = groups, protection
        self._answer, self._wake, self._clock = answer, wake, clock
        self._limit_s = min(PREPARE_S_MAX, max(1.0, order.expires_unix_s - time.time()))
        self._lock = threading.Lock()
        self._meeting: Meeting | None = None
        self._cancelled = ""
        self._hold: int | None = None  # the boundary that was proposed
        self._decided = threading.Event()
        self._agreed = NO_BOUNDARY
        self._lost: BaseException | None = None

    @property
    def size(self) -> int:
        return len(self.parts.members)

    @property
    def is_bound(self) -> bool:
        """Whether this process has said at which boundary it can switch: only all together can cancel now."""
        return self._hold is not None and not self.over

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
        if self.role is Role.LEAVER:
            self.pair = pair = self._pair(store, LEAVER)
            pair.offer(digest)
            return
        refused: PrepareFailed | None = None
        if self.role is Role.JOINER:
            self.pair = pair = self._pair(store, JOINER)
            try:
                pair.accept(digest)
            except PrepareFailed as error:
                refused = error
        generation, attempt = number_of(self.epoch), self.epoch[1]
        prepared = self._groups.prepare(generation, attempt, store, self.rank, self.size, self._limit_s)
        try:
            confirm(prepared, self.rank, "" if refused else digest)
        except PrepareFailed as error:
            raise refused or error from None
        self.members = self._protection.meet(next(iter(prepared.inner.values())))
        self.prepared = prepared

    def _connect(self) -> Any:
        return join_store(self.order.arguments.get("store", ""))

    def _own(self, store: Any, purpose: str) -> Any:
        return generation_store(store, f"{self._groups.job}/{purpose}", *self.epoch)

    def _pair(self, store: Any, place: int) -> CopyTransfer:
        """The group of leaver and joiner, apart from those of the job."""
        group = self._groups.backend.build(
            self._own(store, f"transfer/{self.rank}"),
            place,
            2,
            number_of(self.epoch),
            self._limit_s,
            TRANSFER_S,
        )
        return CopyTransfer(group, place, self._protection.manifest, TRANSFER_S)

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
        pair, protection = self.pair, self._protection
        try:
            if pair is None:
                raise SwitchCancelled("it was dropped")
            self.step, self.taken = pair.take(TAKE_OVER_WAIT_S, protection.room_for, protection.is_whole)
        except Exception as error:
            called_off = isinstance(error, SwitchCancelled)
            outcome = OrderOutcome.REFUSED if called_off else OrderOutcome.FAILED
            self._give_up(order, outcome, f"{type(error).__name__}: {first_line(error)}")
        self._wake()

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

    @property
    def is_ready(self) -> bool:
        """Whether nothing has come between since the agreement."""
        return not self._cancelled and not self.over

    def call_off(self, why: str) -> None:
        """All have decided at one boundary that it does not take place."""
        if self.role is Role.LEAVER and self.pair is not None:
            try:
                self.pair.cancel()
            except RuntimeError as error:
                log.warning("the joiner could not be told: %s", first_line(error))
        if self.switch_order is not None:
            self._give_up(self.switch_order, OrderOutcome.REFUSED, why)

    # the end

    def cancel(self, why: str = "it was cancelled") -> bool:
        """Forget it, from any thread; False where the agreement is on its way and others have to agree."""
        with self._lock:
            self._cancelled = self._cancelled or why
            bound = self._hold is not None
        if bound and not self.over:
            return False
        if self.switch_order is None:
            self.let_go()
        return True

    def done(self) -> None:
        """It took place: the groups are in use, and what is not needed any more is closed later."""
        self.over, self.prepared = True, None

    def _give_up(self, order: Order, outcome: OrderOutcome, message: str) -> None:
        self._answer(order, outcome, message)
        self.let_go()

    def let_go(self) -> None:
        """Drop what was prepared. Closing groups takes tens of ms: on a thread of its own."""
        self.over = True
        held = [self.prepared, self.pair, self._meeting]
        self.prepared = self.pair = self._meeting = None
        threading.Thread(target=held.clear, name="paceline-drop", daemon=True).start()
