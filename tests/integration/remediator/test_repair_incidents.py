"""Repair and the incident that says why: evidence before a kill, recoveries and pages beside it."""

import asyncio
import json
from typing import Any

import pytest

from paceline.contracts.events import EvidenceState
from paceline.contracts.recovery import OrderOutcome, RecoveryPhase
from paceline.contracts.repair import RecoveryReport, RepairCause, RepairMode, ReportKind
from paceline.contracts.schemas import dump_json
from paceline.remediator.app import RemediatorApp
from paceline.remediator.model import Judged, Reason, Tick
from paceline.remediator.reading import event_of_report
from paceline.remediator.settings import RemediatorSettings
from paceline.runtime.clock import ManualClock
from paceline.runtime.settings import CommandSettings, KafkaSettings
from paceline.store import Database
from paceline.store.models.incident import Incident
from paceline.store.repositories.repair import RepairRepository
from paceline.store.settings import StoreSettings
from paceline.store.times import from_unix
from tests.integration.remediator.test_repair_tables import KEY, NOW, Job, member
from tests.unit.remediator.test_policies_and_faults import VERDICT


async def add_incident(
    store: Database, evidence: EvidenceState = EvidenceState.NONE, job: str = "train"
) -> None:
    at = from_unix(NOW)
    async with store.transaction() as session:
        session.add(
            Incident(
                id="inc_1", job=job, attempt="a1", episode="e", status="open", severity="error",
                verdict_class="H3", sub_reason="", summary="s", verdict_id="v", revision=1,
                verdict=json.loads(dump_json(VERDICT)),
                root_key="k", stalled_at=at, opened_at=at, updated_at=at, resolution="",
                reopened_count=0, version=1, evidence=evidence.value,
            )
        )  # fmt: skip


def verdict(cause: RepairCause, rank: int, event_id: str = "evt") -> Judged:
    return Judged(event_id, NOW, "inc_1", cause, False, (rank,), (), "its words", NOW)


@pytest.fixture
async def job(store: Database) -> Job:
    made = Job(store, RepairMode.AUTO)
    await made.register(
        member("m0", 0, "n0"), member("m1", 1, "n0"), member("m2", 2, "n1"), member("s0", -1, "n2")
    )
    return made


async def test_a_verdict_kills_nobody_before_its_evidence_has_come(job: Job, store: Database) -> None:
    await add_incident(store, EvidenceState.PENDING)
    step: Any = await job.feed(verdict(RepairCause.HARDWARE, 1))
    assert step.job.action.reason is Reason.WAIT_EVIDENCE
    assert await job.commands() == []
    async with store.transaction() as session:
        found = await session.get(Incident, "inc_1")
        assert found is not None
        found.evidence = EvidenceState.COMPLETE.value
    assert (await job.feed(Tick())).reason is Reason.FENCE


async def test_a_capture_beside_a_recovery_does_not_end_its_row(job: Job, store: Database) -> None:
    await add_incident(store)
    await job.kill(2)
    assert (await job.feed(verdict(RepairCause.SOFTWARE, 0))).reason is Reason.CAPTURE
    async with store.transaction() as session:
        (row,) = await RepairRepository(session).recoveries(["train"], [], None, 10)
    assert (row.state, row.ended_at) == ("rebuilding", None)
    for name in ("m0", "m1", "s0"):
        await job.report(name, RecoveryPhase.FIRST_STEP)
    async with store.transaction() as session:
        (row,) = await RepairRepository(session).recoveries(["train"], [], None, 10)
    assert (row.state, row.reason) == ("resumed", "resumed")
    assert row.ended_at is not None


async def test_of_two_services_one_decides_about_a_capture(job: Job, store: Database, database: str) -> None:
    await add_incident(store)
    await job.feed(verdict(RepairCause.SOFTWARE, 0))
    async with store.transaction() as session, store.transaction() as other:
        (row,) = await RepairRepository(session).captures("observing", 10)
        assert await RepairRepository(other).captures("observing", 10) == []  # it waits for nobody either
        found = await session.get(Incident, "inc_1")
        assert found is not None
        found.evidence = EvidenceState.COMPLETE.value
    settings = RemediatorSettings(
        kafka=KafkaSettings(bootstrap="localhost:1"), database=StoreSettings(url=database),
        command=CommandSettings(key=KEY.decode()),
    )  # fmt: skip
    apps = [RemediatorApp(settings, ManualClock(unix_s=NOW + 1)) for _ in range(2)]
    await asyncio.gather(*(app.look_at_captures() for app in apps))
    async with store.transaction() as session:
        done = await RepairRepository(session).action(row.id)
    assert done is not None
    assert (done.status, done.version) == ("succeeded", row.version + 1)


async def test_a_fallback_pages_when_its_incident_opens_while_it_runs(job: Job, store: Database) -> None:
    await job.kill(1)
    await job.report("s0", RecoveryPhase.RENDEZVOUS)
    lost = RecoveryReport(
        "rep_lost", ReportKind.RESULT, "n1", "train", "a1", "m2", 2, 1, NOW, outcome=OrderOutcome.LOST,
        message="no copy of shard 1",
    )  # fmt: skip
    event = event_of_report(lost)
    assert event is not None
    assert (await job.feed(event)).reason is Reason.STATE_LOST
    job.now_s += 2
    await add_incident(store)
    await job.feed(verdict(RepairCause.PROCESS_EXIT, 1))
    async with store.transaction() as session:
        found = await session.get(Incident, "inc_1")
    assert found is not None
    assert found.severity == "critical"
