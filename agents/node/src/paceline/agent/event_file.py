"""Events that wait for Kafka, on disk: the next agent delivers what this one could not.

Ids follow from the content, so an event that was delivered all the same is recognised.
"""

from pathlib import Path

from pydantic import TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from paceline.agent.delivery import Event, EventQueue, EventValue
from paceline.agent.state_file import StateFile
from paceline.contracts.commands import CommandResult
from paceline.contracts.events import EventType
from paceline.contracts.registry import CommunicatorRecord, HealthEvent, JobRecord, NodeRecord
from paceline.contracts.repair import MemberRecord, RecoveryReport
from paceline.contracts.schemas import ContractError, dump_json, load_json
from paceline.contracts.topics import COMMAND_RESULTS, HEALTH, JOBS

_KINDS: dict[EventType, type[EventValue]] = {
    EventType.JOB_RECORD: JobRecord,
    EventType.NODE_RECORD: NodeRecord,
    EventType.COMMUNICATOR_RECORD: CommunicatorRecord,
    EventType.MEMBER_RECORD: MemberRecord,
    EventType.HEALTH: HealthEvent,
    EventType.COMMAND_RESULT: CommandResult,
    EventType.RECOVERY_REPORT: RecoveryReport,
}
_TOPICS = {  # of all others: JOBS
    EventType.HEALTH: HEALTH,
    EventType.COMMAND_RESULT: COMMAND_RESULTS,
    EventType.RECOVERY_REPORT: COMMAND_RESULTS,
}

FEW_EVENTS = 64  # are written at every sample; the thousands of a long outage cost 100 ms each time
MANY_SAVED_EVERY_NS = 5 * 10**9


@dataclass(frozen=True)
class _Saved:
    key: str
    type: EventType
    id: str
    value: str  # JSON of the record, empty for a tombstone


_ADAPTER = TypeAdapter(list[_Saved])


class EventFile:
    """Keeps `queue` on disk as far as it is not delivered."""

    def __init__(self, path: Path, queue: EventQueue) -> None:
        self.file = StateFile(path)
        self._queue = queue
        self._saved_changes = -1
        self._saved_ns: int | None = None

    def save_sometimes(self, now_ns: int) -> None:
        """`save`, for every sample; many events are written every few seconds only."""
        many = len(self._queue) > FEW_EVENTS
        if many and self._saved_ns is not None and now_ns - self._saved_ns < MANY_SAVED_EVERY_NS:
            return
        if self._queue.changes != self._saved_changes:
            self._saved_ns = now_ns
            self.save()

    def save(self) -> None:
        """Write what waits, unless it is on disk already; what failed is tried again."""
        if self._queue.changes == self._saved_changes:
            return
        changes, failures = self._queue.changes, self.file.failures
        waiting = self._queue.head(len(self._queue))
        saved = [_Saved(e.key, e.type, e.id, dump_json(e.value).decode() if e.value else "") for e in waiting]
        self.file.write(_ADAPTER.dump_json(saved))
        if self.file.failures == failures:
            self._saved_changes = changes

    def restore(self) -> int:
        """Queue what is on disk; returns how many. What cannot be read is counted and left."""
        data = self.file.read()
        if not data:
            return 0
        try:
            found = [
                Event(_TOPICS.get(saved.type, JOBS), saved.key, saved.type, saved.id,
                      load_json(_KINDS[saved.type], saved.value) if saved.value else None)
                for saved in _ADAPTER.validate_json(data)
            ]  # fmt: skip
        except (ValidationError, ContractError, KeyError):
            self.file.failures += 1
            return 0
        for event in found:
            self._queue.push(event)
        return len(found)
