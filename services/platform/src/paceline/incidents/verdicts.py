"""Carries a decision out: one verdict record, one transaction."""

import base64
import binascii
from dataclasses import dataclass, field, replace
from datetime import datetime

from sqlalchemy.ext.asyncio import AsyncSession

from paceline.analysis.history import HistoryPolicy
from paceline.contracts.events import EventType, IncidentStatus
from paceline.contracts.ids import derived_id
from paceline.contracts.registry import JobState
from paceline.contracts.schemas import ContractError
from paceline.contracts.verdicts import EVIDENCE_BUNDLE_BYTES_MAX, VerdictRecord
from paceline.incidents.decide import (
    Decision,
    EpisodeState,
    IncidentPolicy,
    IncidentState,
    JobEnd,
    Reason,
    decide,
    root_key,
    severity_of,
)
from paceline.incidents.detail import ask_for_detail
from paceline.incidents.memory import forget, remember
from paceline.incidents.shipping import Shipping, ask_for_evidence
from paceline.store.actors import system
from paceline.store.incident_changes import ChangeContext, dump_verdict, record_change
from paceline.store.models.incident import Incident, IncidentEpisode
from paceline.store.models.verdict import StoredVerdict
from paceline.store.repositories.evidence import EvidenceRepository
from paceline.store.repositories.incidents import IncidentRepository
from paceline.store.repositories.jobs import JobRepository
from paceline.store.sequence import lock_name
from paceline.store.times import from_unix, to_unix

SOURCE = "incidents"
EVENT_OF_REASON = {
    Reason.OPEN: EventType.INCIDENT_OPENED,
    Reason.JOIN: EventType.INCIDENT_UPDATED,
    Reason.REVISE: EventType.INCIDENT_UPDATED,
    Reason.REOPEN: EventType.INCIDENT_REOPENED,
    Reason.RESOLVE: EventType.INCIDENT_RESOLVED,
    Reason.WITHDRAW: EventType.INCIDENT_RESOLVED,
}
OPENING = (Reason.OPEN, Reason.REOPEN)
ASKING = (*OPENING, Reason.REVISE, Reason.JOIN)
RESOLUTIONS = {
    Reason.RESOLVE: "progress has resumed",
    Reason.WITHDRAW: "judged again with better evidence: no incident",
}


@dataclass(frozen=True)
class VerdictContext:
    """What is the same for all records of one service."""

    policy: IncidentPolicy
    console_url: str
    bundles_max: int
    history: HistoryPolicy = field(default_factory=HistoryPolicy)
    shipping: Shipping | None = None  # None: no node is asked for anything


async def apply_verdict(
    session: AsyncSession, record: VerdictRecord, at: datetime, traceparent: str, context: VerdictContext
) -> Decision:
    """Decide and write. The same record again decides to ignore. ContractError for times or a
    bundle that cannot be stored."""
    stalled_at, judged_at = _time(record.stalled_unix_s), _time(record.judged_unix_s)
    bundle = decode_bundle(record.evidence_bundle)
    # A job is in one partition, but after a rebalance its former reader may not be through yet.
    await lock_name(session, f"verdicts:{record.job}")
    if await session.get(StoredVerdict, _stored_id(record)) is not None:
        return Decision(Reason.IGNORE_DUPLICATE)
    found = await _load(session, record)
    decision = decide(found.current_state, found.cause_state, found.end, record, to_unix(at), context.policy)
    if decision.reason.is_ignored and decision.reason is not Reason.IGNORE_ENDED:
        return decision
    change = ChangeContext(
        actor=system(SOURCE),
        at=at,
        event_id=derived_id("evt", record.id, decision.reason.value),
        console_url=context.console_url,
        traceparent=traceparent,
    )
    incident: Incident | None = None
    if decision.reason is not Reason.IGNORE_ENDED:
        incident = found.current or (found.cause if decision.incident_id else None)
        incident = await _write(session, incident, record, decision.reason, change, stalled_at, context)
        if decision.reason in OPENING:
            await _close_if_replaced(session, incident, record, change)
        if context.shipping is not None and decision.reason in ASKING:
            await ask_for_evidence(
                session, incident, record.verdict, record.id, at, traceparent, context.shipping,
                opens=decision.reason in OPENING,
            )  # fmt: skip
            await ask_for_detail(
                session, incident, record.verdict, record.id, at, traceparent, context.shipping.key,
                opens=decision.reason in OPENING,
            )  # fmt: skip
    await session.flush()
    session.add(_stored(record, incident, decision, stalled_at, judged_at, at))
    await session.flush()
    if bundle and incident is not None:
        await _keep_bundle(session, incident.id, record, bundle, at, context.bundles_max)
    return decision if incident is None else replace(decision, incident_id=incident.id)


