"""Reports that one poll has read: real PostgreSQL."""

from collections.abc import Sequence

import pytest
from sqlalchemy import event, text

from paceline.contracts.events import EventType
from paceline.contracts.recovery import RecoveryPhase
from paceline.contracts.repair import RecoveryReport, RepairMode, ReportKind
from paceline.contracts.topics import COMMAND_RESULTS
from paceline.remediator.model import Event, Reason, Step
from paceline.remediator.reports import ReportHandler
from paceline.runtime.clock import ManualClock
from paceline.runtime.cloud_events import encode_event
from paceline.runtime.record import Record
from paceline.store import Database
from tests.integration.remediator.test_repair_tables import NODES, NOW, Job, member

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
PHASES = (RecoveryPhase.RENDEZVOUS, RecoveryPhase.RESUME, RecoveryPhase.FIRST_STEP)


def record_of(job: str, name: str, phase: RecoveryPhase | None, step: int = 41) -> Record:
    report = RecoveryReport(
        f"rep_{job}_{name}_{phase}", ReportKind.PHASE, NODES[name], job, "a1", name, 0, 1, NOW + 1,
        phase=phase, duration_ms=12.5, step=step, replayed=1,
    )  # fmt: skip
    headers, value = encode_event(
        report, event_type=EventType.RECOVERY_REPORT.value, source="test", event_id=report.id,
        unix_s=NOW, traceparent=TRACE,
    )  # fmt: skip
    return Record(COMMAND_RESULTS.name, 0, 0, job.encode(), value, tuple(headers))


@pytest.fixture
async def jobs(store: Database) -> list[Job]:
    """Two jobs, a rank of each replaced by its standby just now."""
    made = [Job(store, RepairMode.AUTO, name=name) for name in ("train", "tune")]
    for job in made:
        await job.register(
            member("m0", 0, "n0"), member("m1", 1, "n0"), member("m2", 2, "n1"), member("s0", -1, "n2")
        )
        assert (await job.kill(1)).reason is Reason.REBUILD
    return made


class Notes:
    """Handles, and knows what was decided and how many transactions that took."""

    def __init__(self, store: Database, job: Job) -> None:
        self.taken: list[tuple[str, Reason]] = []
        self.commits = 0
        self._engine = store._engine.sync_engine
        self._handler = ReportHandler(
            store, ManualClock(unix_s=NOW + 1), job.context, lambda: NOW + 1, self._note
        )

    def _note(self, job: str, attempt: str, what: Event, step: Step) -> None:
        self.taken.append((job, step.reason))

    def _count(self, _connection: object) -> None:
        self.commits += 1

    async def handle(self, records: Sequence[Record]) -> list[Record]:
        """The bad ones."""
        event.listen(self._engine, "commit", self._count)
        try:
            return [each.record for each in await self._handler.handle(records)]
        finally:
            event.remove(self._engine, "commit", self._count)


TABLES = {
    "repair_jobs": "job, data::text, due_at", "repair_actions": "id, status, step, version, updated_at",
    "recoveries": "id, state, step, replayed, ended_at", "recovery_phases": "id",
    "outbox": "id", "audit_entries": "id",
}  # fmt: skip


async def rows(store: Database) -> dict[str, list[tuple[object, ...]]]:
    found = {}
    async with store.transaction() as session:
        for table, names in TABLES.items():
            result = await session.execute(text(f"SELECT {names} FROM {table} ORDER BY 1"))
            found[table] = [tuple(row) for row in result]
    return found


async def test_a_poll_with_two_jobs_and_bad_records_decides_both_in_order(
    store: Database, jobs: list[Job]
) -> None:
    good = [
        record_of(job.name, name, phase) for phase in PHASES for name in ("m0", "s0", "m2") for job in jobs
    ]
    bad = [
        good[0]._replace(value=b"{}"),
        record_of("train", "m0", None),
        record_of("tune", "m2", RecoveryPhase.RESUME, step=1 << 62),
    ]
    poll = [*good[:5], bad[0], *good[5:9], bad[1], *good[9:], bad[2]]
    notes = Notes(store, jobs[0])
    assert await notes.handle(poll) == bad
    for job in jobs:
        reasons = [reason for name, reason in notes.taken if name == job.name]
        assert reasons.index(Reason.RESTORING) < reasons.index(Reason.RESUMED) == len(reasons) - 1 == 8
    assert notes.commits <= 6, "of each job: what leads to a change, twice or three times"
    before = await rows(store)
    assert len(before["recovery_phases"]) == len(good)
    assert {(row[1], row[2], row[3]) for row in before["recoveries"]} == {("resumed", 41, 1)}
    assert await notes.handle(poll) == bad
    assert await rows(store) == before


async def test_reports_together_leave_the_rows_that_they_leave_one_by_one(
    store: Database, jobs: list[Job]
) -> None:
    notes = Notes(store, jobs[0])
    phases = [(name, phase) for phase in PHASES for name in ("m0", "s0", "m2")][:-1]
    await notes.handle([record_of("train", name, phase) for name, phase in phases])
    for name, phase in phases:
        await notes.handle([record_of("tune", name, phase)])
    together, alone = ([each for job, each in notes.taken if job == name] for name in ("train", "tune"))
    assert together == alone
    async with store.transaction() as session:
        found = await session.execute(
            text(
                "SELECT a.status, a.step, a.replayed, a.reason, a.version, a.updated_at, r.state, r.step,"
                " r.replayed, r.reason, j.state, j.due_at FROM repair_actions a"
                " JOIN recoveries r ON r.action_id = a.id JOIN repair_jobs j ON j.action_id = a.id"
            )
        )
        first, second = found.all()
    assert first == second
