"""Waits for the verdict and the incident of one job, on the topics where everybody else reads them."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from paceline.contracts.events import IncidentEvent
from paceline.contracts.schemas import ContractError
from paceline.contracts.topics import INCIDENTS, VERDICTS
from paceline.contracts.verdicts import RootKind, Verdict, VerdictClass, VerdictRecord
from paceline.lab.feed import feeding
from paceline.runtime.cloud_events import decode_event
from paceline.runtime.record import BadRecord, Record
from paceline.runtime.settings import KafkaSettings

KEPT_MAX = 1000
T = TypeVar("T")


@dataclass(frozen=True)
class Seen(Generic[T]):
    """A record and when this process received it."""

    received_ns: int
    value: T


@dataclass
class Watch:
    """What was seen of one job, oldest first; bounded, the newest are dropped beyond KEPT_MAX."""

    job: str
    verdicts: list[Seen[VerdictRecord]] = field(default_factory=list)
    incidents: list[Seen[IncidentEvent]] = field(default_factory=list)
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def take(self, records: Sequence[Record]) -> Sequence[BadRecord]:
        """Records of both topics; what cannot be read is somebody else's to report."""
        received_ns = time.monotonic_ns()
        for record in records:
            with contextlib.suppress(ContractError):
                if record.topic == VERDICTS.name:
                    _, verdict = decode_event(VerdictRecord, record.headers, record.value)
                    if verdict.job == self.job and len(self.verdicts) < KEPT_MAX:
                        self.verdicts.append(Seen(received_ns, verdict))
                else:
                    _, event = decode_event(IncidentEvent, record.headers, record.value)
                    if event.job == self.job and len(self.incidents) < KEPT_MAX:
                        self.incidents.append(Seen(received_ns, event))
        async with self.changed:
            self.changed.notify_all()
        return ()

    async def wait_for_decision(self, timeout_s: float) -> Seen[IncidentEvent] | None:
        """The first event of an incident whose verdict decides; None where none came in time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s), self.changed:
                await self.changed.wait_for(lambda: self.decision() is not None)
        return self.decision()

    def decision(self) -> Seen[IncidentEvent] | None:
        return next((seen for seen in self.incidents if decides(seen.value.verdict)), None)

    def verdict_like(self, verdict: Verdict) -> Seen[VerdictRecord] | None:
        """The first record that said the same as `verdict`."""
        return next((seen for seen in self.verdicts if says_same(seen.value.verdict, verdict)), None)


def decides(verdict: Verdict) -> bool:
    """Whether it names a class other than 'not known yet'."""
    return verdict.verdict_class not in (VerdictClass.NONE, VerdictClass.INCONCLUSIVE)


def says_same(one: Verdict, other: Verdict) -> bool:
    return (one.verdict_class, root_ranks(one)) == (other.verdict_class, root_ranks(other))


def root_ranks(verdict: Verdict) -> list[int]:
    """Ranks that the verdict names as first cause."""
    ranks = {root.rank for root in verdict.roots if root.kind is RootKind.RANK and root.rank is not None}
    return sorted(ranks)


def is_right(verdict: Verdict, fault: str, rank: int) -> bool:
    """Whether class and rank are those of the injected fault, and nobody else is accused."""
    return verdict.verdict_class.value == fault.upper() and root_ranks(verdict) == [rank]


@asynccontextmanager
async def watching(settings: KafkaSettings, job: str) -> AsyncIterator[Watch]:
    """A watch that is fed until the block ends."""
    watch = Watch(job)
    async with feeding(settings, [VERDICTS, INCIDENTS], watch.take, "demo-watch"):
        yield watch
