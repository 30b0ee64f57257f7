"""Who is observed: the book of processes and jobs, and how each of them ends.

One event loop owns it. Nothing here waits; everything that goes out goes through the outbox.
"""

import asyncio
import os
from collections.abc import Callable, Collection

from paceline.agent.exits import Ended, is_cancelled, judge_end
from paceline.agent.outbox import Outbox
from paceline.agent.process import ProcReader
from paceline.agent.processes import Process
from paceline.agent.registry import JobKey, LocalJob, move_communicators
from paceline.agent.settings import AgentSettings
from paceline.contracts.agent_socket import Hello
from paceline.contracts.codes import ProcessState
from paceline.contracts.registry import JobState
from paceline.runtime.clock import Clock
from paceline.runtime.logging import get_logger

log = get_logger(__name__)


class Roster:
    """Processes and jobs of this node.

    `on_exit` is called once for each process that ended, while its page can still be read; it
    concludes the process and releases it.
    """

    def __init__(
        self,
        settings: AgentSettings,
        clock: Clock,
        outbox: Outbox,
        proc: ProcReader,
        on_exit: Callable[[Process], None],
    ) -> None:
        self.jobs: dict[JobKey, LocalJob] = {}
        self.processes: dict[tuple[JobKey, int], Process] = {}
        self._settings = settings
        self._clock = clock
        self._outbox = outbox
        self._proc = proc
        self._on_exit = on_exit
        # Whether a job may go on although no process of it lives here: it has supervisors.
        self.is_held: Callable[[str], bool] = lambda job: False

    def of_job(self, key: JobKey) -> list[Process]:
        """Processes of one attempt, living and ended, by rank."""
        return [process for (name, _), process in sorted(self.processes.items()) if name == key]

    def living(self, key: JobKey) -> list[Process]:
        return [process for process in self.of_job(key) if process.exit is None]

    @property
    def living_count(self) -> int:
        return sum(process.exit is None for process in self.processes.values())

    def is_public(self, job: LocalJob) -> bool:
        """A provisional attempt is held back for a while: it is about to get its true name."""
        age_ns = self._clock.monotonic_ns() - job.registered_ns
        return not job.is_provisional or age_ns >= self._settings.provisional_s * 1e9

    def sync(self, job: LocalJob) -> None:
        """Publish what changed of `job`, unless it is held back."""
        if self.is_public(job):
            self._outbox.sync(job)

    def join(self, process: Process, key: JobKey, hello: Hello) -> LocalJob:
        """Enter `process` under `key`, out of its earlier place if it had one."""
        job = self.jobs.get(key) or self._new_job(key, hello, process.uid)
        old = self.processes.get((process.key, process.rank))
        if old is process and (process.key, process.rank) != (key, hello.rank):
            self._leave(process, job)
        process.key, process.hello = key, hello
        self.processes[(key, hello.rank)] = process
        job.hellos[hello.rank] = hello
        job.pids[hello.rank] = process.shown_pid
        job.ended.pop(hello.rank, None)
        if job.ended_ns is not None:  # a rank that starts again inside its attempt
            job.ended_ns, job.ended_unix_s, job.end_reason = None, None, ""
            job.state, job.cancelled = JobState.STARTING, False
        return job

    def watch(self, process: Process) -> None:
        """Be told at once when the process ends; without a pidfd the next sample finds out."""
        if process.pidfd is not None:
            asyncio.get_running_loop().add_reader(process.pidfd, self.ended, process)

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

    def said_stop(self, process: Process) -> None:
        """The process said that it is being terminated."""
        if process.stopping_ns is None:
            process.stopping_ns = self._clock.monotonic_ns()
            self._look_for_cancel(self.jobs[process.key])

    def ended(self, process: Process) -> None:
        """The process is gone: read what it still said, explain it, tell."""
        if process.exit is not None:
            return
        if process.pidfd is not None:
            asyncio.get_running_loop().remove_reader(process.pidfd)
        if process.connection is not None:
            process.connection.read_all()  # its goodbye may still be on the way
        process.observe(self._proc)
        self._on_exit(process)
        end = process.exit or process.conclude()
        job = self.jobs[process.key]
        job.ended[process.rank] = Ended(process.rank, end, self._clock.monotonic_ns())
        log.info("process_ended", job=job.job, rank=process.rank, pid=process.shown_pid, reason=end.reason)
        self._outbox.exit(job, process.rank, process.shown_pid, process.hello.pid_start, end)
        self._look_for_cancel(job)

    def release(self, process: Process) -> None:
        """Give up the page, the descriptors and the connection of a process."""
        self._proc.forget(process.pid)
        if process.page is not None:
            process.page.close()
            process.page = None
        if process.pidfd is not None:
            asyncio.get_running_loop().remove_reader(process.pidfd)
            os.close(process.pidfd)
            process.pidfd = None
        connection, process.connection = process.connection, None
        if connection is not None:
            connection.close()

    def release_all(self) -> None:
        for process in list(self.processes.values()):
            self.release(process)

    def settle(self, job: LocalJob) -> None:
        """Judge the end of a job without living processes; forget it after its time."""
        now_ns = self._clock.monotonic_ns()
        if job.ended_ns is None and not self.living(job.key) and not self.is_held(job.job):
            job.ended_ns = now_ns
            if not job.superseded:
                job.state, job.end_reason = judge_end(list(job.ended.values()), job.cancelled)
                job.ended_unix_s = self._clock.unix_s()
                log.info("job_ended", job=job.job, attempt=job.attempt, reason=job.end_reason)
        if job.ended_ns is not None and now_ns - job.ended_ns >= self._settings.retain_ended_s * 1e9:
            self._forget(job)

    def moved(self, name: str, ranks: Collection[int]) -> None:
        """Processes on other nodes have these ranks now: what ended here is no part of the job any more."""
        for job in [job for job in self.jobs.values() if job.job == name]:
            for rank in ranks:
                process = self.processes.get((job.key, rank))
                if process is not None and process.exit is not None:
                    self._move(job, process)

    def _move(self, job: LocalJob, process: Process) -> None:
        rank = process.rank
        self.release(process)
        del self.processes[(job.key, rank)]
        for table in (job.hellos, job.pids, job.ended):
            table.pop(rank, None)
        for members in job.members.values():
            members.discard(rank)
        log.info("rank_moved", job=job.job, rank=rank)

    def _forget(self, job: LocalJob) -> None:
        for process in self.of_job(job.key):
            self.release(process)
            del self.processes[(job.key, process.rank)]
        self._outbox.forget(job)
        del self.jobs[job.key]

    def _leave(self, process: Process, new: LocalJob) -> None:
        job = self.jobs[process.key]
        del self.processes[(process.key, process.rank)]
        job.hellos.pop(process.rank, None)
        job.pids.pop(process.rank, None)
        if job is not new:
            move_communicators(job, new, process.rank)

    def _new_job(self, key: JobKey, hello: Hello, uid: int) -> LocalJob:
        for other in self.jobs.values():
            if other.job == key[0] and not other.superseded:
                self._supersede(other, key[1])
        job = LocalJob(key, uid, hello, self._clock.monotonic_ns(), self._clock.unix_s())
        self.jobs[key] = job
        return job

    def _supersede(self, job: LocalJob, attempt: str) -> None:
        """The job goes on under another attempt, whose records share its key from now on."""
        job.superseded = True
        if job.ended_ns is None and self._outbox.was_published(job):
            job.state, job.end_reason = JobState.FAILED, f"superseded by attempt {attempt}"
            job.ended_unix_s = self._clock.unix_s()
            self._outbox.sync(job)

    def _look_for_cancel(self, job: LocalJob) -> None:
        stopping = [(p.rank, p.stopping_ns) for p in self.living(job.key) if p.stopping_ns is not None]
        if not job.cancelled and is_cancelled(list(job.ended.values()), stopping, len(job.hellos)):
            job.cancelled = True
            self._outbox.cancelled(job, "most local ranks were told to stop within 10 s")
