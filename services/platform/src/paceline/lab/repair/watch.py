"""Reads what the topics say of repaired jobs: health, commands, reports, incidents."""

import asyncio
import contextlib
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from paceline.contracts.commands import Command
from paceline.contracts.events import EventType, IncidentEvent
from paceline.contracts.registry import HealthEvent
from paceline.contracts.repair import RecoveryReport
from paceline.contracts.schemas import ContractError
from paceline.contracts.topics import COMMAND_RESULTS, COMMANDS, HEALTH, INCIDENTS
from paceline.lab.feed import feeding
from paceline.lab.repair.story import Seen, Told
from paceline.runtime.cloud_events import decode_event
from paceline.runtime.record import BadRecord, Record
from paceline.runtime.settings import KafkaSettings

KEPT_MAX = 5000  # records of one job; older ones go
TYPES: dict[str, type[Told]] = {
    EventType.HEALTH.value: HealthEvent,
    EventType.COMMAND.value: Command,
    EventType.RECOVERY_REPORT.value: RecoveryReport,
    EventType.INCIDENT_OPENED.value: IncidentEvent,
    EventType.INCIDENT_UPDATED.value: IncidentEvent,
    EventType.INCIDENT_RESOLVED.value: IncidentEvent,
}


class RepairWatch:
    """`seen` by job, oldest first within a topic."""

    def __init__(self) -> None:
        self.seen: defaultdict[str, deque[Seen]] = defaultdict(lambda: deque(maxlen=KEPT_MAX))
        self._changed = asyncio.Condition()

    async def take(self, records: Sequence[Record]) -> Sequence[BadRecord]:
        """Records of the topics; what cannot be read is somebody else's to report."""
        for record in records:
            kind = TYPES.get(record.header("ce_type"))
            if kind is None:
                continue
            with contextlib.suppress(ContractError):
                value = decode_event(kind, record.headers, record.value)[1]
                self.seen[value.job].append(Seen(record.timestamp_ms / 1e3, value))
        async with self._changed:
            self._changed.notify_all()
        return ()

    async def until(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Whether `condition` came true in time; looked at after each batch."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s), self._changed:
                await self._changed.wait_for(condition)
        return condition()


@asynccontextmanager
async def watching_repair(settings: KafkaSettings) -> AsyncIterator[RepairWatch]:
    """A watch that is fed until the block ends."""
    watch = RepairWatch()
    async with feeding(settings, [HEALTH, COMMANDS, COMMAND_RESULTS, INCIDENTS], watch.take, "repair-watch"):
        yield watch
