"""Remembers where and with which software an incident happened, and lets that memory speak.

Written in the transaction of the verdict and derived from it alone, so that a replay or a revision
replaces what was there. The incident carries the verdict with its memory; `verdicts` keeps it as judged.
"""

from datetime import datetime, timedelta

from sqlalchemy.ext.asyncio import AsyncSession

from paceline.analysis.history import (
    EXEMPT_REASONS,
    SUSPICIOUS_CLASSES,
    HistoryPolicy,
    Recollection,
    places_of,
    recall,
    symptom_of,
    versions_text,
)
from paceline.contracts.verdicts import RootKind, Verdict
from paceline.store.incident_changes import dump_verdict
from paceline.store.models.incident import Incident
from paceline.store.repositories.fleet import FleetRepository, Suspicion
from paceline.store.repositories.jobs import JobRepository

LOCATED_MAX = 16  # ranks


async def remember(
    session: AsyncSession, incident: Incident, verdict: Verdict, at: datetime, policy: HistoryPolicy
) -> Recollection:
    """Write places, symptom and versions of a flushed incident, and give it the verdict with its memory."""
    fleet = FleetRepository(session)
    job = await JobRepository(session).get(incident.job)
    if job is not None:  # an attempt may be judged before its job is registered, or after it is forgotten
        incident.program = f"{job.user}/{job.name}"
        incident.versions = versions_text(job.versions)
    incident.symptom = symptom_of(verdict)
    places = places_of(verdict, (await _locate(fleet, incident, verdict)).get)
    await fleet.replace_places(incident.id, places)
    await session.flush()
    facts = await fleet.facts(
        incident,
        at - timedelta(days=policy.node_days),
        at - timedelta(days=policy.version_days),
        Suspicion(SUSPICIOUS_CLASSES, EXEMPT_REASONS),
        versions_text,
    )
    recollection = recall(verdict, facts, policy)
    incident.verdict = dump_verdict(recollection.verdict)
    return recollection


async def forget(session: AsyncSession, incident: Incident) -> None:
    """It was no incident after all: it counts against nobody."""
    incident.symptom = ""
    await FleetRepository(session).replace_places(incident.id, ())


async def _locate(
    fleet: FleetRepository, incident: Incident, verdict: Verdict
) -> dict[int, tuple[str, int | None]]:
    """Places of the ranks that the verdict names without a node: the far ends of links, mostly."""
    wanted = set()
    for root in verdict.roots:
        if root.kind is RootKind.LINK and root.peer_rank is not None:
            wanted.add(root.peer_rank)
        if root.rank is not None and root.node is None:
            wanted.add(root.rank)
    found = {}
    for rank in sorted(wanted)[:LOCATED_MAX]:
        place = await fleet.rank_place(incident.job, incident.attempt, rank)
        if place is not None:
            found[rank] = place
    return found
