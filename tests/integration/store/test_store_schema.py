"""Migrations, the audit log's guard, the outbox's order, retention: on a real PostgreSQL."""

import asyncio
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from sqlalchemy import select, text
from sqlalchemy.exc import DBAPIError

from paceline.contracts.ids import new_id
from paceline.contracts.registry import JobRecord, JobState, NodeRecord, RankRecord
from paceline.incidents.registry import write_job, write_nodes
from paceline.store import Database, migrate
from paceline.store.actors import system
from paceline.store.incident_changes import append_stream_event
from paceline.store.models.audit import AuditEntry
from paceline.store.models.incident import Incident
from paceline.store.repositories.audit import AuditRepository, ChainCheck, find_break
from paceline.store.repositories.evidence import EvidenceRepository
from paceline.store.repositories.jobs import JobRepository
from paceline.store.repositories.outbox import OutboxRepository
from paceline.store.schema import SchemaDriftError, check, downgrade

AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)


class TestMigrations:
    async def test_models_and_migrations_agree(self, database: str) -> None:
        await check(database)

    async def test_a_drift_is_noticed(self, database: str, store: Database) -> None:
        async with store.transaction() as session:
            await session.execute(text("ALTER TABLE incidents DROP COLUMN resolution"))
        with pytest.raises(SchemaDriftError, match="write a migration"):
            await check(database)

    async def test_down_and_up_again_by_two_at_once(self, database: str) -> None:
        await downgrade(database)
        await asyncio.gather(migrate(database), migrate(database))
        await check(database)


async def append_audit(store: Database, count: int) -> None:
    for number in range(count):
        async with store.transaction() as session:
            await AuditRepository(session).append(
                AT, system("test"), "thing.done", ("thing", str(number)), {"n": number}
            )


async def tamper(store: Database, statement: str) -> None:
    """Change the log as somebody could who may disable its trigger."""
    async with store.transaction() as session:
        for part in ("DISABLE TRIGGER USER", statement, "ENABLE TRIGGER USER"):
            command = part if part == statement else f"ALTER TABLE audit_entries {part}"
            await session.execute(text(command))


async def check_chain(store: Database, after: int = 0, entries_max: int = 100) -> ChainCheck:
    async with store.transaction() as session:
        return await AuditRepository(session).check_chain(after, entries_max)


