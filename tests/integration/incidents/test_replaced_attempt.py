"""A job that is started again before the verdict on its death arrives."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from paceline.contracts.events import IncidentStatus
from paceline.contracts.registry import JobRecord, JobState
from paceline.contracts.verdicts import VerdictRecord
from paceline.incidents.decide import IncidentPolicy, Reason
from paceline.incidents.registry import write_job
from paceline.incidents.verdicts import VerdictContext, apply_verdict
from paceline.store import Database
from paceline.store.repositories.incidents import IncidentFilter, IncidentRepository
from paceline.store.repositories.outbox import OutboxRepository
from paceline.store.times import from_unix

NOW = 1_767_323_045.0
CONTEXT = VerdictContext(IncidentPolicy(), "http://console", bundles_max=3)
FIRST = JobRecord(
    job="llama", attempt="a1", cluster="c", tenant="t", user="u", name="Llama", world_size=8, shards=1,
    state=JobState.FAILED, id_source="declared", attempt_source="store", started_unix_s=NOW - 600,
    ended_unix_s=NOW - 5, end_reason="rank 5 killed by SIGKILL",
)  # fmt: skip
SECOND = replace(
    FIRST, attempt="a2", state=JobState.RUNNING, started_unix_s=NOW - 2, ended_unix_s=None, end_reason=""
)


@pytest.mark.parametrize(
    ("attempt", "status"), [("a1", IncidentStatus.RESOLVED), ("a2", IncidentStatus.OPEN)]
)
async def test_late_verdict_is_told_and_over(
    store: Database, make_record: Callable[..., VerdictRecord], attempt: str, status: IncidentStatus
) -> None:
    """And a verdict on the new attempt stays open."""
    for job in (FIRST, SECOND):
        async with store.transaction() as session:
            await write_job(session, job, from_unix(NOW - 1), "http://console")
    record = make_record(attempt=attempt)
    reasons = []
    for _ in range(2):
        async with store.transaction() as session:
            decision = await apply_verdict(session, record, from_unix(NOW), "", CONTEXT)
        reasons.append(decision.reason)
    assert reasons == [Reason.OPEN, Reason.IGNORE_DUPLICATE]
    async with store.transaction() as session:
        (incident,) = await IncidentRepository(session).page(IncidentFilter(), 10)
        told = [e.type for e in await OutboxRepository(session).after(0, 100) if e.incident_id]
    assert incident.status == status.value
    resolved = status is IncidentStatus.RESOLVED
    assert incident.resolution == ("attempt a2 has started" if resolved else "")
    assert told == ["incident.opened", *["incident.resolved"] * resolved]
