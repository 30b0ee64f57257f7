"""Verdict records against real tables: what is written, and that a replay writes nothing."""

import base64
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import text

from paceline.contracts.events import IncidentEvent
from paceline.contracts.registry import CommunicatorRecord, JobRecord, JobState, NodeRecord, RankRecord
from paceline.contracts.schemas import ContractError, load_json
from paceline.contracts.verdicts import VerdictClass, VerdictRecord
from paceline.incidents.decide import IncidentPolicy, Reason
from paceline.incidents.registry import JobNews, write_job, write_nodes
from paceline.incidents.retention import clean
from paceline.incidents.settings import IncidentsSettings
from paceline.incidents.verdicts import VerdictContext, apply_verdict
from paceline.store import Database
from paceline.store.models.incident import Incident
from paceline.store.models.outbox import OutboxEvent
from paceline.store.repositories.audit import AuditRepository, find_break
from paceline.store.repositories.evidence import EvidenceRepository
from paceline.store.repositories.incidents import IncidentFilter, IncidentRepository
from paceline.store.repositories.jobs import JobRepository
from paceline.store.repositories.outbox import OutboxRepository
from paceline.store.times import from_unix

NOW = 1_767_323_045.0
Make = Callable[..., VerdictRecord]
CONTEXT = VerdictContext(IncidentPolicy(), "http://console", bundles_max=3)
JOB = JobRecord(
    job="llama", attempt="a1", cluster="c", tenant="t", user="u", name="Llama", world_size=8, shards=1,
    state=JobState.RUNNING, id_source="declared", attempt_source="store", started_unix_s=NOW - 600,
)  # fmt: skip


async def apply(store: Database, record: VerdictRecord, at_s: float = NOW) -> Reason:
    async with store.transaction() as session:
        decision = await apply_verdict(session, record, from_unix(at_s), "", CONTEXT)
    return decision.reason


async def write(store: Database, record: JobRecord, at_s: float = NOW) -> JobNews:
    async with store.transaction() as session:
        return await write_job(session, record, from_unix(at_s), "http://console")


async def only_incident(store: Database) -> Incident:
    async with store.transaction() as session:
        found = await IncidentRepository(session).page(IncidentFilter(), 10)
    assert len(found) == 1
    return found[0]


async def events(store: Database) -> list[OutboxEvent]:
    async with store.transaction() as session:
        return list(await OutboxRepository(session).after(0, 100))


async def fingerprint(store: Database) -> list[int]:
    """Row counts and versions: any write shows."""
    tables = ("incidents", "incident_episodes", "verdicts", "timeline_entries", "outbox", "audit_entries")
    async with store.transaction() as session:
        counts = [await session.scalar(text(f"SELECT count(*) FROM {table}")) for table in tables]
        versions = await session.scalar(text("SELECT coalesce(sum(version), 0) FROM incidents"))
    return [int(count or 0) for count in (*counts, versions)]


async def test_one_verdict_one_incident_with_all_its_traces(store: Database, make_record: Make) -> None:
    assert await apply(store, make_record()) is Reason.OPEN
    incident = await only_incident(store)
    assert (incident.status, incident.severity, incident.verdict_class) == ("open", "critical", "H1")
    assert (incident.number, incident.version, incident.revision) == (1, 1, 1)
    (row,) = await events(store)
    event = load_json(IncidentEvent, row.payload)
    assert (event.id, event.incident, event.type.short) == (row.id, incident.id, "incident.opened")
    assert event.url == f"http://console/incidents/{incident.id}"
    assert (row.topic, row.key, row.published_at) == ("paceline.incidents.v1", "llama", None)
    async with store.transaction() as session:
        (entry,) = await IncidentRepository(session).timeline(incident.id, 10)
        (audit,) = await AuditRepository(session).page(None, 10)
    assert (entry.kind, entry.actor, entry.source) == ("opened", "system", "incidents")
    assert (audit.action, audit.target_id) == ("incident.opened", incident.id)


async def test_a_replay_of_a_whole_life_writes_nothing(store: Database, make_record: Make) -> None:
    life = [make_record(1), make_record(2), make_record(3, resolved=True)]
    assert [await apply(store, record) for record in life] == [Reason.OPEN, Reason.REVISE, Reason.RESOLVE]
    before = await fingerprint(store)
    for record in life * 2:
        assert (await apply(store, record, NOW + 60)).is_ignored
    assert await fingerprint(store) == before
    types = [row.type for row in await events(store)]
    assert types == ["incident.opened", "incident.updated", "incident.resolved"]


