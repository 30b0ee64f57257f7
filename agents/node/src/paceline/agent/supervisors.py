"""Supervisors of training processes: who they are, what they report, and the orders they are handed.

The agent judges nothing: a command that is signed, of this node and not expired reaches the supervisors it
names, and what they say goes to Kafka at once (docs/adr/0043-remediation.md). Nothing here waits, and
nobody is killed by the agent: the supervisor has the job's own uid.
"""

import json
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from paceline.agent.collecting import Answer, check_command
from paceline.agent.delivery import Event
from paceline.agent.graves import Graves
from paceline.agent.process import ProcReader
from paceline.agent.settings import AgentSettings
from paceline.agent.socket_server import Connection
from paceline.contracts.agent_socket import Welcome
from paceline.contracts.codes import ProcessState
from paceline.contracts.commands import Command, CommandKind
from paceline.contracts.events import EventType
from paceline.contracts.ids import derived_id
from paceline.contracts.recovery import (
    ChildError,
    ChildExit,
    FromSupervisor,
    Lease,
    Order,
    OrderKind,
    OrderOutcome,
    OrderResult,
    PhaseReport,
    RecoveryMessageError,
    Role,
    SupervisorHello,
    encode_recovery,
    parse_members,
)
from paceline.contracts.registry import HealthEvent, HealthKind
from paceline.contracts.repair import MemberRecord, RecoveryReport, ReportKind, member_key
from paceline.contracts.schemas import dump_json
from paceline.contracts.topics import COMMAND_RESULTS, HEALTH, JOBS
from paceline.runtime.clock import Clock
from paceline.runtime.logging import get_logger

ORDER_KINDS = frozenset(CommandKind(kind.value) for kind in OrderKind)
GROUP_KINDS = (CommandKind.REBUILD, CommandKind.RETRY, CommandKind.SWITCH)
SEATS_MAX = 64  # jobs
KNOWN_MAX = 512  # ids of commands that were handed on
STEP_EVERY_NS = 1_000_000_000  # a committed step alone is told so often
TARGETS_MAX = 4096
ORPHANS_MAX = 1024
log = get_logger(__name__)


@dataclass(eq=False)
class Guest:
    """One connected supervisor."""

    hello: SupervisorHello
    uid: int
    connection: Connection
    shares_pids: bool  # its pids mean the same here
    handed: int = 0  # the newest generation that it was ordered to build
    told: SupervisorHello | None = None
    told_ns: int = 0


@dataclass(frozen=True)
class Seats:
    """Ranks of a job that went to members on other nodes with `generation`, and those of before it."""

    generation: int
    elsewhere: tuple[int, ...]
    before: tuple[int, ...]


