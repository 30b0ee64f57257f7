"""From rows to the read models of incidents."""

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy.ext.asyncio import AsyncSession

from paceline.analysis.history import HistoryPolicy
from paceline.api.incidents.cost import load_cost
from paceline.api.incidents.involved import load_involved
from paceline.api.incidents.schemas import (
    ActionRead,
    CommunicatorInvolved,
    CoverageRead,
    DidItHappen,
    EvidenceBundleRead,
    EvidenceInput,
    EvidenceRead,
    IncidentDeliveryRead,
    IncidentRead,
    IncidentSummary,
    OperationRead,
    RootRead,
    ShipmentRead,
    ShippedRead,
    TimelineEntryRead,
    VerdictRevision,
    WhatHappened,
    WhatNext,
    Why,
)
from paceline.api.nodes.service import load_memory
from paceline.contracts.events import EventType
from paceline.contracts.ids import format_ranks
from paceline.contracts.repair import RepairMode
from paceline.contracts.verdicts import Root, Verdict
from paceline.store.incident_changes import read_verdict
from paceline.store.models.evidence import EvidenceBundle
from paceline.store.models.incident import Incident
from paceline.store.models.timeline import TimelineEntry
from paceline.store.models.verdict import StoredVerdict
from paceline.store.repositories.deliveries import DeliveryRepository
from paceline.store.repositories.evidence import EvidenceRepository
from paceline.store.repositories.incidents import IncidentRepository
from paceline.store.repositories.jobs import JobRepository
from paceline.store.repositories.repair import ActionFilter, RepairRepository
from paceline.store.repositories.shipments import SHIPPED_FILES, ShipmentRepository, evidence_state

TIMELINE_MAX = 200
REVISIONS_MAX = 50
DELIVERIES_MAX = 50
REOPENED = EventType.INCIDENT_REOPENED.short.partition(".")[2]  # kind of its timeline entry


def build_summary(incident: Incident) -> IncidentSummary:
    return IncidentSummary(**_summary_fields(incident, read_verdict(incident.verdict)))


async def build_page(
    session: AsyncSession, incident: Incident, now: datetime, policy: HistoryPolicy
) -> IncidentRead:
    """The whole incident page as of `now`."""
    verdict = read_verdict(incident.verdict)
    incidents = IncidentRepository(session)
    jobs = JobRepository(session)
    job = await jobs.get(incident.job)
    communicators = await load_involved(session, incident.job, incident.attempt, verdict)
    timeline = await incidents.timeline(incident.id, TIMELINE_MAX + 1)
    revisions = await incidents.verdicts(incident.id, REVISIONS_MAX)
    bundles = await EvidenceRepository(session).of_incident(incident.id)
    shipments = await ShipmentRepository(session).of_incident(incident.id)
    shipped = ShippedRead(
        state=evidence_state(shipments, now),
        says=next((entry.message for entry in timeline if entry.kind == SHIPPED_FILES), ""),
        nodes=[ShipmentRead.model_validate(shipment) for shipment in shipments],
    )
    actions = await RepairRepository(session).actions(ActionFilter(incidents=[incident.id]), 1)
    mode = actions[0].mode if actions else RepairMode.OBSERVE.value
    return IncidentRead(
        **_summary_fields(incident, verdict),
        job_name=incident.job if job is None else job.name or job.id,
        world_size=None if job is None else job.world_size,
        cluster="" if job is None else job.cluster,
        user="" if job is None else job.user,
        what_happened=_what_happened(incident, verdict, communicators, detected_at(incident, timeline)),
        why=_why(verdict, revisions, bundles, shipped),
        what_next=WhatNext(action=ActionRead.model_validate(verdict.action), owner=verdict.owner, mode=mode),
        did_it_happen=DidItHappen(
            status=incident.status,
            resolution=incident.resolution,
            timeline=[build_entry(entry) for entry in timeline[:TIMELINE_MAX]],
            timeline_is_complete=len(timeline) <= TIMELINE_MAX,
            deliveries=await _deliveries(session, incident.id),
        ),
        cost=await load_cost(session, incident, verdict, now),
        memory=await load_memory(session, incident, verdict, now, policy),
    )


