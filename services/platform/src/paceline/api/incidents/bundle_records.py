"""The JSON files of an incident's bundle: rows as people and programs read them, times as ISO 8601."""

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime

from sqlalchemy import inspect
from sqlalchemy.ext.asyncio import AsyncSession

from paceline.analysis import BundleError, load_bundle
from paceline.contracts.verdicts import Verdict
from paceline.store.base import Base, JsonObject
from paceline.store.incident_changes import dump_verdict
from paceline.store.models.incident import Incident
from paceline.store.models.verdict import StoredVerdict
from paceline.store.repositories.incidents import IncidentRepository
from paceline.store.repositories.jobs import JobRepository

TIMELINE_MAX = 1000
COMMUNICATORS_MAX = 20_000
RANK_LAST = 1 << 30


def incident_record(incident: Incident) -> JsonObject:
    """The incident with its newest verdict."""
    return {"label": f"INC-{incident.number}", **_row(incident)}


def verdicts_record(verdicts: Sequence[StoredVerdict]) -> JsonObject:
    """Every revision, oldest first, ends of episodes among them."""
    return {"verdicts": [_row(row) for row in reversed(verdicts)]}


def verdict_digest(verdict: Verdict) -> JsonObject:
    """What two judgements are compared by."""
    dumped = dump_verdict(verdict)
    return {
        "class": dumped["verdict_class"],
        "sub_reason": dumped["sub_reason"],
        "roots": dumped["roots"],
        "summary": dumped["summary"],
    }


async def timeline_record(session: AsyncSession, incident: Incident) -> JsonObject:
    """Oldest first; of a longer one the newest TIMELINE_MAX."""
    entries = await IncidentRepository(session).timeline(incident.id, TIMELINE_MAX)
    return {"timeline": [_row(entry) for entry in reversed(entries)]}


async def job_record(session: AsyncSession, incident: Incident) -> JsonObject:
    """What the registry says of the attempt: ranks, nodes, communicators."""
    jobs = JobRepository(session)
    job = await jobs.get(incident.job)
    attempt = await jobs.attempt(incident.job, incident.attempt)
    nodes = await jobs.nodes(incident.job, incident.attempt, 0, RANK_LAST)
    groups = await jobs.communicators(incident.job, incident.attempt, limit=COMMUNICATORS_MAX + 1)
    return {
        "job": None if job is None else _row(job),
        "attempt": None if attempt is None else _row(attempt),
        "nodes": [_row(node) for node in sorted(nodes, key=lambda node: (node.rank_min, node.node))],
        "communicators": [_row(group) for group in groups[:COMMUNICATORS_MAX]],
        "communicators_are_complete": len(groups) <= COMMUNICATORS_MAX,
    }


def health_record(packed: bytes) -> JsonObject:
    """Health events that the newest judgement knew of, in order of arrival."""
    try:
        events = load_bundle(packed).health
    except BundleError as error:
        return {"health": [], "why": str(error)}
    return {"health": [asdict(event) for event in events]}


def _row(row: Base) -> JsonObject:
    """All columns that are loaded with the row, in the order of the table."""
    state = inspect(row)
    names = [name for name in row.__mapper__.column_attrs.keys() if name not in state.unloaded]  # noqa: SIM118
    return {name: _plain(getattr(row, name)) for name in names}


def _plain(value: object) -> object:
    return value.isoformat() if isinstance(value, datetime) else value
