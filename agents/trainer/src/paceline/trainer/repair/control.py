"""The training process's end of the socketpair: one thread that hears orders while training computes."""

import logging
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Mapping

from paceline.contracts.agent_socket import FramingError
from paceline.contracts.recovery import (
    FromSupervisor,
    Order,
    OrderKind,
    OrderOutcome,
    OrderResult,
    RecoveryMessageError,
    encode_recovery,
    parse_recovery,
)
from paceline.trainer.supervisor import FD_VARIABLE, MEMBER_VARIABLE
from paceline.trainer.supervisor.channel import Channel
from paceline.trainer.supervisor.local import ChildDying, ChildState, encode_from_child

log = logging.getLogger("paceline")
TICK_S = 0.5
EPOCHS_OF_A_GENERATION = 1000
PLANNED = (OrderKind.PREPARE, OrderKind.SWITCH, OrderKind.CANCEL)
Epoch = tuple[int, int]  # generation and attempt within it, which only grow


class Control:
    """Knows the newest generation that was ordered. All methods may be called by any thread."""

    def __init__(
        self,
        channel: Channel,
        member: str,
        on_order: Callable[[Order], None],
        on_planned: Callable[[Order], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._channel = channel
        self.member = member
        self._on_order = on_order
        self._on_planned = on_planned
        self._clock = clock
        self._changed = threading.Condition()
        self._newest: Order | None = None
        self._state: ChildState | None = None
        self._lost = False
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self._thread = threading.Thread(target=self._run, name="paceline-control", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def lost(self) -> bool:
        """Whether the supervisor is gone; nothing is repaired any more."""
        return self._lost

    def newest(self, after: Epoch) -> Order | None:
        """The newest order that begins a generation later than `after`."""
        order = self._newest
        return order if order is not None and epoch_of(order) > after else None

    def await_newer(
        self, after: Epoch, timeout_s: float, unless: Callable[[], bool] = lambda: False
    ) -> Order | None:
        """As `newest`, waiting for it; None after `timeout_s`, where the supervisor is gone, and where
        `unless` holds, which is looked at after each `wake`."""
        until = self._clock() + timeout_s
        with self._changed:
            while (order := self.newest(after)) is None and not self._lost and not unless():
                left = until - self._clock()
                if left <= 0:
                    return None
                self._changed.wait(min(left, TICK_S))
            return order

    def wake(self) -> None:
        """Whoever waits for an order looks again."""
        with self._changed:
            self._changed.notify_all()

    def tell(self, message: FromSupervisor) -> None:
        """Hand a message to the supervisor; dropped where it does not read."""
        self._send(encode_recovery(message))

    def answer(self, order: Order, outcome: OrderOutcome, message: str) -> None:
        self.tell(OrderResult(order.id, self.member, outcome, message[:900], order.generation))

    def tell_state(self, state: ChildState) -> None:
        """Say what is new of this process; the same twice is said once."""
        if state == self._state:
            return
        self._state = state
        self._send(encode_from_child(state))

    def tell_dying(self) -> None:
        """An uncaught exception is on its way out."""
        self._send(encode_from_child(ChildDying()))

    def flush(self, limit_s: float) -> bool:
        """Whether the supervisor has taken all that was said, within `limit_s`; for a process that ends."""
        until_s = self._clock() + limit_s
        self._channel.flush()
        while self._channel.waiting and self._channel.open:
            left_s = until_s - self._clock()
            if left_s <= 0:
                return False
            poller = select.poll()  # `select` takes no descriptor above 1023
            poller.register(self._channel.fileno(), select.POLLOUT)
            poller.poll(left_s * 1000)
            self._channel.flush()
        return not self._channel.waiting

    def _send(self, data: bytes) -> None:
        self._channel.send(data)
        if self._channel.waiting:
            try:
                self._writer.send(b"x")
            except OSError:
                pass  # it is awake then

    def _run(self) -> None:
        poller = select.poll()
        while self._channel.open:
            poller.register(self._reader.fileno(), select.POLLIN)
            events = select.POLLIN | (select.POLLOUT if self._channel.waiting else 0)
            poller.register(self._channel.fileno(), events)
            poller.poll(TICK_S * 1000)
            try:
                self._reader.recv(64)
            except OSError:
                pass
            self._channel.flush()
            self._hear()
        with self._changed:
            self._lost = True
            self._changed.notify_all()

    def _hear(self) -> None:
        try:
            bodies = self._channel.receive()
        except FramingError as error:
            log.warning("the supervisor's stream means nothing: %s", error)
            self._channel.close()
            return
        for body in bodies:
            try:
                message = parse_recovery(body)
            except RecoveryMessageError as error:
                log.warning("a message of the supervisor cannot be read: %s", error)
                continue
            if isinstance(message, Order):
                self._take(message)

    def _take(self, order: Order) -> None:
        if order.kind in PLANNED:
            self._take_planned(order)
            return
        if order.kind not in (OrderKind.REBUILD, OrderKind.RETRY):
            self.answer(order, OrderOutcome.REFUSED, f"{order.kind.value} is not supported by this session")
            return
        with self._changed:
            if self._newest is not None and epoch_of(order) <= epoch_of(self._newest):
                return  # it came twice
            self._newest = order
            self._changed.notify_all()
        try:
            self._on_order(order)
        except Exception as error:
            log.warning("the end of the old generation could not be told: %r", error)

    def _take_planned(self, order: Order) -> None:
        try:
            self._on_planned(order)
        except Exception as error:
            log.warning("order %s could not be begun: %r", order.kind.value, error)
            self.answer(order, OrderOutcome.FAILED, f"{type(error).__name__}: {error}")


def epoch_of(order: Order) -> Epoch:
    return order.generation, order.attempt_no


def number_of(epoch: Epoch) -> int:
    """Generation and attempt as one number that only grows."""
    return epoch[0] * EPOCHS_OF_A_GENERATION + max(0, epoch[1])


def open_control(
    environment: Mapping[str, str], on_order: Callable[[Order], None], on_planned: Callable[[Order], None]
) -> Control | None:
    """The control link of this process; None where no supervisor started it."""
    text = environment.get(FD_VARIABLE, "")
    if not text.isdigit():
        return None
    try:
        os.set_inheritable(int(text), False)  # data loader workers have nothing to say
        sock = socket.socket(fileno=int(text))
    except OSError as error:
        log.warning("%s=%s is no socket of a supervisor (%s); nothing is repaired", FD_VARIABLE, text, error)
        return None
    return Control(Channel(sock), environment.get(MEMBER_VARIABLE, "unnamed"), on_order, on_planned)