async def test_a_better_verdict_changes_class_and_root(store: Database, make_record: Make) -> None:
    first = make_record()
    unsure = replace(first.verdict, verdict_class=VerdictClass.INCONCLUSIVE, roots=())
    await apply(store, replace(first, verdict=unsure))
    assert await apply(store, make_record(2)) is Reason.REVISE
    incident = await only_incident(store)
    assert (incident.verdict_class, incident.revision, incident.version) == ("H1", 2, 2)


async def test_the_same_rank_again_reopens_and_another_rank_does_not(
    store: Database, make_record: Make
) -> None:
    await apply(store, make_record())
    await apply(store, make_record(2, resolved=True))
    assert await apply(store, make_record(episode="epi_2"), NOW + 300) is Reason.REOPEN
    incident = await only_incident(store)
    assert (incident.status, incident.reopened_count, incident.episode) == ("open", 1, "epi_2")
    assert (incident.resolved_at, incident.resolution) == (None, "")
    assert await apply(store, make_record(episode="epi_3", rank=6)) is Reason.OPEN


async def test_an_incident_with_two_episodes_ends_with_the_last(store: Database, make_record: Make) -> None:
    await apply(store, make_record())
    assert await apply(store, make_record(episode="epi_2")) is Reason.JOIN
    assert await apply(store, make_record(2, resolved=True)) is Reason.CLEAR_EPISODE
    assert (await only_incident(store)).status == "open"
    assert await apply(store, make_record(2, episode="epi_2", resolved=True)) is Reason.RESOLVE
    assert (await only_incident(store)).status == "resolved"


async def test_bundles_are_kept_within_their_bound(store: Database, make_record: Make) -> None:
    for revision in range(1, 6):
        data = base64.b64encode(b"evidence %d" % revision).decode()
        await apply(store, make_record(revision, evidence_bundle=data), NOW + revision)
    incident = await only_incident(store)
    async with store.transaction() as session:
        evidence = EvidenceRepository(session)
        kept = await evidence.of_incident(incident.id)
        newest = await evidence.get(incident.id, kept[0].id)
    assert [bundle.revision for bundle in kept] == [5, 4, 1]
    assert newest is not None
    assert newest.data == b"evidence 5"


@pytest.mark.parametrize(
    "changes",
    [
        {"evidence_bundle": "###"},
        {"evidence_bundle": "A" * 800_000},
        {"stalled_unix_s": -1.0},
        {"judged_unix_s": 1e18},
    ],
)
async def test_what_cannot_be_stored_is_refused_whole(
    store: Database, make_record: Make, changes: dict[str, object]
) -> None:
    with pytest.raises(ContractError, match="VerdictRecord"):
        await apply(store, make_record(**changes))
    assert sum(await fingerprint(store)) == 0


async def _apply_and_crash(store: Database, record: VerdictRecord) -> None:
    async with store.transaction() as session:
        await apply_verdict(session, record, from_unix(NOW), "", CONTEXT)
        raise RuntimeError("crash")


async def test_a_crash_in_the_middle_leaves_nothing(store: Database, make_record: Make) -> None:
    with pytest.raises(RuntimeError, match="crash"):
        await _apply_and_crash(store, make_record())
    assert sum(await fingerprint(store)) == 0
    assert await apply(store, make_record()) is Reason.OPEN


