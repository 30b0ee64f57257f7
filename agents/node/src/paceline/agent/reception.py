"""The door: hellos are judged, admitted processes enter the roster, their messages reach it."""

from collections import Counter

from paceline.agent.admission import Admission, Holder, Situation, decide_admission, job_owner
from paceline.agent.pages import PageFault
from paceline.agent.process import ProcReader, open_pidfd
from paceline.agent.processes import OpenPage, Page, Process
from paceline.agent.registry import close_communicator, open_communicator
from paceline.agent.roster import Roster
from paceline.agent.settings import AgentSettings
from paceline.agent.socket_server import Connection, close_fds
from paceline.agent.supervisors import Supervisors
from paceline.agent.wire import SUPERVISOR_KINDS, FromPeer, is_complete
from paceline.contracts.agent_socket import CommunicatorClosed, CommunicatorOpened, Goodbye, Hello, Welcome
from paceline.runtime.logging import get_logger

log = get_logger(__name__)


class Reception:
    """Handler of the socket's connections."""

    def __init__(
        self,
        settings: AgentSettings,
        roster: Roster,
        proc: ProcReader,
        open_page: OpenPage,
        drops: Counter[str],
        agent: str,
        supervisors: Supervisors,
    ) -> None:
        self._settings = settings
        self._roster = roster
        self._proc = proc
        self._open_page = open_page
        self._drops = drops
        self._agent = agent
        self._supervisors = supervisors
        self._guests: dict[Connection, Process] = {}
        # Said hello before they knew their rank; bounded by the number of connections.
        self._waiting: dict[Connection, Page] = {}

    def on_message(self, connection: Connection, message: FromPeer, fds: list[int]) -> None:
        """One validated message; `fds` become ours."""
        if isinstance(message, SUPERVISOR_KINDS):
            close_fds(fds)
            if connection in self._guests or connection in self._waiting:
                connection.refuse(f"{message.type} on the connection of a training process")
            else:
                self._supervisors.on_message(connection, message)
            return
        if self._supervisors.has(connection):
            close_fds(fds)
            connection.refuse(f"{message.type} on the connection of a supervisor")
            return
        if isinstance(message, Hello):
            self._on_hello(connection, message, fds)
            return
        close_fds(fds)
        process = self._guests.get(connection)
        if process is None:
            self._drops["before_hello"] += 1
            if connection not in self._waiting:
                connection.refuse(f"{message.type} came before hello")
        elif isinstance(message, CommunicatorOpened):
            self._on_opened(process, message)
        elif isinstance(message, CommunicatorClosed):
            self._on_closed_communicator(process, message)
        else:
            self._on_goodbye(process, message)

    def on_closed(self, connection: Connection) -> None:
        self._supervisors.on_closed(connection)
        page = self._waiting.pop(connection, None)
        if page is not None:
            page.close()
        process = self._guests.pop(connection, None)
        if process is not None and process.connection is connection:
            process.connection = None

    def _on_hello(self, connection: Connection, hello: Hello, fds: list[int]) -> None:
        current = self._guests.get(connection)
        if is_complete(hello) or current is not None:
            verdict, reason = decide_admission(hello, self._situation(connection, hello, current))
        else:
            verdict, reason = Admission.ACCEPTED, ""
        known = current is not None or connection in self._waiting
        if verdict.is_accepted and len(fds) != 2 and not (known and not fds):
            verdict, reason = Admission.NO_PAGE, f"hello came with {len(fds)} file descriptors, expected 2"
        if not verdict.is_accepted:
            close_fds(fds)
            self._refuse(connection, hello, verdict, reason)
            return
        try:
            page = self._open_page(fds[0], fds[1]) if fds else None
        except PageFault as error:
            self._refuse(connection, hello, Admission.BAD_PAGE, str(error))
            return
        connection.accepted = True
        earlier = self._waiting.pop(connection, None)
        if page is not None and earlier is not None:
            earlier.close()
        page = page or earlier
        if not is_complete(hello):
            if page is not None:
                self._waiting[connection] = page
        else:
            self._admit(connection, hello, current, page, verdict)
        connection.send(Welcome(self._settings.node, self._agent))

    def _admit(
        self,
        connection: Connection,
        hello: Hello,
        current: Process | None,
        page: Page | None,
        verdict: Admission,
    ) -> None:
        key = (hello.job, hello.attempt)
        process = self._roster.processes.get((key, hello.rank))
        if process is not None and verdict is Admission.REPLACED:
            self._roster.release(process)
            process = None
        if current is not None and process is not None and current is not process:
            current.connection = None  # the same process again, over a connection of its own
            self._roster.release(current)
        process = process or current or self._new_process(connection, hello)
        if process.connection is not connection:
            old, process.connection = process.connection, connection
            if old is not None:
                old.close()
        if page is not None:
            if process.page is not None:
                process.page.close()
            process.page = page
        process.goodbye = None
        self._guests[connection] = process
        self._roster.sync(self._roster.join(process, key, hello))

    def _new_process(self, connection: Connection, hello: Hello) -> Process:
        peer = connection.peer
        pidfd = open_pidfd(peer.pid) if peer.pid else None
        key = (hello.job, hello.attempt)
        process = Process(key, hello, peer.uid, peer.pid, pidfd, None, connection)
        self._roster.watch(process)
        log.info("process_registered", job=hello.job, attempt=hello.attempt, rank=hello.rank, pid=hello.pid)
        return process

    def _situation(self, connection: Connection, hello: Hello, current: Process | None) -> Situation:
        key = (hello.job, hello.attempt)
        jobs, processes, peer = self._roster.jobs, self._roster.processes, connection.peer
        job = jobs.get(key)
        living = {name for name in jobs if self._roster.living(name)}
        holder = processes.get((key, hello.rank))
        return Situation(
            peer=peer,
            own_pid=self._proc.innermost_pid(peer.pid) if peer.pid else None,
            start_ticks=self._proc.read(peer.pid).start_ticks if peer.pid else 0,
            job_owner_uid=job_owner({k: j.uid for k, j in jobs.items()}, living, hello.job),
            attempt_owner_uid=job.uid if job else None,
            attempt_world_size=job.world_size if job else None,
            holder=None if holder is None else _holder(holder),
            processes=self._roster.living_count - (current is not None),
            entries=len(processes) - (current is not None),
            processes_max=self._settings.processes_max,
        )

    def _refuse(self, connection: Connection, hello: Hello, verdict: Admission, reason: str) -> None:
        self._drops[f"refused_{verdict.value}"] += 1
        log.warning("process_refused", job=hello.job, rank=hello.rank, pid=hello.pid, reason=reason)
        connection.refuse(reason)

    def _on_opened(self, process: Process, message: CommunicatorOpened) -> None:
        # The next sample publishes it: a job opens hundreds at its start, and each look at the
        # registry goes over all of them.
        job = self._roster.jobs[process.key]
        reason = open_communicator(job, process.rank, message)
        if reason is not None:
            self._drops["bad_communicator"] += 1
            log.warning("communicator_ignored", job=job.job, rank=process.rank, reason=reason)

    def _on_closed_communicator(self, process: Process, message: CommunicatorClosed) -> None:
        job = self._roster.jobs[process.key]
        if not close_communicator(job, process.rank, message.communicator):
            self._drops["unknown_communicator"] += 1

    def _on_goodbye(self, process: Process, message: Goodbye) -> None:
        process.goodbye = message
        if message.reason == "terminated":
            self._roster.said_stop(process)


def _holder(process: Process) -> Holder:
    return Holder(process.shown_pid, process.hello.pid_start, process.uid, process.exit is None)
