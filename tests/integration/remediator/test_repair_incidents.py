"""Repair and the incident that says why: evidence before a kill, recoveries and pages beside it."""

from typing import Any

import pytest

from paceline.contracts.events import EvidenceState
from paceline.contracts.repair import RepairCause, RepairMode
from paceline.remediator.model import Judged, Reason, Tick
from paceline.store import Database
from paceline.store.models.incident import Incident
from paceline.store.times import from_unix
from tests.integration.remediator.test_repair_tables import NOW, Job, member


async def add_incident(store: Database, evidence: EvidenceState = EvidenceState.NONE) -> None:
    at = from_unix(NOW)
    async with store.transaction() as session:
        session.add(
            Incident(
                id="inc_1", job="train", attempt="a1", episode="e", status="open", severity="error",
                verdict_class="H3", sub_reason="", summary="s", verdict={}, verdict_id="v", revision=1,
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
