"""The supervisor itself: one thread, one poll, no torch.

It waits for its child's exit, its child's words, the agent's orders and its own signals, whichever
comes first, and does nothing else.
"""

import select
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence

from paceline.contracts.agent_socket import FramingError
from paceline.contracts.recovery import (
    EXIT_DO_NOT_REQUEUE,
    EXIT_REQUEUE,
    ChildError,
    ChildExit,
    Lease,
    Member,
    Order,
    OrderKind,
    OrderOutcome,
    OrderResult,
    PhaseReport,
    RecoveryMessageError,
    SupervisorHello,
    encode_recovery,
    parse_members,
)
from paceline.trainer.supervisor.child import TrainingChild, start_child
from paceline.trainer.supervisor.hello import Teller, make_hello
from paceline.trainer.supervisor.link import AgentLink
from paceline.trainer.supervisor.local import ChildDying, ChildState, parse_from_child
from paceline.trainer.supervisor.orders import OrderBook, Verdict
from paceline.trainer.supervisor.settings import DOMAIN_VARIABLE, SupervisorSettings
from paceline.trainer.supervisor.signals import Signals

LAST_WORDS_S = 0.5
TICK_S = 1.0
DYING_S = 3.0  # that a process with an uncaught exception may take to end
NO_RANK = -1
LEAVE_S = 3.0  # that a child whose state has gone to a joiner may take to end
PASSED_MAX = 16  # orders that a child has not answered
STANDBY_STARTS_MAX = 4  # of a standby that fails without a seat, in doubling pauses
STANDBY_PAUSE_S = 1.0  # the first of them, at least
Start = Callable[
    [Sequence[str], Mapping[str, str], str, str], TrainingChild
]  # command, environment, member, role


