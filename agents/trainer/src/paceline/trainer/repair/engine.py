"""Runs the steps of one training process and repairs what interrupts them; all in the training thread."""

import logging
import time
from collections.abc import Callable, Iterator
from typing import Any

from paceline.contracts.recovery import (
    ChildError,
    Order,
    OrderOutcome,
    PhaseReport,
    RecoveryPhase,
    Support,
    parse_members,
)
from paceline.trainer.groups import Groups, RebuildFailed, host_store
from paceline.trainer.groups.errors import first_line
from paceline.trainer.protection import FallbackRequired, NotSettled, RestoreReport
from paceline.trainer.repair.building import Superseded, build
from paceline.trainer.repair.control import Control, Epoch, epoch_of, number_of
from paceline.trainer.repair.errors import NotRepaired, transient_reason
from paceline.trainer.repair.placing import Placing
from paceline.trainer.repair.points import Point, reach
from paceline.trainer.repair.protecting import Protection
from paceline.trainer.repair.switching import Hooks, Switching
from paceline.trainer.repair.wiring import Wiring
from paceline.trainer.supervisor.local import ChildState

log = logging.getLogger("paceline")
SANDBOX_STEPS = 2  # DDP builds its buckets anew in the second one; fewer would hang the first real step
REBUILD_S = 20.0


