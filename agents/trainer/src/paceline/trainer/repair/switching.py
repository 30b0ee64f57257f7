"""A planned replacement as the engine of one training process carries it out.

The control thread hands orders to a `Replacement`; at the boundary that all have agreed on the training
thread votes, and then stays in the new groups, hands its state over, or takes another's place.
"""

import logging
import os
import sys
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from paceline.contracts.recovery import Order, OrderKind, OrderOutcome, RecoveryPhase
from paceline.trainer.groups import Groups
from paceline.trainer.repair.control import Control, Epoch, epoch_of
from paceline.trainer.repair.placing import Placing
from paceline.trainer.repair.protecting import Protection
from paceline.trainer.repair.replacement import BoundaryLost, Replacement
from paceline.trainer.repair.wiring import Wiring
from paceline.trainer.switch.agree import NO_BOUNDARY, Ballot, Decision
from paceline.trainer.switch.planner import Role

log = logging.getLogger("paceline")
STEPS_TIMED = 16
AGREE_S = 0.05  # that an agreement on a boundary may take without a rank having to wait for it
LEAD_STEPS_MAX = 50
DIFFERENT_PLACES = "ranks hold different objects (Session.on_place): only a lost rank can be replaced there"
LAST_WORDS_S = 2.0  # that a leaver waits for its supervisor to have heard how it ends


@dataclass
class Hooks:
    on_fault: list[Callable[[str], None]] = field(default_factory=list)
    on_rebuild: list[Callable[[int, int], None]] = field(default_factory=list)
    on_promote: list[Callable[[int], None]] = field(default_factory=list)


