"""A controller of recoveries for tests: the agent's socket, the platform's messages, one thread."""

import select
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from paceline.contracts.agent_socket import FramingError, Welcome, encode_message
from paceline.contracts.recovery import (
    ChildError,
    ChildExit,
    Order,
    OrderKind,
    OrderOutcome,
    OrderResult,
    PhaseReport,
    RecoveryMessage,
    RecoveryMessageError,
    RecoveryPhase,
    SupervisorHello,
    Support,
    blames_a_peer,
    encode_recovery,
    format_members,
    parse_recovery,
)
from paceline.trainer.supervisor.channel import Channel
from paceline.trainer.testing.faults import is_stopped
from paceline.trainer.testing.planned import Planned, begin
from paceline.trainer.testing.roster import (
    ATTEMPTS_MAX,
    FRUITLESS_MAX,
    Known,
    Plan,
    Recovery,
    Transients,
    members_of,
    plan_replacement,
    plan_retry,
)

ORDER_S = 30.0  # an order's validity
TICK_S = 0.05
SETTLE_S = 0.15  # from an error of a living process to the belief that no process has died


@dataclass(frozen=True)
class Event:
    """Something that a controller saw or did; `at_s` on the monotonic clock of its process.

    `detail` is the message for kinds that are a message's type and for `ordered`, a `Plan` for recovery,
    retry and resumed, else a text.
    """

    at_s: float
    kind: str  # the message's type, or recovery, retry, planned, rolled_back, fallback, resumed, released
    member: str
    rank: int
    detail: Any