class TestJobs:
    async def test_a_finished_job_resolves_its_incident(self, store: Database, make_record: Make) -> None:
        await write(store, JOB)
        await apply(store, make_record())
        ended = replace(JOB, state=JobState.FINISHED, ended_unix_s=NOW)
        assert await write(store, ended) is JobNews.ENDED
        incident = await only_incident(store)
        assert (incident.status, incident.resolution) == ("resolved", "the job finished")

    async def test_a_failed_job_keeps_it_until_the_next_attempt(
        self, store: Database, make_record: Make
    ) -> None:
        await write(store, JOB)
        await apply(store, make_record())
        await write(store, replace(JOB, state=JobState.FAILED, ended_unix_s=NOW, end_reason="rank 5 died"))
        incident = await only_incident(store)
        assert incident.status == "open"
        async with store.transaction() as session:
            newest = (await IncidentRepository(session).timeline(incident.id, 1))[0]
        assert newest.message == "the job ended: failed rank 5 died"
        again = replace(JOB, attempt="a2", started_unix_s=NOW + 60)
        assert await write(store, again) is JobNews.ATTEMPT_STARTED
        assert (await only_incident(store)).resolution == "attempt a2 has started"

    async def test_the_ragged_end_opens_nothing_but_is_kept(self, store: Database, make_record: Make) -> None:
        await write(store, replace(JOB, state=JobState.CANCELLED, ended_unix_s=NOW))
        assert await apply(store, make_record()) is Reason.IGNORE_ENDED
        assert await apply(store, make_record()) is Reason.IGNORE_DUPLICATE
        async with store.transaction() as session:
            assert await session.scalar(text("SELECT decision FROM verdicts")) == "ignore_ended"

    async def test_every_record_twice_and_late_ones_change_nothing(self, store: Database) -> None:
        ended = replace(JOB, state=JobState.FINISHED, ended_unix_s=NOW)
        for record in (JOB, JOB, ended, JOB, ended, replace(JOB, attempt="a0", started_unix_s=NOW - 900)):
            await write(store, record)
        async with store.transaction() as session:
            job = await JobRepository(session).get("llama")
            attempts = await JobRepository(session).attempts("llama", 10)
        assert job is not None
        assert (job.attempt, job.state) == ("a1", "finished")
        assert [row.attempt for row in attempts] == ["a1", "a0"]
        assert [row.type for row in await events(store)] == ["job.registered", "job.ended"]

    async def test_nodes_and_communicators_are_upserted(self, store: Database) -> None:
        node = NodeRecord("llama", "a1", "n0", "ag", (RankRecord(0, 0, 1, 1, coordinates={"tp": 0}),))
        comm = CommunicatorRecord("llama", "a1", "00000000000000aa", "tp_1", "0-7", 0, 0, "gloo")
        for left in (False, True):
            async with store.transaction() as session:
                await write_nodes(session, [node, comm, replace(node, left=left)], from_unix(NOW))
        async with store.transaction() as session:
            (row,) = await JobRepository(session).nodes("llama", "a1", 0, 0)
            assert await JobRepository(session).nodes("llama", "a1", 1, 9) == []
            (group,) = await JobRepository(session).communicators("llama", "a1")
        assert (row.left, row.ranks[0]["coordinates"]) == (True, {"tp": 0})
        assert (group.size, group.kind) == (8, "")


async def test_the_audit_log_is_one_chain(store: Database, make_record: Make) -> None:
    for record in (make_record(1), make_record(2), make_record(3, resolved=True)):
        await apply(store, record)
    async with store.transaction() as session:
        entries = await AuditRepository(session).page(None, 100)
    assert len(entries) == 3
    assert find_break(entries[::-1]) is None


async def test_cleaning_drops_what_is_old(store: Database, make_record: Make) -> None:
    await write(store, replace(JOB, state=JobState.FINISHED, ended_unix_s=NOW - 100))
    node = NodeRecord("llama", "a1", "n0", "ag", ())
    async with store.transaction() as session:
        await write_nodes(session, [node], from_unix(NOW))
    await apply(store, make_record(job="other", evidence_bundle="aGk="))
    await apply(store, make_record(2, job="other", resolved=True))
    settings = IncidentsSettings()
    buried: list[str] = []

    async def bury(keys: Sequence[str]) -> None:
        buried.extend(keys)

    assert (await clean(store, from_unix(NOW + 60), settings, bury)).total == 0
    assert buried == []
    month = await clean(store, from_unix(NOW) + timedelta(days=31), settings, bury)
    assert (month.evidence, month.registry, month.incidents) == (1, 3, 0)  # node, attempt, job
    assert buried == ["llama", "llama:n0"]
    assert (await clean(store, from_unix(NOW) + timedelta(days=366), settings, bury)).incidents == 1


async def test_keys_that_another_attempt_uses_are_not_buried(store: Database) -> None:
    group = CommunicatorRecord("llama", "a1", f"{1:016x}", "world", "0-7", 0, 0, "gloo")
    for attempt, days, nodes in (("a1", 0, ("n0", "n1")), ("a2", 20, ("n1", "n2"))):
        at_unix_s = NOW + 86_400 * days
        await write(store, replace(JOB, attempt=attempt, started_unix_s=at_unix_s))
        async with store.transaction() as session:
            rows = [NodeRecord("llama", attempt, node, "ag", ()) for node in nodes]
            await write_nodes(session, rows, from_unix(at_unix_s))
    async with store.transaction() as session:
        await write_nodes(session, [group], from_unix(NOW))
    buried: list[list[str]] = []

    async def bury(keys: Sequence[str]) -> None:
        buried.append(list(keys))

    for days in (31, 51):
        await clean(store, from_unix(NOW) + timedelta(days=days), IncidentsSettings(), bury)
    assert buried == [["llama:n0", f"llama:{1:016x}"], ["llama", "llama:n1", "llama:n2"]]


async def test_what_could_not_be_buried_is_not_dropped(store: Database) -> None:
    await write(store, replace(JOB, state=JobState.FINISHED, ended_unix_s=NOW))

    async def away(keys: Sequence[str]) -> None:
        raise ConnectionError("no Kafka")

    with pytest.raises(ConnectionError):
        await clean(store, from_unix(NOW) + timedelta(days=31), IncidentsSettings(), away)
    async with store.transaction() as session:
        assert await JobRepository(session).get("llama") is not None
