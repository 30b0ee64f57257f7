"""The fleet's memory as the API shows it: weighed when it is read, so that it is never stale."""

from datetime import datetime, timedelta

from sqlalchemy.ext.asyncio import AsyncSession

from paceline.analysis.history import (
    EXEMPT_REASONS,
    SUSPICIOUS_CLASSES,
    HistoryPolicy,
    NodeFinding,
    VersionFinding,
    is_suspicious,
    recall,
    versions_text,
)
from paceline.api.nodes.schemas import (
    MemoryRead,
    NodeFindingRead,
    NodeHistoryRead,
    NodesRead,
    NodeTotalsRead,
    PastIncidentRead,
    VersionFindingRead,
    VersionRootRead,
)
from paceline.contracts.verdicts import Verdict
from paceline.store.models.incident import Incident
from paceline.store.repositories.fleet import FleetRepository, PastIncident, Suspicion

SHOWN_MAX = 10  # earlier incidents of a node on an incident's page
HISTORY_MAX = 100
SUSPICION = Suspicion(SUSPICIOUS_CLASSES, EXEMPT_REASONS)


async def load_memory(
    session: AsyncSession, incident: Incident, verdict: Verdict, now: datetime, policy: HistoryPolicy
) -> MemoryRead:
    """What is remembered about the places, symptom and versions of an incident."""
    facts = await FleetRepository(session).facts(
        incident,
        now - timedelta(days=policy.node_days),
        now - timedelta(days=policy.version_days),
        SUSPICION,
        versions_text,
    )
    memory = recall(verdict, facts, policy)
    return MemoryRead(
        node_days=policy.node_days,
        version_days=policy.version_days,
        nodes=[_node(finding, facts.past) for finding in memory.nodes],
        version=_version(memory.version),
    )


async def list_totals(session: AsyncSession, now: datetime, policy: HistoryPolicy, limit: int) -> NodesRead:
    since = now - timedelta(days=policy.node_days)
    totals = await FleetRepository(session).node_totals(since, SUSPICION, limit)
    return NodesRead(
        window_days=policy.node_days, items=[NodeTotalsRead.model_validate(row) for row in totals]
    )


async def load_history(
    session: AsyncSession, node: str, now: datetime, policy: HistoryPolicy
) -> NodeHistoryRead:
    """Empty for a node that was never a first cause, known or not."""
    since = now - timedelta(days=policy.node_days)
    past = await FleetRepository(session).past([node], since, besides_job="")
    return NodeHistoryRead(
        node=node, window_days=policy.node_days, items=[_past(item) for item in past[:HISTORY_MAX]]
    )


def _node(finding: NodeFinding, past: list[PastIncident]) -> NodeFindingRead:
    mine = [item for item in past if item.node == finding.node]
    return NodeFindingRead(
        node=finding.node,
        gpu=finding.gpu,
        reason=finding.reason,
        incidents_count=finding.incidents,
        jobs_count=finding.jobs,
        programs_count=finding.programs,
        chance=finding.chance,
        past=[_past(item) for item in mine[:SHOWN_MAX]],
    )


def _past(item: PastIncident) -> PastIncidentRead:
    return PastIncidentRead(
        incident_id=item.incident_id,
        label=f"INC-{item.number}",
        job=item.job,
        kind=item.kind,
        gpu=None if item.gpu < 0 else item.gpu,
        verdict_class=item.verdict_class,
        sub_reason=item.sub_reason,
        is_offence=is_suspicious(item.verdict_class, item.sub_reason),
        opened_at=item.opened_at,
    )


def _version(finding: VersionFinding) -> VersionFindingRead:
    root = finding.root
    return VersionFindingRead(
        reason=finding.reason,
        versions=finding.versions,
        jobs_count=finding.jobs,
        programs_count=finding.programs,
        nodes_count=finding.nodes,
        jobs_of_version=finding.jobs_of_version,
        other_jobs_count=finding.other_jobs,
        jobs_of_others=finding.jobs_of_others,
        root=None if root is None else VersionRootRead(kind=root.kind, name=root.name or ""),
    )
