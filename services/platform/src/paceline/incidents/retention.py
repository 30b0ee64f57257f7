"""Keeps the tables bounded: a little at a time, so that no lock is held for long."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy.ext.asyncio import AsyncSession

from paceline.incidents.settings import IncidentsSettings
from paceline.store import Database
from paceline.store.repositories.evidence import EvidenceRepository
from paceline.store.repositories.incidents import IncidentRepository
from paceline.store.repositories.jobs import JobRepository
from paceline.store.repositories.outbox import OutboxRepository
from paceline.store.repositories.tokens import TokenRepository

IDEMPOTENCY_KEYS_KEPT = timedelta(days=1)


@dataclass(frozen=True)
class Dropped:
    """Rows that one round dropped."""

    evidence: int
    incidents: int
    registry: int
    outbox: int

    @property
    def total(self) -> int:
        return self.evidence + self.incidents + self.registry + self.outbox


async def clean(database: Database, now: datetime, settings: IncidentsSettings) -> Dropped:
    """One round: at most `cleanup_rows_max` rows of each kind, each kind in its own transaction."""
    limit = settings.cleanup_rows_max

    def before(days: int) -> datetime:
        return now - timedelta(days=days)

    async with database.transaction() as session:
        evidence = await _clean_evidence(session, before(settings.evidence_days_max), settings)
    async with database.transaction() as session:
        incidents = await IncidentRepository(session).delete_resolved_before(
            before(settings.incident_days_max), limit
        )
    async with database.transaction() as session:
        registry = await JobRepository(session).delete_registry_before(
            before(settings.registry_days_max), limit
        )
    async with database.transaction() as session:
        outbox = await OutboxRepository(session).delete_published_before(
            before(settings.outbox_days_max), limit
        )
    async with database.transaction() as session:
        await TokenRepository(session).delete_expired(now, now - IDEMPOTENCY_KEYS_KEPT)
    return Dropped(evidence, incidents, registry, outbox)


async def _clean_evidence(session: AsyncSession, before: datetime, settings: IncidentsSettings) -> int:
    evidence = EvidenceRepository(session)
    dropped = await evidence.delete_before(before, settings.cleanup_rows_max)
    return dropped + await evidence.delete_over(settings.evidence_bytes_max, settings.cleanup_rows_max)
