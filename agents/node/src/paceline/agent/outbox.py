"""Registry records and health events: what changed since the last one goes to the event queue.

Ids are derived from the content, so a record sent again is recognised as the same one.
"""

from paceline.agent.delivery import Event, EventQueue
from paceline.agent.exits import Exit
from paceline.agent.graves import Graves
from paceline.agent.registry import JobKey, LocalJob, first_rank, job_record, node_record
from paceline.contracts import ids
from paceline.contracts.codes import ExitKind
from paceline.contracts.events import EventType
from paceline.contracts.registry import CommunicatorRecord, HealthEvent, HealthKind, JobRecord, NodeRecord
from paceline.contracts.schemas import dump_json
from paceline.contracts.topics import HEALTH, JOBS
from paceline.runtime.clock import Clock

_Record = JobRecord | NodeRecord | CommunicatorRecord
_TYPES: dict[type, EventType] = {
    JobRecord: EventType.JOB_RECORD,
    NodeRecord: EventType.NODE_RECORD,
    CommunicatorRecord: EventType.COMMUNICATOR_RECORD,
}


class Outbox:
    """Makes events of one node and hands them to `queue`."""

    def __init__(
        self, queue: EventQueue, clock: Clock, node: str, agent: str, registry_retain_s: float = 86_400.0
    ) -> None:
        self.graves = Graves()
        self._registry_retain_s = registry_retain_s
        self._queue = queue
        self._clock = clock
        self._node = node
        self._agent = agent
        self._sent: dict[JobKey, dict[str, _Record | None]] = {}  # None = to be sent again

    def sync(self, job: LocalJob) -> None:
        """Publish the records of `job` that differ from what was published."""
        first = job.key not in self._sent
        if first and job.superseded:
            return
        if first or job.is_authority:
            self._put(job, job.job, job_record(job))
        self._put(job, f"{job.job}:{self._node}", node_record(job, self._node, self._agent))
        for name, communicator in job.communicators.items():
            self._put(job, f"{job.job}:{name}", communicator)

    def was_published(self, job: LocalJob) -> bool:
        return job.key in self._sent

    def repeat(self, job: LocalJob) -> None:
        """Publish again at the next `sync` what this node is the authority for."""
        sent = self._sent.get(job.key)
        if sent is None:
            return
        for key in self._own_keys(job):
            sent[key] = None

    def forget(self, job: LocalJob) -> None:
        """`job` is over: what this node is the authority for leaves the registry after its time."""
        own = self._own_keys(job)
        self._sent.pop(job.key, None)
        # The same keys of another attempt are in use, and follow when that one is over.
        used = {key for sent in self._sent.values() for key in sent}
        ended_unix_s = self._clock.unix_s() if job.ended_unix_s is None else job.ended_unix_s
        self.graves.dig([key for key in own if key not in used], ended_unix_s + self._registry_retain_s)

    def bury(self) -> None:
        """Tombstones for the keys whose time is over."""
        for key in self.graves.take_due(self._clock.unix_s()):
            event_id = ids.derived_id("rip", key)
            self._queue.push(Event(JOBS, key, EventType.JOB_RECORD, event_id, None))

    def _own_keys(self, job: LocalJob) -> list[str]:
        own = []
        for key in self._sent.get(job.key, {}):
            is_job = key == job.job
            communicator = None if is_job else job.communicators.get(key.removeprefix(f"{job.job}:"))
            other = communicator is not None and first_rank(communicator) not in job.hellos
            if not (is_job and not job.is_authority) and not other:
                own.append(key)
        return own

    def exit(self, job: LocalJob, rank: int, pid: int, pid_start: int, end: Exit) -> None:
        """A process has ended."""
        code = 0 if end.kind is ExitKind.CLEAN and end.code is None else end.code
        message = f"{end.kind.name.lower()}: {end.reason}"
        parts = (rank, pid, pid_start)
        self._health(job, HealthKind.PROCESS_EXIT, rank, pid, parts, exit_code=code, message=message)

    def frozen(self, job: LocalJob, rank: int, pid: int, beats: int, *, resumed: bool) -> None:
        """A process was stopped, or goes on. `beats` of its page name the occasion."""
        kind = HealthKind.PROCESS_RESUMED if resumed else HealthKind.PROCESS_FROZEN
        message = "runs again" if resumed else "stopped by a signal (state T)"
        self._health(job, kind, rank, pid, (rank, pid, beats), message=message)

    def cancelled(self, job: LocalJob, message: str) -> None:
        self._health(job, HealthKind.CANCELLED, None, None, (), message=message)

    def _put(self, job: LocalJob, key: str, record: _Record) -> None:
        sent = self._sent.setdefault(job.key, {})
        if sent.get(key) == record:  # at once for thousands of communicators that are the same objects
            return
        sent[key] = record
        self.graves.keep(key)
        event_id = ids.derived_id("rec", key, job.attempt, dump_json(record))
        self._queue.push(Event(JOBS, key, _TYPES[type(record)], event_id, record))

    def _health(
        self,
        job: LocalJob,
        kind: HealthKind,
        rank: int | None,
        pid: int | None,
        parts: tuple[object, ...],
        *,
        exit_code: int | None = None,
        message: str = "",
    ) -> None:
        event_id = ids.derived_id("hlt", self._node, job.job, job.attempt, kind.value, *parts)
        event = HealthEvent(
            id=event_id,
            kind=kind,
            node=self._node,
            job=job.job,
            attempt=job.attempt,
            rank=rank,
            pid=pid,
            at_unix_s=self._clock.unix_s(),
            exit_code=exit_code,
            gpu=job.hellos[rank].gpu if rank is not None and rank in job.hellos else None,
            message=message,
        )
        self._queue.push(Event(HEALTH, job.job, EventType.HEALTH, event_id, event))