def decode_bundle(text: str) -> bytes:
    """Bytes of the bundle, empty where there is none; ContractError where it is not base64 or too
    large."""
    if len(text) > EVIDENCE_BUNDLE_BYTES_MAX * 4 // 3 + 4:
        raise ContractError(
            f"VerdictRecord: evidence_bundle has {len(text)} characters, "
            f"expected at most {EVIDENCE_BUNDLE_BYTES_MAX} bytes in base64"
        )
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ContractError(f"VerdictRecord: evidence_bundle is {text[:40]!r}..., expected base64") from None


def _time(unix_s: float) -> datetime:
    try:
        return from_unix(unix_s)
    except ValueError as error:
        raise ContractError(f"VerdictRecord: {error}") from None


@dataclass(frozen=True)
class _Found:
    current: Incident | None
    current_state: IncidentState | None
    cause: Incident | None
    cause_state: IncidentState | None
    end: JobEnd | None


async def _load(session: AsyncSession, record: VerdictRecord) -> _Found:
    incidents = IncidentRepository(session)
    episode = await incidents.episode(record.job, record.attempt, record.episode)
    if episode is not None:
        current = await incidents.get(episode.incident_id, for_update=True)
        state = None if current is None else await _state(incidents, current, episode)
        return _Found(current, state, None, None, None)
    cause = await incidents.newest_with_root(record.job, record.attempt, root_key(record.verdict))
    cause_state = None if cause is None else await _state(incidents, cause, None)
    attempt = await JobRepository(session).attempt(record.job, record.attempt)
    end = None
    if attempt is not None and attempt.ended_at is not None:
        end = JobEnd(JobState(attempt.state), to_unix(attempt.ended_at))
    return _Found(None, None, cause, cause_state, end)


async def _state(
    incidents: IncidentRepository, incident: Incident, episode: IncidentEpisode | None
) -> IncidentState:
    name = "" if episode is None else episode.episode
    return IncidentState(
        id=incident.id,
        status=IncidentStatus(incident.status),
        resolved_unix_s=None if incident.resolved_at is None else to_unix(incident.resolved_at),
        episode=None if episode is None else EpisodeState(episode.revision, episode.cleared_at is not None),
        other_episodes_open=await incidents.open_episodes_count(incident.id, besides=name),
        revisions=await incidents.verdicts_count(incident.id),
    )


async def _write(
    session: AsyncSession,
    incident: Incident | None,
    record: VerdictRecord,
    reason: Reason,
    change: ChangeContext,
    stalled_at: datetime,
    context: VerdictContext,
) -> Incident:
    if incident is None:
        incident = _open(record, change.at, stalled_at)
    if reason not in (Reason.RESOLVE, Reason.CLEAR_EPISODE, Reason.WITHDRAW):
        _judge(incident, record, context.policy)
    if reason is Reason.REOPEN:
        _reopen(incident, stalled_at)
    if reason in RESOLUTIONS:
        incident.status = IncidentStatus.RESOLVED.value
        incident.resolved_at = change.at
        incident.resolved_by = change.actor.name
        incident.resolution = RESOLUTIONS[reason]
    session.add(incident)
    await session.flush()
    is_over = reason in (Reason.RESOLVE, Reason.WITHDRAW, Reason.CLEAR_EPISODE)
    if not is_over:
        await remember(session, incident, record.verdict, change.at, context.history)
    elif reason is Reason.WITHDRAW:
        await forget(session, incident)
    await _write_episode(session, incident, record, change.at if is_over else None)
    event_type = EVENT_OF_REASON.get(reason)
    if event_type is not None:
        message = RESOLUTIONS.get(reason) or record.verdict.summary
        details = {"reason": reason.value, "verdict": record.id, "episode": record.episode}
        await record_change(session, incident, event_type, message, change, details)
    return incident