class TestAudit:
    async def test_entries_are_chained(self, store: Database) -> None:
        await append_audit(store, 3)
        async with store.transaction() as session:
            entries = (await session.scalars(select(AuditEntry).order_by(AuditEntry.id))).all()
            assert find_break(entries) is None
            session.expunge_all()
        entries[1].details = {"n": 99}
        assert find_break(entries) == entries[1].id

    async def test_a_whole_log_is_intact_in_one_part_or_several(
        self, store: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert await check_chain(store) == ChainCheck(0, None, 0, complete=True)
        await append_audit(store, 5)
        assert await check_chain(store) == ChainCheck(5, None, 5, complete=True)
        monkeypatch.setattr("paceline.store.repositories.audit.CHECK_CHUNK", 2)
        assert await check_chain(store) == ChainCheck(5, None, 5, complete=True)
        assert await check_chain(store, 0, 3) == ChainCheck(3, None, 3, complete=False)
        assert await check_chain(store, 3, 2) == ChainCheck(2, None, 5, complete=True)

    @pytest.mark.parametrize(
        ("statement", "broken"),
        [
            ("UPDATE audit_entries SET actor = 'x' WHERE id = 4", 4),
            ("DELETE FROM audit_entries WHERE id = 3", 4),
            ("DELETE FROM audit_entries WHERE id = 1", 2),
        ],
    )
    @pytest.mark.parametrize("chunk", [1, 2, 1000])
    async def test_a_break_is_found_wherever_a_part_begins(
        self, store: Database, statement: str, broken: int, chunk: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("paceline.store.repositories.audit.CHECK_CHUNK", chunk)
        await append_audit(store, 5)
        await tamper(store, statement)
        found = await check_chain(store)
        assert (found.first_broken_id, found.last_id, found.complete) == (broken, broken, False)

    @pytest.mark.parametrize(
        "statement",
        ["UPDATE audit_entries SET actor = 'x'", "DELETE FROM audit_entries", "TRUNCATE audit_entries"],
    )
    async def test_nothing_is_changed_or_deleted(self, store: Database, statement: str) -> None:
        with pytest.raises(DBAPIError, match="append-only"):
            async with store.transaction() as session:
                await session.execute(text(statement))


async def append(store: Database, job: str, *, wait: asyncio.Event | None = None) -> None:
    async with store.transaction() as session:
        await append_stream_event(session, event_id=new_id("evt"), event_type="job.x", job=job, at=AT)
        if wait is not None:
            await wait.wait()


class TestOutbox:
    async def test_a_reader_never_sees_a_number_before_a_smaller_one(
        self, store: Database, eventually: Any
    ) -> None:
        hold = asyncio.Event()
        first = asyncio.create_task(append(store, "slow", wait=hold))
        await eventually(lambda: self._is_held(store))
        second = asyncio.create_task(append(store, "fast"))
        await asyncio.wait({second}, timeout=0.3)
        assert not second.done(), "the second writer overtook the first"
        async with store.transaction() as session:
            assert await OutboxRepository(session).after(0, 10) == []
        hold.set()
        await asyncio.gather(first, second)
        async with store.transaction() as session:
            rows = await OutboxRepository(session).after(0, 10)
        assert [row.job for row in rows] == ["slow", "fast"]

    async def _is_held(self, store: Database) -> bool:
        async with store.transaction() as session:
            query = (
                "SELECT count(*) FROM pg_locks JOIN pg_database ON pg_locks.database = pg_database.oid "
                "WHERE locktype = 'advisory' AND datname = current_database()"
            )
            return bool(await session.scalar(text(query)))

    async def test_cleaning_keeps_the_newest_and_the_unpublished(self, store: Database) -> None:
        for job in ("a", "b", "c"):
            await append(store, job)
        async with store.transaction() as session:
            await session.execute(text("UPDATE outbox SET published_at = NULL WHERE job = 'a'"))
        async with store.transaction() as session:
            assert await OutboxRepository(session).unpublished_count() == 1
            assert await OutboxRepository(session).delete_published_before(AT + timedelta(days=1), 10) == 1
            rows = await OutboxRepository(session).after(0, 10)
        assert [row.job for row in rows] == ["a", "c"]


class TestRegistry:
    @staticmethod
    async def _register(store: Database, job: str, *, ended: bool, seen: datetime = AT) -> None:
        record = JobRecord(
            job, "a1", "c", "t", "u", "n", 8, 1, JobState.FINISHED if ended else JobState.RUNNING,
            "declared", "declared", AT.timestamp(), ended_unix_s=AT.timestamp() if ended else None,
        )  # fmt: skip
        node = NodeRecord(job, "a1", "n1", "n1/agent", (RankRecord(0, 0, 1, 2),))
        async with store.transaction() as session:
            await write_nodes(session, [node], seen)
        async with store.transaction() as session:
            await write_job(session, record, AT, "http://console")

    async def test_what_ended_or_fell_silent_long_ago_goes_and_the_rest_stays(self, store: Database) -> None:
        later = AT + timedelta(days=31)
        await self._register(store, "ended", ended=True)
        await self._register(store, "silent", ended=False)
        await self._register(store, "long-running", ended=False, seen=later)
        async with store.transaction() as session:
            jobs = JobRepository(session)
            over = await jobs.attempts_over_before(AT + timedelta(days=30), 10)
            assert sorted(over) == [("ended", "a1"), ("silent", "a1")]
            assert [await jobs.delete_registry_of(*attempt) for attempt in over] == [3, 3]
            assert await jobs.attempts_over_before(AT + timedelta(days=30), 10) == []
        for table in ("jobs", "job_attempts", "job_nodes"):
            column = "id" if table == "jobs" else "job"
            async with store.transaction() as session:
                left = await session.scalars(text(f"SELECT {column} FROM {table}"))
            assert list(left) == ["long-running"], table


class TestEvidence:
    @pytest.fixture
    async def incident(self, store: Database) -> str:
        async with store.transaction() as session:
            session.add(
                Incident(
                    id="inc_1",
                    job="j",
                    attempt="a",
                    episode="e",
                    status="open",
                    severity="error",
                    verdict_class="H1",
                    sub_reason="",
                    summary="s",
                    verdict={},
                    verdict_id="v",
                    revision=1,
                    root_key="k",
                    stalled_at=AT,
                    opened_at=AT,
                    updated_at=AT,
                    resolution="",
                    reopened_count=0,
                    version=1,
                )
            )
        return "inc_1"

    async def _add(self, store: Database, incident: str, count: int) -> None:
        async with store.transaction() as session:
            for number in range(count):
                at = AT + timedelta(minutes=number)
                evidence = EvidenceRepository(session)
                await evidence.add(f"b{number}", incident, f"v{number}", number, b"x" * 100, at)

    async def _left(self, store: Database, incident: str) -> list[str]:
        async with store.transaction() as session:
            return [bundle.id for bundle in await EvidenceRepository(session).of_incident(incident)]

    async def test_the_first_and_the_newest_are_kept(self, store: Database, incident: str) -> None:
        await self._add(store, incident, 6)
        async with store.transaction() as session:
            assert await EvidenceRepository(session).keep_ends(incident, 3) == 3
        assert await self._left(store, incident) == ["b5", "b4", "b0"]

    async def test_all_together_are_bounded(self, store: Database, incident: str) -> None:
        await self._add(store, incident, 5)
        async with store.transaction() as session:
            assert await EvidenceRepository(session).delete_over(250, 2) == 2
            assert await EvidenceRepository(session).delete_over(250, 2) == 1
            assert await EvidenceRepository(session).delete_over(250, 2) == 0
        assert await self._left(store, incident) == ["b4", "b3"]

    async def test_old_ones_go(self, store: Database, incident: str) -> None:
        await self._add(store, incident, 3)
        async with store.transaction() as session:
            assert await EvidenceRepository(session).delete_before(AT + timedelta(minutes=2), 10) == 2
        assert await self._left(store, incident) == ["b2"]