class Engine(Switching):
    """`steps`, `begin_step` and `end_step` are called by the training thread alone."""

    def __init__(
        self,
        control: Control,
        wired: Wiring,
        protection: Protection,
        placing: Placing,
        wait_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self.hooks = Hooks()
        self._control = control
        self._groups: Groups = wired.groups
        self._wired = wired
        self._protection = protection
        self.placing = placing
        self._support = Support.EXPERIMENTAL.value  # until `steps` begins
        self._wait_s = wait_s
        self._clock = clock
        self._epoch: Epoch = (0, -1)
        self._rank = wired.rank
        self._size = wired.size
        self._failure: BaseException | None = None
        self._failed_at_s = 0.0
        self._first_step_s: float | None = None  # when the first step of a new generation began
        self._step = -1
        self._replayed = 0
        self.live = not wired.outside
        self._warming = not self.live  # takes its steps in the sandbox
        self._member = self.live  # of a generation that has been restored
        self.stores: list[Any] = []
        store, self._endpoint = host_store(wired.host)
        self.stores.append(store)

    @property
    def generation(self) -> int:
        return self._epoch[0]

    @property
    def rank(self) -> int:
        """-1 for a standby."""
        return self._rank if self.live else -1

    @property
    def protection(self) -> tuple[str, str]:
        """As `Session.protection`."""
        return self._protection.status()

    @property
    def step(self) -> int:
        """The one that is being done."""
        return self._step

    def break_transport(self, error: Exception) -> None:
        """For tests: as if the backend had reported `error` for an operation of this rank."""
        self._groups.life.fail(error)

    def corrupt_replica(self) -> None:
        """For tests: damage the newest copy that this rank keeps of its neighbour."""
        self._protection.corrupt_kept()

    def steps(self, total: int, start: int) -> Iterator[int]:
        self._support = self.placing.tell_support()
        if self.live:
            step = self._join_at(start)
        else:
            for _ in self.placing.rehearsals():
                yield from range(start, min(total, start + SANDBOX_STEPS))
            step = self._stand_by()
        while True:
            while step < total:
                self._step = step
                yield step
                step = self._recover() if self._is_broken() else self._pass_boundary(step)
            if self._agree_to_end():
                break
            step = self._recover()

    def _join_at(self, start: int) -> int:
        """All members begin together."""
        self._step = start
        try:
            self._protection.start(self._world(), start - 1, self._number)
        except Exception as error:
            if not self._groups.ended:
                raise
            self._fail(error)
            return self._recover()
        self._tell(start - 1, ready=True)
        return start

    def _stand_by(self) -> int:
        """Wait until a generation needs this process, however long; the step that is due then."""
        self._warming = False
        self._wired.note_meshes()
        self._protection.rehearse()
        self._tell(-1, ready=self.placing.fits)
        self._failed_at_s = self._clock()
        return self._await_place()

    def begin_step(self, number: int) -> None:
        if self.live:
            self._await_copy()
            reach(Point.FORWARD, number, self.generation)

    def _await_copy(self) -> None:
        """The gate of the step before, where no optimizer has one; nothing leaves the head of a step.

        Where the generation ends meanwhile the body begins all the same and comes to its end as any step
        that is cut off, once the copier reads nothing that it may write.
        """
        try:
            self._protection.begin_step()
        except Exception:
            if not (self._groups.ended and self._protection.settle()):
                raise

    def end_step(self, number: int, error: BaseException | None) -> bool:
        """Whether the exception goes no further."""
        if not self.live:
            return False
        if error is not None and not isinstance(error, Exception):
            return False
        if self._groups.ended:
            self._fail(error or self._groups.life.error())
            return True
        if error is not None:
            reason = transient_reason(error)
            if not reason:
                return False
            self._report_error(error)  # before the abort makes the peers tell of theirs
            self._groups.abort(self._groups.generation, f"{reason}: {error}")
            self._fail(error)
            return True
        self._note_step()
        self._protection.end_step(number)
        reach(Point.SNAPSHOT, number, self.generation)
        self._end_first_step(number)
        self._tell(number, ready=True)
        return False

    def _end_first_step(self, number: int) -> None:
        if self._first_step_s is not None:
            seconds = self._clock() - self._first_step_s
            self._send_phase(
                RecoveryPhase.FIRST_STEP, seconds, number, self._replayed, detail=self._take_pause()
            )
            self._first_step_s = None

    def _fail(self, error: BaseException) -> None:
        self._failure = error
        self._failed_at_s = self._clock()

    def tell_fault(self, generation: int, error: BaseException) -> None:
        """This rank's transport failed first; from any thread."""
        self._report_error(error)

    def _report_error(self, error: BaseException) -> None:
        message = f"{type(error).__name__}: {first_line(error)}"
        self._control.tell(
            ChildError(self._control.member, self.generation, max(0, self._step), message[:900])
        )

    def take_order(self, order: Order) -> None:
        """A newer generation begins: what is in flight ends now; from the control thread.

        A warm-up goes on: nothing of it waits for anybody, and its steps are not there to be cut off.
        """
        part, why = self._part, f"generation {order.generation} begins"  # the training thread forgets it
        if not self._warming:
            self._groups.abort(self._groups.generation, why)
        if part is not None:
            part.cancel(why)

    def _is_broken(self) -> bool:
        return self._failure is not None or self._control.newest(self._epoch) is not None

    def _agree_to_end(self) -> bool:
        """Whether all members have done the last step; one that has left could not be asked for its state."""
        import torch.distributed as dist

        try:
            dist.barrier()
        except Exception as error:
            if not self._groups.ended:
                raise
            self._fail(error)
            return False
        self._end_first_step(self._step)  # where the last step was the restored one, no other tells of it
        return True

    # a recovery

    def _recover(self, patient: bool = False) -> int:
        """Wait for the order, rebuild, restore; the step that is due. NotRepaired where nobody leads."""
        failure, self._failure = self._failure, None
        self._forget_part("a recovery begins", is_broken=True)
        if failure is None:
            self._failed_at_s = self._clock()
        if self.live:
            self._call(self.hooks.on_fault, str(failure or "a newer generation begins"))
        failed: Exception | None = None
        while True:
            order = self._control.await_newer(self._epoch, 1e9 if patient else self._wait_s)
            if order is None:
                raise NotRepaired(
                    f"generation {self.generation} broke and no order came within {self._wait_s:g} s"
                ) from (failed or failure)
            patient = False
            self._epoch = epoch_of(order)
            try:
                return self._follow(order)
            except FallbackRequired as error:
                self._control.answer(order, OrderOutcome.FAILED, f"fallback: {error}")
                failed = error
            except Exception as error:
                if not (self._groups.ended or isinstance(error, (RebuildFailed, Superseded, NotSettled))):
                    self._control.answer(order, OrderOutcome.FAILED, f"{type(error).__name__}: {error}")
                    raise
                if self._control.newest(self._epoch) is None:
                    self._control.answer(order, OrderOutcome.FAILED, f"{type(error).__name__}: {error}")
                failed = error

    def _follow(self, order: Order) -> int:
        ordered = self._clock()
        members = parse_members(order.arguments.get("members", ""))
        mine = next(one for one in members if one.member == self._control.member)
        promoted = not self._member
        if self._member:
            self._report(RecoveryPhase.DETECT, self._failed_at_s, self._step, until=ordered)
        else:
            self.placing.become(mine.rank)
        build(
            self._groups,
            order.arguments.get("store", ""),
            self._number,
            order.attempt_no,
            mine.rank,
            len(members),
            REBUILD_S,
            lambda: self._control.newest(self._epoch) is not None,
        )
        self._rank, self._size = mine.rank, len(members)
        self.live = True
        self._report(RecoveryPhase.RENDEZVOUS, ordered, self._step)
        reach(Point.REBUILD, self._step, self.generation)
        self._wired.forget_step()
        if promoted:
            self._wired.give_rank(self._rank)
        done = self._protection.restore(self._world(), self._number)
        step = done.step - 1
        self._report_restore(done, step + 1)
        resuming = self._clock()
        self._replayed = done.replayed
        self._member = True
        if promoted:
            self._call(self.hooks.on_promote, self._rank)
        self._call(self.hooks.on_rebuild, self.generation, step + 1)
        self._tell(step, ready=True)
        self._control.answer(order, OrderOutcome.DONE, f"goes on at step {step + 1}")
        self._report(RecoveryPhase.RESUME, resuming, step + 1)
        self._first_step_s = self._clock()
        return step + 1

    def _world(self) -> Any:
        return next(iter(self._groups.living().values()))

    @property
    def _number(self) -> int:
        """Generation and attempt as one number that only grows."""
        return number_of(self._epoch)

    # what the supervisor is told

    def _report_restore(self, done: RestoreReport, step: int) -> None:
        for phase, seconds, moved in (
            (RecoveryPhase.PARAMETERS, done.settle_s + done.decide_s + done.shared_s, done.bytes_shared),
            (RecoveryPhase.OPTIMIZER, done.own_s + done.load_s, done.bytes_own),
        ):
            self._send_phase(phase, seconds, step, 0, moved, done.reason)

    def _tell(self, step: int, ready: bool) -> None:
        self._control.tell_state(
            ChildState(
                rank=self.rank,
                world_size=self._size,
                generation=self.generation,
                step=step,
                store=self._endpoint,
                replica=self._protection.replica,
                support=self._support,
                ready=ready,
            )
        )

    def _report(
        self, phase: RecoveryPhase, since_s: float, step: int, replayed: int = 0, until: float | None = None
    ) -> None:
        self._send_phase(phase, (self._clock() if until is None else until) - since_s, step, replayed)

    def _send_phase(
        self, phase: RecoveryPhase, seconds: float, step: int, replayed: int, moved: int = 0, detail: str = ""
    ) -> None:
        self._control.tell(
            PhaseReport(
                self._control.member,
                self._rank,
                self.generation,
                phase,
                seconds * 1e3,
                max(0, step),
                replayed,
                moved,
                detail,
                self._epoch[1],
            )
        )

    def _call(self, hooks: list[Callable[..., None]], *arguments: Any) -> None:
        for hook in hooks:
            try:
                hook(*arguments)
            except Exception as error:
                log.warning("a hook of the session failed: %r", error)