async def _close_if_replaced(
    session: AsyncSession, incident: Incident, record: VerdictRecord, change: ChangeContext
) -> None:
    """A verdict that came after the start of the next attempt is told, and over with that: a job that is
    started again within seconds of its death has no open incident."""
    jobs = JobRepository(session)
    job, attempt = await jobs.get(record.job), await jobs.attempt(record.job, record.attempt)
    if job is None or attempt is None or job.attempt == record.attempt or attempt.started_at > job.started_at:
        return
    incident.status = IncidentStatus.RESOLVED.value
    incident.resolved_at = change.at
    incident.resolved_by = change.actor.name
    incident.resolution = f"attempt {job.attempt} has started"
    event_id = derived_id("evt", record.id, "replaced")
    await record_change(
        session,
        incident,
        EventType.INCIDENT_RESOLVED,
        incident.resolution,
        replace(change, event_id=event_id),
    )


def _open(record: VerdictRecord, at: datetime, stalled_at: datetime) -> Incident:
    return Incident(
        id=derived_id("inc", record.job, record.attempt, record.episode),
        job=record.job,
        attempt=record.attempt,
        status=IncidentStatus.OPEN.value,
        stalled_at=stalled_at,
        opened_at=at,
        updated_at=at,
        resolution="",
        reopened_count=0,
        version=0,
    )


def _judge(incident: Incident, record: VerdictRecord, policy: IncidentPolicy) -> None:
    verdict = record.verdict
    incident.episode = record.episode
    incident.severity = severity_of(verdict, policy).value
    incident.verdict_class = verdict.verdict_class.value
    incident.sub_reason = verdict.sub_reason.value
    incident.summary = verdict.summary
    incident.verdict = dump_verdict(verdict)
    incident.verdict_id = record.id
    incident.revision = record.revision
    incident.root_key = root_key(verdict)


def _reopen(incident: Incident, stalled_at: datetime) -> None:
    incident.status = IncidentStatus.OPEN.value
    incident.acknowledged_at = incident.acknowledged_by = None
    incident.resolved_at = incident.resolved_by = None
    incident.resolution = ""
    incident.reopened_count += 1
    incident.stalled_at = stalled_at


async def _write_episode(
    session: AsyncSession, incident: Incident, record: VerdictRecord, cleared_at: datetime | None
) -> None:
    await session.merge(
        IncidentEpisode(
            job=record.job,
            attempt=record.attempt,
            episode=record.episode,
            incident_id=incident.id,
            revision=record.revision,
            cleared_at=cleared_at,
        )
    )
    await session.flush()


def _stored_id(record: VerdictRecord) -> str:
    """The end of an episode may share the id of the verdict that it ends."""
    return f"{record.id}-end" if record.resolved else record.id


def _stored(
    record: VerdictRecord,
    incident: Incident | None,
    decision: Decision,
    stalled_at: datetime,
    judged_at: datetime,
    at: datetime,
) -> StoredVerdict:
    return StoredVerdict(
        id=_stored_id(record),
        incident_id=None if incident is None else incident.id,
        job=record.job,
        attempt=record.attempt,
        episode=record.episode,
        revision=record.revision,
        resolved=record.resolved,
        decision=decision.reason.value,
        verdict=dump_verdict(record.verdict),
        stalled_at=stalled_at,
        judged_at=judged_at,
        received_at=at,
    )


async def _keep_bundle(
    session: AsyncSession, incident_id: str, record: VerdictRecord, data: bytes, at: datetime, count_max: int
) -> None:
    evidence = EvidenceRepository(session)
    bundle_id = derived_id("evb", record.id, record.resolved)
    await evidence.add(bundle_id, incident_id, record.id, record.revision, data, at)
    await evidence.keep_ends(incident_id, count_max)