def build_entry(entry: TimelineEntry) -> TimelineEntryRead:
    return TimelineEntryRead.model_validate(entry)


def build_root(root: Root) -> RootRead:
    return RootRead.model_validate(root)


def _summary_fields(incident: Incident, verdict: Verdict) -> dict[str, object]:
    columns = {
        name: getattr(incident, name) for name in IncidentSummary.model_fields if hasattr(incident, name)
    }
    return columns | {
        "label": f"INC-{incident.number}",
        "owner": verdict.owner,
        "roots": [build_root(root) for root in verdict.roots],
        "operation": _operation(verdict),
        "victims_count": verdict.victims_count,
        "communicators_waiting": verdict.communicators_waiting,
        "confidence": verdict.confidence,
    }


def _operation(verdict: Verdict) -> OperationRead | None:
    return None if verdict.operation is None else OperationRead.model_validate(verdict.operation)


def detected_at(incident: Incident, timeline: Sequence[TimelineEntry]) -> datetime:
    """When the present stall was noticed: a reopened incident has a newer one than it was opened for.
    `timeline` is newest first."""
    reopened = (entry.at for entry in timeline if entry.kind == REOPENED)
    return next(reopened, incident.opened_at) if incident.reopened_count else incident.opened_at


def _what_happened(
    incident: Incident, verdict: Verdict, communicators: list[CommunicatorInvolved], noticed_at: datetime
) -> WhatHappened:
    detected_after = (noticed_at - incident.stalled_at).total_seconds()
    return WhatHappened(
        summary=verdict.summary,
        verdict_class=verdict.verdict_class,
        sub_reason=verdict.sub_reason,
        roots=[build_root(root) for root in verdict.roots],
        operation=_operation(verdict),
        victims=format_ranks(verdict.victims),
        victims_count=verdict.victims_count,
        communicators_waiting=verdict.communicators_waiting,
        communicators=communicators,
        stalled_at=incident.stalled_at,
        detected_at=noticed_at,
        detected_after_s=round(max(0.0, detected_after), 3),
        stalled_s=verdict.stalled_s,
    )


def _why(
    verdict: Verdict,
    revisions: Sequence[StoredVerdict],
    bundles: Sequence[EvidenceBundle],
    shipped: ShippedRead,
) -> Why:
    coverage = verdict.coverage
    bundle_of = {bundle.verdict_id: bundle.id for bundle in bundles}
    return Why(
        confidence=verdict.confidence,
        owner=verdict.owner,
        coverage=CoverageRead(
            ranks_expected=coverage.ranks_expected,
            ranks_reporting=coverage.ranks_reporting,
            ratio=coverage.ratio,
            communicators_expected=coverage.communicators_expected,
            communicators_complete=coverage.communicators_complete,
            operations_dropped=coverage.operations_dropped,
            sources=list(coverage.sources),
        ),
        evidence=[
            EvidenceRead(
                rule=item.rule,
                statement=item.statement,
                inputs=[EvidenceInput(name=name, value=value) for name, value in item.inputs.items()],
                threshold=item.threshold,
                supports=item.supports,
            )
            for item in verdict.evidence
        ],
        would_decide=verdict.would_decide,
        revisions=[_revision(row, bundle_of.get(row.id)) for row in revisions],
        bundles=[EvidenceBundleRead.model_validate(bundle) for bundle in bundles],
        shipped=shipped,
    )


def _revision(row: StoredVerdict, bundle_id: str | None) -> VerdictRevision:
    verdict = read_verdict(row.verdict)
    return VerdictRevision(
        id=row.id,
        revision=row.revision,
        verdict_class=verdict.verdict_class,
        sub_reason=verdict.sub_reason,
        summary=verdict.summary,
        confidence=verdict.confidence,
        resolved=row.resolved,
        judged_at=row.judged_at,
        bundle_id=bundle_id,
    )


async def _deliveries(session: AsyncSession, incident_id: str) -> list[IncidentDeliveryRead]:
    rows = await DeliveryRepository(session).page(None, DELIVERIES_MAX, incident_id=incident_id)
    return [IncidentDeliveryRead.model_validate(row) for row in rows]
