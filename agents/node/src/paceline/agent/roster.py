"""Who is observed: admits processes, keeps the book of jobs, notices ends.

One event loop owns it. Nothing here waits; everything that goes out goes through the outbox.
"""

import asyncio
import os
from collections import Counter
from collections.abc import Callable

from paceline.agent.admission import Admission, Holder, Situation, decide_admission, job_owner
from paceline.agent.exits import Ended, is_cancelled, judge_end
from paceline.agent.outbox import Outbox
from paceline.agent.pages import PageFault
from paceline.agent.process import ProcReader, open_pidfd
from paceline.agent.processes import OpenPage, Process
from paceline.agent.registry import JobKey, LocalJob, close_communicator, open_communicator
from paceline.agent.settings import AgentSettings
from paceline.agent.socket_server import Connection, close_fds
from paceline.agent.wire import FromProcess
from paceline.contracts.agent_socket import CommunicatorClosed, CommunicatorOpened, Goodbye, Hello, Welcome
from paceline.contracts.codes import ProcessState
from paceline.contracts.registry import JobState
from paceline.runtime.clock import Clock
from paceline.runtime.logging import get_logger

log = get_logger(__name__)


class Roster:
    """Processes and jobs of this node. `on_exit` is called once for each process that ended, while
    its page can still be read; the caller then calls `release`."""

    def __init__(
        self,
        settings: AgentSettings,
        clock: Clock,
        outbox: Outbox,
        proc: ProcReader,
        open_page: OpenPage,
        drops: Counter[str],
        agent: str,
        on_exit: Callable[[Process], None],
    ) -> None:
        self.jobs: dict[JobKey, LocalJob] = {}
        self.processes: dict[tuple[JobKey, int], Process] = {}
        self._settings = settings
        self._clock = clock
        self._outbox = outbox
        self._proc = proc
        self._open_page = open_page
        self._drops = drops
        self._agent = agent
        self._on_exit = on_exit
        self._by_connection: dict[Connection, Process] = {}

    def on_message(self, connection: Connection, message: FromProcess, fds: list[int]) -> None:
        """One validated message; `fds` become ours."""
        if isinstance(message, Hello):
            self._hello(connection, message, fds)
            return
        close_fds(fds)
        process = self._by_connection.get(connection)
        if process is None:
            self._drops["before_hello"] += 1
            connection.refuse(f"{message.type} came before hello")
            return
        job = self.jobs[process.key]
        if isinstance(message, CommunicatorOpened):
            self._communicator_opened(job, process, message)
        elif isinstance(message, CommunicatorClosed):
            self._communicator_closed(job, process, message)
        elif isinstance(message, Goodbye):
            process.goodbye = message
            if message.reason == "terminated" and process.stopping_ns is None:
                process.stopping_ns = self._clock.monotonic_ns()
                self._look_for_cancel(job)

    def on_closed(self, connection: Connection) -> None:
        process = self._by_connection.pop(connection, None)
        if process is not None and process.connection is connection:
            process.connection = None

    def of_job(self, key: JobKey) -> list[Process]:
        """Processes of one attempt that have a page or live, by rank."""
        return [p for (k, _), p in sorted(self.processes.items(), key=lambda item: item[0][1]) if k == key]

    def living(self, key: JobKey) -> list[Process]:
        return [process for process in self.of_job(key) if process.exit is None]

    def is_public(self, job: LocalJob) -> bool:
        """A provisional attempt is held back for a while: it is about to get its true name."""
        age_ns = self._clock.monotonic_ns() - job.registered_ns
        return job.first.attempt_source != "provisional" or age_ns >= self._settings.provisional_s * 1e9

    def observe(self, process: Process) -> None:
        """New reading of one process; announces stops, resumptions and the end."""
        if process.exit is not None:
            return
        if not process.observe(self._proc):
            self.ended(process)
            return
        job = self.jobs[process.key]
        stopped = process.reading.state is ProcessState.STOPPED
        if stopped and process.frozen_beats is None:
            beats = 0 if process.view is None else int(process.view.process["native_beats"])
            process.frozen_beats = beats
            self._outbox.frozen(job, process.rank, process.shown_pid, beats, resumed=False)
        elif not stopped and process.frozen_beats is not None:
            beats, process.frozen_beats = process.frozen_beats, None
            self._outbox.frozen(job, process.rank, process.shown_pid, beats, resumed=True)

    def ended(self, process: Process) -> None:
        """The process is gone: read what it still said, explain it, tell."""
        if process.exit is not None:
            return
        if process.pidfd is not None:
            asyncio.get_running_loop().remove_reader(process.pidfd)
        if process.connection is not None:
            process.connection.read_all()
        process.observe(self._proc)
        self._on_exit(process)
        end = process.exit or process.conclude()
        job = self.jobs[process.key]
        job.ended[process.rank] = Ended(process.rank, end, self._clock.monotonic_ns())
        log.info("process_ended", job=job.job, rank=process.rank, pid=process.shown_pid, reason=end.reason)
        self._outbox.exit(job, process.rank, process.shown_pid, process.hello.pid_start, end)
        self._look_for_cancel(job)

    def release(self, process: Process) -> None:
        """Give up the page and the connection of a process."""
        if process.page is not None:
            process.page.close()
            process.page = None
        if process.pidfd is not None:
            asyncio.get_running_loop().remove_reader(process.pidfd)
            os.close(process.pidfd)
            process.pidfd = None
        connection, process.connection = process.connection, None
        if connection is not None:
            self._by_connection.pop(connection, None)
            connection.close()

    def settle(self, job: LocalJob) -> None:
        """Judge the end of a job without living processes; forget it after its time."""
        now_ns = self._clock.monotonic_ns()
        if job.ended_ns is None and not self.living(job.key) and (job.ended or not job.hellos):
            state, reason = judge_end(list(job.ended.values()), job.cancelled)
            self._end(job, state, reason)
        if job.ended_ns is not None and now_ns - job.ended_ns >= self._settings.retain_ended_s * 1e9:
            self.forget(job)

    def forget(self, job: LocalJob) -> None:
        for process in self.of_job(job.key):
            self.release(process)
            del self.processes[(job.key, process.rank)]
        self._outbox.forget(job)
        del self.jobs[job.key]

    def release_all(self) -> None:
        for process in self.processes.values():
            self.release(process)

    def _hello(self, connection: Connection, hello: Hello, fds: list[int]) -> None:
        key = (hello.job, hello.attempt)
        current = self._by_connection.get(connection)
        verdict, reason = decide_admission(hello, self._situation(connection, hello, current))
        has_page = len(fds) == 2 or (not fds and current is not None)
        if verdict.is_accepted and not has_page:
            verdict, reason = Admission.NO_PAGE, f"hello came with {len(fds)} file descriptors, expected 2"
        if not verdict.is_accepted:
            close_fds(fds)
            self._refuse(connection, current, hello, verdict, reason)
            return
        try:
            page = self._open_page(*fds) if fds else None
        except PageFault as error:
            self._refuse(connection, current, hello, Admission.BAD_PAGE, str(error))
            return
        process = self._admit(connection, hello, key, current, verdict)
        if page is not None:
            if process.page is not None:
                process.page.close()
            process.page = page
        connection.accepted = True
        connection.send(Welcome(self._settings.node, self._agent))
        self.sync(self.jobs[key])

    def sync(self, job: LocalJob) -> None:
        """Publish what changed of `job`, unless it is held back."""
        if self.is_public(job):
            self._outbox.sync(job)

    def _situation(self, connection: Connection, hello: Hello, current: Process | None) -> Situation:
        key = (hello.job, hello.attempt)
        job = self.jobs.get(key)
        peer = connection.peer
        living = {name for name in self.jobs if self.living(name)}
        holder = self.processes.get((key, hello.rank))
        moving = current is not None and current.key != key
        return Situation(
            peer=peer,
            own_pid=self._proc.innermost_pid(peer.pid) if peer.pid else None,
            start_ticks=self._proc.read(peer.pid).start_ticks if peer.pid else 0,
            job_owner_uid=job_owner({k: j.uid for k, j in self.jobs.items()}, living, hello.job),
            attempt_owner_uid=job.uid if job else None,
            attempt_world_size=job.world_size if job else None,
            holder=None if holder is None else _holder(holder),
            processes=sum(p.exit is None for p in self.processes.values()) - moving,
            entries=len(self.processes),
            processes_max=self._settings.processes_max,
        )

    def _refuse(
        self, connection: Connection, current: Process | None, hello: Hello, verdict: Admission, reason: str
    ) -> None:
        self._drops[f"refused_{verdict.value}"] += 1
        log.warning("process_refused", job=hello.job, rank=hello.rank, pid=hello.pid, reason=reason)
        connection.refuse(reason)

    def _admit(
        self,
        connection: Connection,
        hello: Hello,
        key: JobKey,
        current: Process | None,
        verdict: Admission,
    ) -> Process:
        job = self._job_of(key, hello, connection.peer.uid)
        process = self.processes.get((key, hello.rank))
        if process is not None and verdict is Admission.REPLACED:
            self.release(process)
            process = None
            job.ended.pop(hello.rank, None)
        if current is not None and current is not process:
            self._leave(current)
            process = process or current
        if process is None:
            process = self._new_process(connection, hello, key)
        process.key, process.hello = key, hello
        if process.connection is not connection and process.connection is not None:
            old, process.connection = process.connection, None
            self._by_connection.pop(old, None)
            old.close()
        process.connection = connection
        process.goodbye = None
        self._by_connection[connection] = process
        self.processes[(key, hello.rank)] = process
        job.hellos[hello.rank] = hello
        job.pids[hello.rank] = process.shown_pid
        if job.ended_ns is not None:
            job.ended_ns, job.ended_unix_s, job.end_reason = None, None, ""
            job.state, job.cancelled = JobState.STARTING, False
        return process

    def _new_process(self, connection: Connection, hello: Hello, key: JobKey) -> Process:
        peer = connection.peer
        pidfd = open_pidfd(peer.pid) if peer.pid else None
        process = Process(key, hello, peer.uid, peer.pid, pidfd, None, connection)
        if pidfd is not None:
            asyncio.get_running_loop().add_reader(pidfd, self.ended, process)
        log.info("process_registered", job=hello.job, attempt=hello.attempt, rank=hello.rank, pid=hello.pid)
        return process

    def _leave(self, process: Process) -> None:
        """A process got another name; the attempt that it alone kept alive goes with it."""
        job = self.jobs[process.key]
        self.processes.pop((process.key, process.rank), None)
        job.hellos.pop(process.rank, None)
        job.pids.pop(process.rank, None)
        for members in job.members.values():
            members.discard(process.rank)

    def _job_of(self, key: JobKey, hello: Hello, uid: int) -> LocalJob:
        job = self.jobs.get(key)
        if job is not None:
            return job
        for other in [j for j in self.jobs.values() if j.job == key[0] and not j.superseded]:
            other.superseded = True
            if other.ended_ns is None and self._outbox.was_published(other):
                other.state, other.end_reason = JobState.FAILED, f"superseded by attempt {key[1]}"
                other.ended_unix_s = self._clock.unix_s()
                self._outbox.sync(other)
        job = LocalJob(key, uid, hello, self._clock.monotonic_ns(), self._clock.unix_s())
        self.jobs[key] = job
        return job

    def _end(self, job: LocalJob, state: JobState, reason: str) -> None:
        job.ended_ns = self._clock.monotonic_ns()
        if job.superseded:
            return
        job.state, job.end_reason, job.ended_unix_s = state, reason, self._clock.unix_s()
        log.info("job_ended", job=job.job, attempt=job.attempt, state=state.value, reason=reason)

    def _communicator_opened(self, job: LocalJob, process: Process, message: CommunicatorOpened) -> None:
        reason = open_communicator(job, process.rank, message)
        if reason is not None:
            self._drops["bad_communicator"] += 1
            log.warning("communicator_ignored", job=job.job, rank=process.rank, reason=reason)
            return
        self.sync(job)

    def _communicator_closed(self, job: LocalJob, process: Process, message: CommunicatorClosed) -> None:
        if not close_communicator(job, process.rank, message.communicator):
            self._drops["unknown_communicator"] += 1
            return
        self.sync(job)

    def _look_for_cancel(self, job: LocalJob) -> None:
        stopping = [(p.rank, p.stopping_ns) for p in self.living(job.key) if p.stopping_ns is not None]
        if not job.cancelled and is_cancelled(list(job.ended.values()), stopping, len(job.hellos)):
            job.cancelled = True
            self._outbox.cancelled(job, "most local ranks were told to stop within 10 s")


def _holder(process: Process) -> Holder:
    return Holder(process.shown_pid, process.hello.pid_start, process.uid, process.exit is None)
