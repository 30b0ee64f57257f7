"""Keeps the tables bounded: a little at a time, so that no lock is held for long."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy.ext.asyncio import AsyncSession

from paceline.incidents.settings import IncidentsSettings
from paceline.store import Database
from paceline.store.repositories.evidence import EvidenceRepository
from paceline.store.repositories.incidents import IncidentRepository
from paceline.store.repositories.jobs import JobRepository
from paceline.store.repositories.outbox import OutboxRepository
from paceline.store.repositories.scaling import ScalingRepository
from paceline.store.repositories.shipments import ShipmentRepository
from paceline.store.repositories.tokens import TokenRepository

FRAGMENTS_KEPT = timedelta(hours=6)  # as long as their topic: the rest may still come
IDEMPOTENCY_KEYS_KEPT = timedelta(days=1)
TOMBSTONES_MAX = 10_000  # of one round, plus the rest of one attempt

Bury = Callable[[Sequence[str]], Awaitable[None]]  # a tombstone for each key of the registry topic


@dataclass(frozen=True)
class Dropped:
    """Rows that one round dropped."""

    evidence: int
    incidents: int
    registry: int
    outbox: int
    scaling: int
    shipped: int

    @property
    def total(self) -> int:
        return self.evidence + self.incidents + self.registry + self.outbox + self.scaling + self.shipped


async def clean(database: Database, now: datetime, settings: IncidentsSettings, bury: Bury) -> Dropped:
    """One round: at most `cleanup_rows_max` rows of each kind, each kind in its own transaction."""
    limit = settings.cleanup_rows_max

    def before(days: int) -> datetime:
        return now - timedelta(days=days)

    async with database.transaction() as session:
        evidence = await _clean_evidence(session, before(settings.evidence_days_max), settings)
    async with database.transaction() as session:
        shipped = await _clean_shipped(session, now, settings)
    async with database.transaction() as session:
        incidents = await IncidentRepository(session).delete_resolved_before(
            before(settings.incident_days_max), limit
        )
    async with database.transaction() as session:
        outbox = await OutboxRepository(session).delete_published_before(
            before(settings.outbox_days_max), limit
        )
    async with database.transaction() as session:
        scaling = await ScalingRepository(session).delete_before(before(settings.scaling_days_max), limit)
    async with database.transaction() as session:
        await TokenRepository(session).delete_expired(now, now - IDEMPOTENCY_KEYS_KEPT)
    registry = await _clean_registry(database, before(settings.registry_days_max), limit, bury)
    return Dropped(evidence, incidents, registry, outbox, scaling, shipped)


async def _clean_evidence(session: AsyncSession, before: datetime, settings: IncidentsSettings) -> int:
    evidence = EvidenceRepository(session)
    dropped = await evidence.delete_before(before, settings.cleanup_rows_max)
    return dropped + await evidence.delete_over(settings.evidence_bytes_max, settings.cleanup_rows_max)


async def _clean_shipped(session: AsyncSession, now: datetime, settings: IncidentsSettings) -> int:
    shipments, limit = ShipmentRepository(session), settings.cleanup_rows_max
    await shipments.drop_fragments(now - FRAGMENTS_KEPT, limit)
    dropped = await shipments.drop_before(now - timedelta(days=settings.evidence_days_max), limit)
    return dropped + await shipments.drop_over(settings.shipped_bytes_max, limit)


async def _clean_registry(database: Database, before: datetime, limit: int, bury: Bury) -> int:
    """Drop old attempts, one after the other. Agents bury the keys of jobs that they saw end; those of an
    agent that is lost for good would stay in the topic. Buried first: what fails comes again."""
    async with database.transaction() as session:
        attempts = await JobRepository(session).attempts_over_before(before, limit)
    dropped = buried = 0
    for job, attempt in attempts:
        if buried >= TOMBSTONES_MAX:
            break
        async with database.transaction() as session:
            keys = await JobRepository(session).registry_keys(job, attempt)
        await bury(keys)
        async with database.transaction() as session:
            dropped += await JobRepository(session).delete_registry_of(job, attempt)
        buried += len(keys)
    return dropped