class Switching(ABC):
    """What `Engine` knows of planned replacements; it sets what is only declared here."""

    hooks: Hooks
    live: bool
    _control: Control
    _groups: Groups
    _wired: Wiring
    _protection: Protection
    placing: Placing
    _clock: Callable[[], float]
    _epoch: Epoch
    _rank: int
    _size: int
    _step: int
    _replayed: int
    _first_step_s: float | None
    _warming: bool
    _member: bool

    def __init__(self) -> None:
        self._part: Replacement | None = None  # of the planned replacement that was ordered last
        self._step_ended_s: float | None = None  # when the newest step was done
        self._steps_s: deque[float] = deque(maxlen=STEPS_TIMED)
        self._paused_s: float | None = None  # since when a switch holds training up

    def take_planned(self, order: Order) -> None:
        """PREPARE, SWITCH, CANCEL; from the control thread."""
        part = self._part
        if order.kind is OrderKind.PREPARE:
            self._take_prepare(order)
        elif part is None or part.over or part.epoch != epoch_of(order):
            is_cancel = order.kind is OrderKind.CANCEL
            outcome = OrderOutcome.DONE if is_cancel else OrderOutcome.REFUSED
            self._control.answer(order, outcome, f"nothing is prepared for generation {order.generation}")
        elif order.kind is OrderKind.SWITCH:
            part.switch(order, self._next_boundary)
        elif part.cancel():
            self._control.answer(order, OrderOutcome.DONE, "what was prepared is dropped")
        else:
            self._control.answer(order, OrderOutcome.DONE, "the vote at the boundary is against it")

    def _take_prepare(self, order: Order) -> None:
        if self._warming or (self.live and not self._member) or self._is_broken():
            self._control.answer(order, OrderOutcome.REFUSED, "this process is not ready for a switch")
        elif not self.live and self.placing.differs:
            self._control.answer(order, OrderOutcome.REFUSED, DIFFERENT_PLACES)
        elif not self._forget_part("another one is prepared"):
            self._control.answer(order, OrderOutcome.REFUSED, "another switch is under way")
        else:
            self._part = Replacement(
                order, self._control.member, self.rank, self._groups, self._protection,
                self._control.answer, self._control.wake, self._clock,
            )  # fmt: skip
            self._part.start()

    def _note_step(self) -> None:
        """One more is done. What a step takes is what lies between two ends without a repair."""
        now = self._clock()
        if self._step_ended_s is not None and self._first_step_s is None:
            self._steps_s.append(now - self._step_ended_s)
        self._step_ended_s = now

    def _take_pause(self) -> str:
        """How long the switch has held training up, in words; empty where there was none."""
        since_s, self._paused_s = self._paused_s, None
        if since_s is None:
            return ""
        steady_s = median(self._steps_s) if self._steps_s else 0.0
        return f"training stood still for {max(0.0, self._clock() - since_s - steady_s) * 1e3:.1f} ms"

    def _forget_part(self, why: str, is_broken: bool = False) -> bool:
        """What was prepared is for a generation that does not come. False where others count on this
        process's vote at a boundary, unless the generation in which all would vote `is_broken`."""
        part = self._part
        if part is None:
            return True
        was_over = part.over
        if not part.cancel(why, unless_bound=not is_broken) and not is_broken:
            return False
        self._part = None
        if not was_over:
            self._control.answer(part.switch_order or part.order, OrderOutcome.REFUSED, why)
        part.let_go()
        return True

    def _next_boundary(self) -> int:
        """The end of a step that is far enough away for everybody to have agreed by then."""
        typical_s = median(self._steps_s) if self._steps_s else 0.0
        lead = min(LEAD_STEPS_MAX, int(AGREE_S / typical_s)) if typical_s > 0 else 0
        return self._step + 1 + lead

    def _is_superseded(self) -> bool:
        return self._control.newest(self._epoch) is not None or self._groups.ended

    def _has_place(self) -> bool:
        """Whether a leaver's state is on its way to this process: the others are about to switch."""
        return self._part is not None and self._part.step != NO_BOUNDARY and not self._part.over

    def _pass_boundary(self, step: int) -> int:
        """Between `step` and the next one, which is given back."""
        part = self._part
        if part is None:
            return step + 1
        try:
            if part.due(step, self._is_superseded) and self._vote(part, step):
                if part.role is Role.LEAVER:
                    self._hand_over(part, step)
                else:
                    self._change(part, step)
        except Exception as error:
            if isinstance(error, BoundaryLost):
                self._report_error(error)
                self._groups.abort(self._groups.generation, str(error))
            if not self._groups.ended:
                raise
            self._fail(error)
        return self._recover() if self._is_broken() else step + 1

    def _vote(self, part: Replacement, step: int) -> bool:
        """The last word, which all ranks hear alike: everybody is at this boundary, the leaver with a whole
        copy of the step."""
        import torch
        import torch.distributed as dist

        is_covered = part.prepared is None or self._groups.is_covered(part.prepared)
        is_ready = part.is_ready and is_covered
        if part.role is Role.LEAVER:  # the copies of the others come to their end while its own travels
            is_ready = is_ready and self._protection.has_copy(step)
        ballot = Ballot(self._size)
        # The script may have set other defaults.
        total = torch.tensor([ballot.vote(is_ready)], dtype=torch.float32, device="cpu")
        dist.all_reduce(total)
        decision = ballot.decide(float(total))
        if decision is not Decision.SWITCH:
            part.call_off(decision.value)
        return decision is Decision.SWITCH

    def _change(self, part: Replacement, step: int) -> None:
        """A stayer's: the prepared groups take over, and copies go to the new ring."""
        self._paused_s = self._step_ended_s
        self._enter(part)
        self._protection.enter(part.rank, part.members, self._number, step)
        self._resume_in(part, step)

    def _enter(self, part: Replacement) -> None:
        self._epoch = part.epoch
        self._groups.switch(part.prepared)
        if self._control.newest(self._epoch) is not None:  # whoever ended the groups has ended the old ones
            self._groups.abort(self._groups.generation, "a newer generation begins")

    def _resume_in(self, part: Replacement, step: int) -> None:
        since_s, self._replayed = self._step_ended_s or self._clock(), 0
        self._report(RecoveryPhase.RENDEZVOUS, since_s, step)
        part.done()
        self._call(self.hooks.on_rebuild, self.generation, step + 1)
        self._tell(step, ready=True)
        if part.switch_order is not None:
            self._control.answer(part.switch_order, OrderOutcome.DONE, f"goes on at step {step + 1}")
        self._report(RecoveryPhase.RESUME, since_s, step + 1)
        self._first_step_s = self._clock()

    def _hand_over(self, part: Replacement, step: int) -> None:
        """The leaver's: its state goes to the joiner, and this process ends here, with status 0."""
        assert part.leaving is not None
        assert part.switch_order is not None
        try:
            part.leaving.give(step, *self._protection.copy_of(step, self._rank))
        except Exception as error:
            self._control.answer(part.switch_order, OrderOutcome.FAILED, f"{type(error).__name__}: {error}")
            self._groups.abort(self._groups.generation, f"the state did not reach the joiner: {error}")
            raise
        self._control.answer(part.switch_order, OrderOutcome.DONE, f"has left after step {step}")
        sys.stdout.flush()
        sys.stderr.flush()
        self._control.flush(LAST_WORDS_S)
        os._exit(0)

    def _await_place(self) -> int:
        """A warm standby's: until a generation needs this process, planned or not; the step that is due."""
        while not self.live:
            if self._control.await_newer(self._epoch, 1e9, self._has_place) is not None:
                break
            part = self._part
            if part is None or not self._has_place():
                break  # the supervisor is gone
            try:
                return self._take_over(part)
            except Exception as error:
                self._fail_over(part, error)
        return self._recover(patient=not self.live)

    def _take_over(self, part: Replacement) -> int:
        """The joiner's: become what the leaver was, in the prepared groups; the step that is due."""
        started_s, step = self._clock(), part.step
        self._step_ended_s = started_s
        self._wired.forget_step()
        self._enter(part)
        header = part.await_copy(lambda: self._control.newest(self._epoch) is not None)
        self._rank, self._size = part.rank, part.size
        self._wired.give_rank(self._rank)
        self._protection.load(header)
        self.live = self._member = True
        self._protection.enter(part.rank, part.members, self._number, step)
        self._send_phase(
            RecoveryPhase.OPTIMIZER, self._clock() - started_s, step + 1, 0,
            sum(int(size) for _, _, size, _ in header["parts"]), "the leaver's copy",
        )  # fmt: skip
        self._call(self.hooks.on_promote, self._rank)
        self._resume_in(part, step)
        return step + 1

    def _fail_over(self, part: Replacement, error: Exception) -> None:
        """A joiner that cannot take over is a lost rank to the others, who have switched."""
        log.warning("the place of rank %d could not be taken: %r", part.rank, error)
        part.done()
        if part.switch_order is not None:
            message = f"{type(error).__name__}: {error}"
            self._control.answer(part.switch_order, OrderOutcome.FAILED, message)
        if self.live:
            self._fail(error)

    # of the engine

    @property
    @abstractmethod
    def generation(self) -> int: ...

    @property
    @abstractmethod
    def rank(self) -> int: ...

    @property
    @abstractmethod
    def _number(self) -> int: ...

    @abstractmethod
    def _is_broken(self) -> bool: ...

    @abstractmethod
    def _recover(self, patient: bool = False) -> int: ...

    @abstractmethod
    def _fail(self, error: BaseException) -> None: ...

    @abstractmethod
    def _report_error(self, error: BaseException) -> None: ...

    @abstractmethod
    def _tell(self, step: int, ready: bool) -> None: ...

    @abstractmethod
    def _call(self, hooks: list[Callable[..., None]], *arguments: Any) -> None: ...

    @abstractmethod
    def _report(
        self, phase: RecoveryPhase, since_s: float, step: int, replayed: int = 0, until: float | None = None
    ) -> None: ...

    @abstractmethod
    def _send_phase(
        self, phase: RecoveryPhase, seconds: float, step: int, replayed: int, moved: int = 0, detail: str = ""
    ) -> None: ...