class Supervisor:
    """`run()` returns the status that the launcher shall see."""

    def __init__(
        self,
        settings: SupervisorSettings,
        command: Sequence[str],
        environment: Mapping[str, str],
        signals: Signals,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
        start: Start = start_child,
    ) -> None:
        self._settings = settings
        self._start_child = start
        self._command = command
        # The child's copies go by the same domain as what this supervisor says of it.
        self._environment = {**environment, DOMAIN_VARIABLE: settings.failure_domain}
        self._signals = signals
        self._clock = clock
        self._now = now
        self._book = OrderBook(settings.member)
        self._teller = Teller(clock)
        self._link = AgentLink(settings.socket_path, self._hello, clock, self._say)
        self._child: TrainingChild | None = None
        self._last: ChildExit | None = None  # of a child that is gone and has no successor
        self._state = ChildState(settings.rank, settings.world_size, 0, -1)
        self._dead_since_s = 0.0
        self._join: Order | None = None  # what a cold joiner is told as soon as it listens
        self._respawn_at_s: float | None = None
        self._seated = settings.role == "member"  # the newest generation counts on the child
        self._fresh_starts = 0  # of standbys that failed without a seat, one after the other
        self._lease_until_s: float | None = None
        self._lifted = False  # the newest generation goes without leases
        self._kill_at_s: float | None = None
        self._fences: list[tuple[Order, float]] = []  # and when each is given up
        self._passed: dict[str, Order] = {}  # orders that the child carries out and has not answered
        self._ends = False  # with the child: nothing comes after it
        self._wanted: int | None = None  # status to end with, whatever the child's is
        self._status: int | None = None

    def run(self) -> int:
        """Start the child and stay until it, or an order, says that all is over. StartError passes."""
        for warning in self._settings.warnings:
            self._say(warning)
        self._start(self._settings.role, self._environment, self._settings.rank)
        try:
            while self._status is None:
                self._turn()
        finally:
            self._close()
        return self._status

    def _turn(self) -> None:
        if self._link.connect():
            self._teller.forget()
            if self._last is not None:
                self._link.send(self._last)  # to an agent that was not there when it happened
        self._wait()
        for number in self._signals.pop():
            self._pass_on(number)
        self._hear_child()
        self._look_at_exit()
        for message in self._link.receive():
            self._obey(message)
        self._look_at_time()
        hello = self._hello()
        if self._link.up and self._teller.due_in_s(hello) == 0.0:
            self._teller.take(hello)
            self._link.send(hello)

    def _wait(self) -> None:
        poller = select.poll()
        poller.register(self._signals.fileno(), select.POLLIN)
        channels = [self._link.channel]
        if self._child is not None:
            poller.register(self._child.pidfd, select.POLLIN)
            channels.append(self._child.channel)
        open_now = [channel for channel in channels if channel is not None and channel.open]
        for channel in open_now:
            poller.register(channel.fileno(), select.POLLIN | (select.POLLOUT if channel.waiting else 0))
        poller.poll(self._pause_s() * 1000)
        for channel in open_now:
            if channel.waiting:
                channel.flush()

    def _pause_s(self) -> float:
        now = self._clock()
        moments = [self._kill_at_s, self._respawn_at_s, self._lease_until_s, *(at for _, at in self._fences)]
        pauses = [moment - now for moment in moments if moment is not None]
        pauses += [
            pause
            for pause in (
                self._link.due_in_s(),
                self._teller.due_in_s(self._hello()) if self._link.up else None,
            )
            if pause is not None
        ]
        return max(0.0, min([TICK_S, *pauses]))

    # the training process

    def _start(self, role: str, environment: Mapping[str, str], rank: int) -> None:
        self._child = self._start_child(self._command, environment, self._settings.member, role)
        self._last = None
        self._respawn_at_s = None
        self._lease_until_s, self._lifted = None, False
        self._state = ChildState(rank, self._settings.world_size, self._book.generation, -1)

    def _hear_child(self) -> None:
        child = self._child
        if child is None or not child.channel.open:
            return
        try:
            bodies = child.channel.receive()
        except FramingError as error:
            self._say(f"the training process's stream means nothing: {error}")
            child.channel.close()
            return
        for body in bodies:
            try:
                self._hear(parse_from_child(body), child)
            except RecoveryMessageError as error:
                self._say(f"a message of the training process cannot be read: {error}")

    def _hear(self, message: object, child: TrainingChild) -> None:
        if isinstance(message, ChildState):
            self._state = message
            if self._join is not None and message.store:
                child.channel.send(encode_recovery(self._join))
                self._join = None
        elif isinstance(message, ChildDying):
            self._kill_at_s = self._clock() + DYING_S
        elif isinstance(message, OrderResult) and self._book.knows(message.id):
            order = self._passed.pop(message.id, None)
            if order is not None and order.kind is OrderKind.SWITCH and message.outcome is OrderOutcome.DONE:
                self._switched(order)
            self._link.send(
                self._book.finish(message.id, message.outcome, message.message, message.generation)
            )
        elif isinstance(message, (PhaseReport, ChildError)):
            self._link.send(message)

    def _look_at_exit(self) -> None:
        child = self._child
        if child is None or child.reap() is None or child.code is None:
            return
        self._hear_child()  # its last words
        self._last = ChildExit(self._settings.member, child.pid, child.pid_start, child.code)
        self._link.send(self._last)
        self._dead_since_s = self._clock()
        self._kill_at_s = self._lease_until_s = None
        for order, _ in self._fences:
            self._answer(order, OrderOutcome.DONE, f"the process ended with {child.code}")
        self._fences.clear()
        for order in list(self._passed.values()):
            # Whoever waits for the others in a switch calls it off, or has switched and loses a rank.
            self._answer(order, OrderOutcome.REFUSED, f"the process ended with {child.code}")
        self._passed.clear()
        child.close()
        self._child = None
        if self._ends or (child.code == 0 and self._respawn_at_s is None):
            self._status = status_of(child.code) if self._wanted is None else self._wanted
        elif not self._seated and self._respawn_at_s is None:
            self._miss_standby(child.code)

    def _miss_standby(self, code: int) -> None:
        """A child that stood by failed by itself: the job that goes on without it must not end by that."""
        pause_s = self._settings.respawn_s
        self._fresh_starts += 1
        if pause_s is not None and self._fresh_starts <= STANDBY_STARTS_MAX:
            pause_s = max(pause_s, STANDBY_PAUSE_S) * 2 ** (self._fresh_starts - 1)
            self._say(f"the standby ended with {code}; the next one starts in {pause_s:g} s")
            self._respawn_at_s = self._clock() + pause_s
        elif self._settings.role == "member":
            # The launcher takes any other status for a failed worker and ends the ranks beside it.
            self._say(f"the standby ended with {code} again and again: this supervisor ends without one")
            self._status = 0

    # orders

    def _obey(self, message: Order | Lease) -> None:
        if isinstance(message, Lease):
            self._renew(message)
            return
        judgement = self._book.judge(message, self._now())
        if judgement.verdict is Verdict.ANSWER and judgement.result is not None:
            self._link.send(judgement.result)
        elif judgement.verdict is Verdict.ACCEPT:
            self._execute(message)

    def _renew(self, lease: Lease) -> None:
        """The agent reaches this member; its lease names the generation of the newest hello.

        That is the old one for as long as a rebuild and a restore take. So an older one may prolong what is
        there, but neither shorten nor lift it.
        """
        seconds = lease.until_monotonic_s_from_now
        until_s = self._clock() + seconds
        if lease.generation >= self._book.generation:
            self._lifted = seconds <= 0
            self._lease_until_s = None if self._lifted else until_s
        elif seconds > 0 and not self._lifted:
            self._lease_until_s = max(self._lease_until_s or until_s, until_s)

    def _execute(self, order: Order) -> None:
        if order.kind is OrderKind.FENCE:
            self._fence(order)
        elif order.kind is OrderKind.FALLBACK:
            requeue = order.arguments.get("requeue", "0") == "1"
            self._say(f"the job ends: {order.arguments.get('reason', 'no reason was given')}")
            self._answer(order, OrderOutcome.DONE, "stopping")
            self._stop(EXIT_REQUEUE if requeue else EXIT_DO_NOT_REQUEUE)
        elif order.kind is OrderKind.RELEASE:
            self._answer(order, OrderOutcome.DONE, "released")
            self._stop(0)
        elif order.kind in (OrderKind.REBUILD, OrderKind.RETRY):
            self._rebuild(order)
        elif self._child is None:
            self._answer(order, OrderOutcome.REFUSED, "the training process is gone")
        else:
            while len(self._passed) >= PASSED_MAX:
                del self._passed[next(iter(self._passed))]
            self._passed[order.id] = order
            self._child.channel.send(encode_recovery(order))

    def _answer(self, order: Order, outcome: OrderOutcome, message: str) -> None:
        self._link.send(self._book.finish(order.id, outcome, message, order.generation))

    def _switched(self, order: Order) -> None:
        """The child is in the new generation, or has left its place to another one."""
        self._book.enter(order)
        try:
            members = parse_members(order.arguments.get("members", ""))
        except RecoveryMessageError as error:
            self._say(f"the members of a switch cannot be read: {error}")
            return
        if any(one.member == self._settings.member for one in members):
            self._seated, self._fresh_starts = True, 0
        else:
            # It ends by itself, with status 0: nobody shall take its end for a fault.
            self._retire()
            self._kill_at_s = self._clock() + LEAVE_S

    def _fence(self, order: Order) -> None:
        pid, start = order.arguments.get("pid", ""), order.arguments.get("pid_start", "")
        child, last = self._child, self._last
        if child is not None and child.is_named(pid, start):
            child.send_signal(signal.SIGKILL)
            self._fences.append((order, self._clock() + self._settings.fence_s))
        elif last is not None and (pid, start) == (str(last.child_pid), str(last.child_pid_start)):
            self._answer(order, OrderOutcome.DONE, f"the process had ended with {last.code}")
        else:
            here = f"{child.pid} started {child.pid_start}" if child is not None else "gone"
            message = f"process {pid} started {start} is not here; the training process is {here}"
            self._answer(order, OrderOutcome.REFUSED, message)

    def _rebuild(self, order: Order) -> None:
        try:
            members = parse_members(order.arguments.get("members", ""))
        except RecoveryMessageError as error:
            self._answer(order, OrderOutcome.REFUSED, str(error))
            return
        mine = [one for one in members if one.member == self._settings.member]
        if not mine:
            self._leave(order)
            return
        self._seated, self._fresh_starts = True, 0
        if self._child is not None:
            self._child.channel.send(encode_recovery(order))
        elif order.kind is OrderKind.RETRY:
            self._answer(order, OrderOutcome.REFUSED, "the training process is gone: nothing can be retried")
        else:
            self._join_cold(order, mine[0], len(members))

    def _leave(self, order: Order) -> None:
        """The new generation is without this member: what is left of it may not go on."""
        self._seated = False
        if self._child is not None and self._state.rank < 0:
            self._answer(order, OrderOutcome.DONE, "stands by still")
            return
        self._retire()
        if self._child is not None:
            self._child.send_signal(signal.SIGKILL)
        self._answer(order, OrderOutcome.DONE, "left: the new generation is without this member")

    def _retire(self) -> None:
        """The child has no place any more: a fresh one stands by later."""
        self._seated = False
        self._join = None
        if self._settings.respawn_s is not None:
            self._respawn_at_s = self._clock() + self._settings.respawn_s
        elif self._child is None:
            self._status = 0
        else:
            self._ends, self._wanted = True, 0

    def _join_cold(self, order: Order, mine: Member, world_size: int) -> None:
        self._join = order
        environment = {**self._environment, "RANK": str(mine.rank), "WORLD_SIZE": str(world_size)}
        self._start("joiner", environment, mine.rank)

    def _stop(self, status: int) -> None:
        """End with `status` as soon as the child is gone: SIGTERM now, SIGKILL after a while."""
        self._ends, self._wanted = True, status
        if self._child is None:
            self._status = status
        else:
            self._terminate(self._child, signal.SIGTERM)

    def _pass_on(self, number: int) -> None:
        if number not in (signal.SIGTERM, signal.SIGINT):
            if self._child is not None:
                self._child.send_signal(number)
            return
        self._ends = True
        if self._child is None:
            self._status = 128 + number
        else:
            self._terminate(self._child, number)

    def _terminate(self, child: TrainingChild, number: int) -> None:
        child.send_signal(number)
        child.send_signal(signal.SIGCONT)  # a stopped process takes no SIGTERM
        if self._kill_at_s is None:
            self._kill_at_s = self._clock() + self._settings.stop_s

    # time

    def _look_at_time(self) -> None:
        now, child = self._clock(), self._child
        if child is not None:
            if self._kill_at_s is not None and now >= self._kill_at_s:
                self._kill_at_s = None
                child.send_signal(signal.SIGKILL)
            if self._lease_until_s is not None and now >= self._lease_until_s:
                self._lease_until_s = None
                self._say("the lease ended and nobody renewed it: the training process is stopped")
                child.send_signal(signal.SIGKILL)
        for order, deadline in list(self._fences):
            if now >= deadline:
                self._fences.remove((order, deadline))
                self._answer(order, OrderOutcome.FAILED, "SIGKILL was sent and the process is still there")
        if child is None and self._respawn_at_s is not None and now >= self._respawn_at_s:
            self._start("standby", self._environment, NO_RANK)
        elif child is None and self._respawn_at_s is None and self._last is not None and self._status is None:
            self._await_order(now, self._last.code)

    def _await_order(self, now: float, code: int) -> None:
        """The child is gone and nobody has said what shall be: not for ever."""
        if now - self._dead_since_s >= self._settings.wait_s:
            self._say(f"no order came within {self._settings.wait_s:g} s of the end of the training process")
            self._status = status_of(code)

    def _hello(self) -> SupervisorHello:
        return make_hello(self._settings, self._state, self._child)

    def _close(self) -> None:
        if self._child is not None:
            self._child.send_signal(signal.SIGKILL)
        deadline = self._clock() + LAST_WORDS_S
        channel = self._link.channel
        while channel is not None and channel.open and channel.waiting and self._clock() < deadline:
            poller = select.poll()
            poller.register(channel.fileno(), select.POLLOUT)
            poller.poll(50)
            channel.flush()
        self._link.drop()

    def _say(self, text: str) -> None:
        sys.stderr.write(f"paceline supervisor: {text}\n")
        sys.stderr.flush()


def status_of(code: int) -> int:
    """The status that a shell would show for `code`, a status or minus a signal."""
    return 128 - code if code < 0 else code