class Supervisors:
    """One event loop owns it. `push` takes events for Kafka."""

    def __init__(
        self,
        settings: AgentSettings,
        clock: Clock,
        proc: ProcReader,
        push: Callable[[Event], None],
        graves: Graves,
        drops: Counter[str],
        owner_of: Callable[[str], int | None],
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._proc = proc
        self._push = push
        self._graves = graves
        self._drops = drops
        self._owner_of = owner_of
        self._guests: dict[Connection, Guest] = {}
        self._known: deque[str] = deque(maxlen=KNOWN_MAX)
        self._seats: dict[str, Seats] = {}  # by job; bounded
        self._seen: dict[tuple[str, str], str] = {}  # (order, member) -> what was seen before a kill
        self._orphans: dict[tuple[str, str, str], Guest] = {}  # bounded
        self.stopping = False

    def __len__(self) -> int:
        return len(self._guests)

    def has(self, connection: Connection) -> bool:
        return connection in self._guests

    def serves(self, job: str) -> bool:
        """Whether supervisors of the job are here: it may go on, whatever has ended. They know it by the name
        that its attempt had before its processes agreed on one."""
        return any(guest.hello.job == job for guest in self._guests.values())

    def moved(self) -> Iterable[tuple[str, tuple[int, ...]]]:
        """Jobs and the ranks of them that went to members on other nodes with the newest generation."""
        return [(job, seats.elsewhere) for job, seats in self._seats.items()]

    # ------------------------------------------------------------------ what comes in

    def on_message(self, connection: Connection, message: FromSupervisor) -> None:
        """One validated message."""
        if isinstance(message, SupervisorHello):
            self._on_hello(connection, message)
            return
        guest = self._guests.get(connection)
        if guest is None:
            self._drops["before_hello"] += 1
            connection.refuse(f"{message.type} came before supervisor_hello")
        elif message.member != guest.hello.member:
            self._drops["bad_message"] += 1  # nobody speaks for another one
        elif isinstance(message, ChildExit):
            self._on_exit(guest, message)
        elif isinstance(message, ChildError):
            self._report(
                guest, ReportKind.ERROR, message.generation, step=message.step, message=message.message
            )
        elif isinstance(message, OrderResult):
            self._on_result(guest, message)
        else:
            self._on_phase(guest, message)

    def on_closed(self, connection: Connection) -> None:
        guest = self._guests.pop(connection, None)
        if guest is None or self.stopping:
            return
        if self._child_is_gone(guest):
            guest.hello = replace(guest.hello, child_pid=0, child_pid_start=0)
        elif guest.shares_pids and len(self._orphans) < ORPHANS_MAX:  # the end of others is never seen here
            self._orphans[_name_of(guest.hello)] = guest
        record = self._record(guest, left=True)
        self._tell(record)
        key = member_key(record.job, record.member)
        self._graves.dig([key], self._clock.unix_s() + self._settings.registry_retain_s)
        log.info("supervisor_gone", job=record.job, member=record.member, rank=record.rank)

    def _child_is_gone(self, guest: Guest) -> bool:
        """Whether /proc proves it; a pid of another pid namespace proves nothing here."""
        hello = guest.hello
        if not hello.child_pid or not guest.shares_pids:
            return not hello.child_pid
        found = self._proc.read(hello.child_pid)
        is_other = found.start_ticks not in (0, hello.child_pid_start)
        return found.state in (ProcessState.GONE, ProcessState.ZOMBIE) or is_other

    def _bury_orphans(self) -> None:
        """Children that have outlived their supervisor: their end is told once it is seen."""
        for name, guest in list(self._orphans.items()):
            if self._child_is_gone(guest):
                del self._orphans[name]
                guest.hello = replace(guest.hello, child_pid=0, child_pid_start=0)
                self._tell(self._record(guest, left=True))

    def _on_hello(self, connection: Connection, hello: SupervisorHello) -> None:
        guest = self._guests.get(connection)
        why = self._objection(connection, hello, guest)
        if why:
            self._drops["refused_supervisor"] += 1
            connection.refuse(why)
            return
        connection.accepted = True
        if guest is None:
            for other in [one for one in self._guests.values() if _same(one.hello, hello)]:
                del self._guests[other.connection]  # the same supervisor over a new connection
                other.connection.close()
            pid = connection.peer.pid
            shares_pids = bool(pid) and hello.pid == pid == self._proc.innermost_pid(pid)
            guest = Guest(hello, connection.peer.uid, connection, shares_pids)
            self._orphans.pop(_name_of(hello), None)
            self._guests[connection] = guest
            self._graves.keep(member_key(hello.job, hello.member))
            connection.send(Welcome(self._settings.node, f"{self._settings.node}/agent"))
            log.info("supervisor_registered", job=hello.job, member=hello.member, rank=hello.rank)
        guest.hello = hello
        self._publish(guest)

    def _objection(self, connection: Connection, hello: SupervisorHello, guest: Guest | None) -> str:
        """Why this hello is not believed; empty where it is."""
        peer = connection.peer
        if peer.pid and hello.pid not in (peer.pid, self._proc.innermost_pid(peer.pid)):
            return f"supervisor_hello names pid {hello.pid}, the socket belongs to pid {peer.pid}"
        owner = self._owner_of(hello.job)
        others = [one for one in self._guests.values() if one.hello.job == hello.job]
        owners = {one.uid for one in others} | ({owner} if owner is not None else set())
        if owners - {peer.uid}:
            return (
                f"job {hello.job!r} belongs to uid {min(owners - {peer.uid})}, "
                f"this supervisor has uid {peer.uid}; choose another PACELINE_JOB_ID"
            )
        if guest is not None and not _same(guest.hello, hello):
            return f"member is {hello.member!r} on a connection of {guest.hello.member!r}"
        for other in others:
            if other is not guest and _same(other.hello, hello) and other.hello.pid != hello.pid:
                return f"member {hello.member!r} is held by pid {other.hello.pid}"
        if guest is None and len(self._guests) >= self._settings.processes_max:
            return f"this agent serves {len(self._guests)} supervisors, its bound"
        return ""

    def _on_exit(self, guest: Guest, message: ChildExit) -> None:
        """Health at once: of the same process the roster may say the same, under the same id."""
        hello = guest.hello
        if message.child_pid == hello.child_pid:
            guest.hello = replace(hello, child_pid=0, child_pid_start=0, ready=False, store="", replica="")
        if hello.rank >= 0:
            kind, parts = HealthKind.PROCESS_EXIT, (hello.rank, message.child_pid, message.child_pid_start)
            event_id = derived_id("hlt", self._settings.node, hello.job, hello.attempt, kind.value, *parts)
            words = f"signal {-message.code}" if message.code < 0 else f"exit status {message.code}"
            event = HealthEvent(
                id=event_id, kind=kind, node=self._settings.node, job=hello.job, attempt=hello.attempt,
                rank=hello.rank, pid=message.child_pid, at_unix_s=self._clock.unix_s(),
                exit_code=message.code, message=f"its supervisor saw {words}", member=hello.member,
                pid_start=message.child_pid_start,
            )  # fmt: skip
            self._push(Event(HEALTH, hello.job, EventType.HEALTH, event_id, event))
        self._publish(guest)
        for other in self._guests.values():  # where the others stand says how far the job has come
            if (other.hello.job, other.hello.attempt) == (hello.job, hello.attempt):
                self._publish(other)

    def _on_result(self, guest: Guest, result: OrderResult) -> None:
        seen = self._seen.pop((result.id, result.member), "")
        self._report(
            guest, ReportKind.RESULT, result.generation, command=result.id, outcome=result.outcome,
            message=f"{result.message}{'; before: ' if seen else ''}{seen}"[:1000],
        )  # fmt: skip

    def _on_phase(self, guest: Guest, phase: PhaseReport) -> None:
        self._report(
            guest, ReportKind.PHASE, phase.generation, phase=phase.phase, duration_ms=phase.duration_ms,
            step=phase.step, replayed=phase.replayed, bytes=phase.bytes, message=phase.detail,
            rank=phase.rank, attempt_no=phase.attempt_no,
        )  # fmt: skip

    def _report(
        self, guest: Guest, kind: ReportKind, generation: int, rank: int | None = None, **fields: object
    ) -> None:
        hello = guest.hello
        said = json.dumps(fields, sort_keys=True, default=str)
        name = derived_id(
            "rep", self._settings.node, hello.job, hello.attempt, hello.member, kind.value, generation, said
        )
        report = RecoveryReport(
            id=name, kind=kind, node=self._settings.node, job=hello.job, attempt=hello.attempt,
            member=hello.member, rank=hello.rank if rank is None else rank, generation=generation,
            at_unix_s=self._clock.unix_s(),
            **fields,  # type: ignore[arg-type]
        )  # fmt: skip
        self._push(Event(COMMAND_RESULTS, hello.job, EventType.RECOVERY_REPORT, name, report))

    # ------------------------------------------------------------------ registry

    def _publish(self, guest: Guest) -> None:
        """Tell what changed. A new step alone is told once a second: hundreds may pass in one."""
        hello, told = guest.hello, guest.told
        if told == hello:
            return
        now_ns = self._clock.monotonic_ns()
        only_step = told is not None and replace(told, step=hello.step) == hello
        if only_step and now_ns - guest.told_ns < STEP_EVERY_NS:
            return
        guest.told, guest.told_ns = hello, now_ns
        self._tell(self._record(guest, left=False))

    def refresh(self) -> None:
        """What was held back goes out; called with each sample."""
        for guest in self._guests.values():
            self._publish(guest)
        self._bury_orphans()

    def repeat(self) -> None:
        """All of it again, in case a topic was lost."""
        for guest in self._guests.values():
            guest.told = None
        self.refresh()

    def _record(self, guest: Guest, *, left: bool) -> MemberRecord:
        hello = guest.hello
        return MemberRecord(
            job=hello.job, attempt=hello.attempt, member=hello.member, node=self._settings.node,
            role=Role(hello.role), rank=hello.rank, pid=hello.pid, child_pid=hello.child_pid,
            child_pid_start=hello.child_pid_start, generation=hello.generation,
            step=hello.step, store=hello.store, replica=hello.replica, failure_domain=hello.failure_domain,
            ready=hello.ready and not left, world_size=hello.world_size, support=hello.support,
            lease_s=self._settings.lease_s, left=left, at_unix_s=self._clock.unix_s(), uid=guest.uid,
        )  # fmt: skip

    def _tell(self, record: MemberRecord) -> None:
        key = member_key(record.job, record.member)
        event_id = derived_id("rec", key, record.attempt, dump_json(record))
        self._push(Event(JOBS, key, EventType.MEMBER_RECORD, event_id, record))

    # ------------------------------------------------------------------ orders

    def take(self, command: Command, key: bytes | None) -> Answer:
        """Hand a command on to the supervisors it names, or say why not."""
        answer = check_command(command, self._settings.node, key, self._clock.unix_s(), self._known)
        if answer is not Answer.ACCEPT:
            return answer
        try:
            names = json.loads(command.arguments.get("targets", ""))
            tried = int(command.arguments.get("attempt_no", "0"))
        except ValueError:
            return Answer.BAD_ARGUMENT
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names[:TARGETS_MAX]):
            return Answer.BAD_ARGUMENT
        self._known.append(command.id)
        arguments = {k: v for k, v in command.arguments.items() if k not in ("targets", "attempt_no")}
        order = Order(
            command.id, OrderKind(command.kind.value), command.generation, tried, command.expires_unix_s,
            arguments,
        )  # fmt: skip
        self._note_seats(command)
        present = {
            guest.hello.member: guest
            for guest in self._guests.values()
            if (guest.hello.job, guest.hello.attempt) == (command.job, command.attempt)
        }
        for name in names[:TARGETS_MAX]:
            guest = present.get(name)
            if guest is None:
                self._absent(command, name)
            else:
                self._hand_over(guest, order)
        return Answer.ACCEPT if present else Answer.NO_JOB

    def _note_seats(self, command: Command) -> None:
        if command.kind is CommandKind.CANCEL:
            self._keep_seats(command)
        if command.kind not in GROUP_KINDS:
            return
        try:
            members = parse_members(command.arguments.get("members", ""))
        except RecoveryMessageError:
            return  # the supervisors say what is wrong with it
        before = self._seats.get(command.job)
        if before is not None and before.generation > command.generation:
            return  # a late one
        self._seats.pop(command.job, None)  # the newest stand at the end
        here = {guest.hello.member for guest in self._guests.values() if guest.hello.job == command.job}
        if before is not None and before.generation == command.generation:  # another try of the same one
            known = before.before
        else:
            known = before.elsewhere if before is not None else ()
        elsewhere = tuple(one.rank for one in members if one.member not in here)
        self._seats[command.job] = Seats(command.generation, elsewhere, known)
        while len(self._seats) > SEATS_MAX:
            del self._seats[next(iter(self._seats))]

    def _keep_seats(self, command: Command) -> None:
        """A switch that does not take place: all stay where they were, unless somebody is there already."""
        seats = self._seats.get(command.job)
        if seats is None or seats.generation != command.generation:
            return
        if all(
            guest.hello.generation < command.generation
            for guest in self._guests.values()
            if guest.hello.job == command.job
        ):
            self._seats[command.job] = Seats(command.generation - 1, seats.before, seats.before)

    def _hand_over(self, guest: Guest, order: Order) -> None:
        hello = guest.hello
        newest = max(hello.generation, guest.handed)
        if order.kind is not OrderKind.FENCE and 0 < order.generation < newest:
            words = f"generation {order.generation} is older than {newest}"
            self._on_result(guest, OrderResult(order.id, hello.member, OrderOutcome.REFUSED, words, newest))
            return
        if CommandKind(order.kind.value) in GROUP_KINDS:
            guest.handed = max(guest.handed, order.generation)
        if order.kind is OrderKind.FENCE:
            self._seen[order.id, hello.member] = self._look(order.arguments.get("pid", ""))
        try:
            guest.connection.send_bytes(encode_recovery(order))
        except RecoveryMessageError as error:
            words = str(error)
            self._on_result(
                guest, OrderResult(order.id, hello.member, OrderOutcome.FAILED, words, order.generation)
            )

    def _look(self, pid: str) -> str:
        """What /proc says of a process that is about to be killed: nobody can ask it afterwards."""
        return self._proc.describe(int(pid)) if pid.isascii() and pid.isdigit() else ""

    def _absent(self, command: Command, member: str) -> None:
        """The sender hears at once that nobody of that name is here."""
        name = derived_id("rep", self._settings.node, command.id, member, "absent")
        report = RecoveryReport(
            id=name, kind=ReportKind.RESULT, node=self._settings.node, job=command.job,
            attempt=command.attempt, member=member[:127], rank=-1, generation=command.generation,
            at_unix_s=self._clock.unix_s(), command=command.id, outcome=OrderOutcome.FAILED,
            message="no supervisor of this name is connected to the agent",
        )  # fmt: skip
        self._push(Event(COMMAND_RESULTS, command.job, EventType.RECOVERY_REPORT, name, report))

    def lease(self) -> None:
        """Renew: while orders can reach this node, its members may go on."""
        if self._settings.lease_s <= 0:
            return
        for guest in list(self._guests.values()):
            # The child tells a generation only once it has restored; its supervisor counts from the order on.
            lease = Lease(max(guest.hello.generation, guest.handed), self._settings.lease_s)
            guest.connection.send_bytes(encode_recovery(lease))


def _same(one: SupervisorHello, other: SupervisorHello) -> bool:
    return _name_of(one) == _name_of(other)


def _name_of(hello: SupervisorHello) -> tuple[str, str, str]:
    return (hello.job, hello.attempt, hello.member)