class LocalController:
    """Leads the recoveries of one job of `world_size` ranks. `events` tells what happened."""

    def __init__(
        self,
        path: Path,
        world_size: int,
        *,
        frozen_s: float = 2.0,
        phase_s: float = 30.0,
        generation: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.path = path
        self.events: list[Event] = []
        self.generation = generation
        self._world_size = world_size
        self.frozen_s = frozen_s
        self._phase_s = phase_s
        self._clock = clock
        self._channels: dict[int, Channel] = {}
        self._names: dict[int, str] = {}  # file descriptor -> member
        self._known: dict[str, Known] = {}
        self._finished: set[int] = set()
        self._recovery: Recovery | None = None
        self._planned: Planned | None = None
        self._present = generation  # in which the members train; `generation` may be one that never came
        self._suspect: tuple[float, str, str] | None = None
        self._transients = Transients()
        self._fruitless = 0
        self._frozen: dict[str, float] = {}
        self._over = False
        self._orders = 0
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._listener = socket.socket(socket.AF_UNIX)
        self._thread = threading.Thread(target=self._run, name="local-controller", daemon=True)

    def start(self) -> "LocalController":
        self.path.unlink(missing_ok=True)
        self._listener.bind(str(self.path))
        self._listener.listen(64)
        self._listener.setblocking(False)
        self._thread.start()
        return self

    def stop(self) -> None:
        """As a killed agent: all connections end, nobody is told anything."""
        self._stop.set()
        if self._thread.ident is not None:  # it was started
            self._thread.join(10)
        self._listener.close()
        for channel in self._channels.values():
            channel.close()
        self._channels.clear()
        self.path.unlink(missing_ok=True)

    def of_kind(self, kind: str) -> list[Event]:
        with self._lock:
            return [event for event in self.events if event.kind == kind]

    def child_of(self, rank: int) -> int:
        """pid of the training process that has `rank` now, 0 where there is none."""
        with self._lock:
            one = members_of(list(self._known.values()), self._world_size).get(rank)
            return one.hello.child_pid if one is not None and one.alive else 0

    def ready_standbys(self) -> int:
        with self._lock:
            return sum(one.standby and one.alive and one.hello.ready for one in self._known.values())

    def steps(self) -> dict[int, int]:
        """Newest step each rank told of."""
        with self._lock:
            found = members_of(list(self._known.values()), self._world_size)
            return {rank: one.hello.step for rank, one in found.items()}

    def supports(self) -> set[Support]:
        """What the ranks have told to be known of their layout."""
        with self._lock:
            found = members_of(list(self._known.values()), self._world_size)
            return {one.hello.support for one in found.values()}

    def planned(self, rank: int) -> int:
        """Replace the living `rank` by a ready standby while training goes on; the generation that it opens.

        `resumed` or `rolled_back` says how it ends. RuntimeError where it cannot begin.
        """
        with self._lock:
            if self._recovery is not None or self._planned is not None:
                raise RuntimeError("another recovery is under way")
            standbys = [one for one in self._known.values() if one.standby]
            found = begin(self._members(), rank, standbys, self.generation + 1, self._clock())
            if isinstance(found, str):
                raise RuntimeError(found)
            self.generation = found.generation
            self._planned = found
            self._note("planned", found.leaver, found.plan)
            found.send(OrderKind.PREPARE, self._send_planned, self._clock())
            return found.generation

    def cancel_planned(self, reason: str = "somebody cancelled it") -> None:
        """Forget the planned replacement that is being prepared; nothing where there is none."""
        with self._lock:
            self._roll_back(reason)

    # the thread

    def _run(self) -> None:
        while not self._stop.is_set():
            poller = select.poll()
            poller.register(self._listener.fileno(), select.POLLIN)
            for fd, channel in self._channels.items():
                poller.register(fd, select.POLLIN | (select.POLLOUT if channel.waiting else 0))
            ready = poller.poll(TICK_S * 1000)
            with self._lock:
                for fd, _ in ready:
                    if fd == self._listener.fileno():
                        self._accept()
                    else:
                        self._read(fd)
                self._look()

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError:
            return
        self._channels[sock.fileno()] = Channel(sock)

    def _read(self, fd: int) -> None:
        channel = self._channels[fd]
        channel.flush()
        try:
            bodies = channel.receive()
        except FramingError:
            channel.close()
            bodies = []
        for body in bodies:
            try:
                self._take(fd, parse_recovery(body))
            except RecoveryMessageError as error:
                self._note("bad_message", self._names.get(fd, ""), str(error))
        if not channel.open:
            del self._channels[fd]
            channel.close()
            self._names.pop(fd, None)

    def _take(self, fd: int, message: RecoveryMessage) -> None:
        if isinstance(message, SupervisorHello):
            if fd not in self._names:
                self._channels[fd].send(encode_message(Welcome("local", "local")))
            self._names[fd] = message.member
            known = self._known.get(message.member)
            gone = known.exit if known is not None else None
            if gone is not None and gone.child_pid != message.child_pid and message.child_pid:
                gone = None  # another child
            self._known[message.member] = Known(message, gone)
        self._note(message.type, self._names.get(fd, ""), message)
        if isinstance(message, ChildExit):
            self._on_exit(message)
        elif isinstance(message, ChildError):
            self._on_error(message)
        elif isinstance(message, OrderResult):
            self._on_result(message)
        elif isinstance(message, PhaseReport):
            self._on_phase(message)

    def _note(self, kind: str, member: str, detail: RecoveryMessage | Plan | str) -> None:
        known = self._known.get(member)
        rank = known.hello.rank if known is not None else -1
        self.events.append(Event(self._clock(), kind, member, rank, detail))

    # what happens

    def _on_exit(self, message: ChildExit) -> None:
        one = self._known.get(message.member)
        if one is None or (one.exit is not None and one.exit.child_pid == message.child_pid):
            return
        self._known[message.member] = Known(one.hello, message)
        rank = one.hello.rank
        if self._ends_planned(message):
            return
        recovery = self._recovery
        if recovery is not None:
            recovery.fencing.discard(message.member)
            planned = {member.member for member in recovery.plan.members}
            if recovery.sent and message.member in planned and message.code != 0:
                self._again(message.member)
            return
        holder = self._members().get(rank)
        if holder is None or holder.hello.member != message.member:
            return  # a standby, or one that has left its place
        if message.code == 0:
            self._finished.add(rank)
            if len(self._finished) == self._world_size:
                self._release()
        elif not self._over and not self._finished:
            self._suspect = None
            self._replace((rank,))

    def _ends_planned(self, message: ChildExit) -> bool:
        """Whether it is the end of a leaver that has left; any other of a participant rolls it back."""
        planned = self._planned
        if planned is None or message.member not in planned.names:
            return False
        if planned.switching and message.member == planned.leaver:
            return planned.reached or planned.leaver in planned.done
        if planned.reached:
            self._planned = None  # one more loss of the new generation
        else:
            self._roll_back(f"{message.member} ended with {message.code}")
        return False

    def _on_error(self, message: ChildError) -> None:
        recovery = self._recovery
        if recovery is not None:  # before the answer of a member it says with that what has failed
            counts = message.generation == recovery.generation and message.member in recovery.restored
        else:
            counts = message.generation in (self.generation, self._present)
        is_better = self._suspect is None or blames_a_peer(self._suspect[2]) > blames_a_peer(message.message)
        if counts and is_better:
            self._suspect = (self._clock() + SETTLE_S, message.member, message.message)

    def _on_result(self, message: OrderResult) -> None:
        if self._planned is not None:
            self._planned.on_result(message, self._send_planned, self._clock())
            self._look_at_planned()
        recovery = self._recovery
        if recovery is None or message.id not in recovery.orders:  # an answer to an earlier attempt is none
            return
        if message.outcome is OrderOutcome.DONE:
            recovery.restored.add(message.member)
        elif message.outcome is OrderOutcome.FAILED and recovery.sent:
            if message.message.startswith("fallback:"):
                self._fall_back(message.message)
            else:
                self._another_attempt(message.message)

    def _on_phase(self, message: PhaseReport) -> None:
        if self._planned is not None:
            self._planned.on_phase(message)
            self._look_at_planned()
        recovery = self._recovery
        if recovery is None or message.generation != recovery.generation or recovery.stepped is None:
            return
        if message.phase is RecoveryPhase.FIRST_STEP:
            recovery.stepped.add(message.rank)
            if len(recovery.stepped) == self._world_size:
                self._note("resumed", message.member, recovery.plan)
                self._recovery, self._present = None, recovery.generation
                self._fruitless = 0
                self._look_for_more()

    def _look(self) -> None:
        now = self._clock()
        recovery = self._recovery
        if recovery is not None:
            if not recovery.sent and not recovery.fencing:
                self._send_plan(recovery)
            elif self._suspect is not None and now >= self._suspect[0]:
                _, member, message = self._suspect
                self._another_attempt(f"{member} failed before its first step: {message}")
            elif now > recovery.deadline_s:
                self._another_attempt(f"not resumed within {self._phase_s:g} s")
        elif self._suspect is not None and now >= self._suspect[0]:
            _, member, message = self._suspect
            self._suspect = None
            self._judge_error("" if blames_a_peer(message) else member, now)
        elif self._planned is not None and now > self._planned.deadline_s:
            self._roll_back("it was not ready in time")
        elif not self._over:
            self._look_at_frozen(now)

    def _look_at_planned(self) -> None:
        planned = self._planned
        if planned is not None and planned.failed:
            self._planned = None
            self._replace((next(one.rank for one in planned.plan.members if one.member == planned.joiner),))
        if planned is None or not planned.end:
            return
        if planned.end != "resumed":
            self._roll_back(planned.end)
            return
        self._planned, self._present = None, planned.generation
        self._fruitless = 0
        self._note("resumed", planned.joiner, planned.plan)
        self._look_for_more()

    def _roll_back(self, reason: str) -> None:
        """Training has gone on all the time; who was prepared forgets it."""
        planned, self._planned = self._planned, None
        if planned is None:
            return
        self._note("rolled_back", planned.leaver, reason)
        for name in planned.names:
            self._order(name, OrderKind.CANCEL, 0, {"reason": reason[:500]})

    def _send_planned(self, member: str, kind: OrderKind, arguments: dict[str, str]) -> str:
        return self._order(member, kind, 0, arguments)

    def _judge_error(self, member: str, now: float) -> None:
        by_rank = self._members()
        if self._transients.is_permanent(now):
            rank = next((rank for rank, one in by_rank.items() if one.hello.member == member), -1)
            if rank >= 0:
                self._transients.seen_s.clear()
                self._replace((rank,))
                return
        self._begin(replace(plan_retry(by_rank), fallback=self._transients.hopeless), ())

    def _look_at_frozen(self, now: float) -> None:
        for rank, one in self._members().items():
            pid = one.hello.child_pid
            if one.alive and is_stopped(pid):
                since = self._frozen.setdefault(one.hello.member, now)
                if now - since >= self.frozen_s:
                    self._frozen.clear()
                    self._note("frozen", one.hello.member, f"rank {rank} is stopped")
                    self._replace((rank,))
                    return
            else:
                self._frozen.pop(one.hello.member, None)

    def _look_for_more(self) -> None:
        """A member that died while another one was being replaced."""
        lost = tuple(
            rank for rank, one in self._members().items() if one.exit is not None and one.exit.code != 0
        )
        if lost:
            self._replace(lost)

    # what is done

    def _members(self) -> dict[int, Known]:
        return members_of(list(self._known.values()), self._world_size)

    def _replace(self, lost: tuple[int, ...]) -> None:
        by_rank = self._members()
        also = {rank for rank, one in by_rank.items() if one.exit is not None and one.exit.code != 0}
        lost = tuple(sorted({*lost, *also}))
        standbys = [one for one in self._known.values() if one.standby]
        self._begin(plan_replacement(by_rank, lost, standbys), lost)

    def _begin(self, plan: Plan, lost: tuple[int, ...]) -> None:
        if self._planned is not None and self._planned.reached:
            self._planned = None
        self._roll_back("a recovery begins")
        self._suspect = None
        self._fruitless += 1
        if self._fruitless > FRUITLESS_MAX:
            plan = replace(plan, members=(), fallback=f"{FRUITLESS_MAX} generations in a row made no step")
        if plan.fallback:
            self._fall_back(plan.fallback)
            return
        self.generation += 1
        self._note("retry" if plan.retry else "recovery", "", plan)
        deadline = self._clock() + self._phase_s
        self._recovery = Recovery(plan, self.generation, 0, lost, set(plan.fence), deadline)
        for member in plan.fence:
            hello = self._known[member].hello
            arguments = {"pid": str(hello.child_pid), "pid_start": str(hello.child_pid_start)}
            self._order(member, OrderKind.FENCE, 0, arguments)
        if not plan.fence:
            self._send_plan(self._recovery)

    def _send_plan(self, recovery: Recovery) -> None:
        self._suspect = None
        recovery.sent = True
        recovery.stepped, recovery.restored = set(), set()
        plan = recovery.plan
        arguments = {"store": plan.store, "members": format_members(plan.members), "reason": plan.reason}
        kind = OrderKind.RETRY if plan.retry else OrderKind.REBUILD
        recovery.orders = {
            self._order(member, kind, recovery.attempt_no, arguments) for member in list(self._known)
        }

    def _again(self, member: str) -> None:
        """A member of the new generation died before the first step."""
        recovery = self._recovery
        assert recovery is not None
        self._recovery = None
        ranks = {one.member: one.rank for one in recovery.plan.members}
        by_rank = {one.rank: self._known[one.member] for one in recovery.plan.members}
        standbys = [one for one in self._known.values() if one.standby and one.hello.member not in ranks]
        self._begin(plan_replacement(by_rank, (ranks[member],), standbys), (ranks[member],))

    def _another_attempt(self, why: str) -> None:
        recovery = self._recovery
        assert recovery is not None
        if recovery.attempt_no + 1 >= ATTEMPTS_MAX:
            self._fall_back(f"{ATTEMPTS_MAX} attempts failed, the last one: {why}")
            return
        recovery.attempt_no += 1
        recovery.deadline_s = self._clock() + self._phase_s
        by_rank = {one.rank: self._known[one.member] for one in recovery.plan.members}
        survivors = {rank: one for rank, one in by_rank.items() if rank not in recovery.lost}
        again = plan_retry(survivors, recovery.attempt_no)
        recovery.plan = replace(recovery.plan, store=again.store)
        self._note("attempt", "", why)
        self._send_plan(recovery)

    def _fall_back(self, reason: str) -> None:
        self._recovery = None
        self._over = True
        self._note("fallback", "", reason)
        for member in list(self._known):
            self._order(member, OrderKind.FALLBACK, 0, {"requeue": "1", "reason": reason[:500]})

    def _release(self) -> None:
        self._over = True
        self._note("released", "", "")
        for member in list(self._known):
            self._order(member, OrderKind.RELEASE, 0, {})

    def _order(self, member: str, kind: OrderKind, attempt_no: int, arguments: dict[str, str]) -> str:
        self._orders += 1
        order = Order(
            id=f"local-{self._orders}",
            kind=kind,
            generation=self.generation,
            attempt_no=attempt_no,
            expires_unix_s=time.time() + ORDER_S,
            arguments=arguments,
        )
        self._note("ordered", member, order)
        self.send(member, order)
        return order.id

    def send(self, member: str, order: Order) -> None:
        """Any order to one supervisor; tests send stale and doubled ones."""
        for fd, name in self._names.items():
            if name == member:
                self._channels[fd].send(encode_recovery(order))
