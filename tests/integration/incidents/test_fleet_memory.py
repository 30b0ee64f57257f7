"""Memory across jobs on real tables: what is written, replaced and taken back, and what it changes."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

from sqlalchemy import text

from paceline.analysis.history import EXEMPT_REASONS, SUSPICIOUS_CLASSES
from paceline.contracts.registry import JobRecord, JobState, NodeRecord, RankRecord
from paceline.contracts.verdicts import (
    ActionKind,
    Owner,
    Root,
    RootKind,
    SubReason,
    VerdictClass,
    VerdictRecord,
)
from paceline.incidents.decide import IncidentPolicy, Reason
from paceline.incidents.registry import write_job, write_nodes
from paceline.incidents.verdicts import VerdictContext, apply_verdict
from paceline.store import Database, migrate
from paceline.store.incident_changes import read_verdict
from paceline.store.repositories.fleet import FleetRepository, Suspicion
from paceline.store.repositories.incidents import IncidentFilter, IncidentRepository
from paceline.store.schema import downgrade
from paceline.store.times import from_unix

NOW = 1_767_323_045.0
Make = Callable[..., VerdictRecord]
CONTEXT = VerdictContext(IncidentPolicy(), "http://console", bundles_max=3)
SUSPICION = Suspicion(SUSPICIOUS_CLASSES, EXEMPT_REASONS)


async def register(store: Database, job: str, name: str, nodes: int = 1, torch: str = "2.13") -> None:
    record = JobRecord(
        job=job, attempt="a1", cluster="c", tenant="t", user="u", name=name, world_size=nodes, shards=1,
        state=JobState.RUNNING, id_source="declared", attempt_source="store", started_unix_s=NOW - 600,
        versions={"torch": torch, "python": "3.11"},
    )  # fmt: skip
    rows = [
        NodeRecord(job, "a1", f"n{at}", f"ag{at}", (RankRecord(at, 0, 100, 1, 0),)) for at in range(nodes)
    ]
    async with store.transaction() as session:
        await write_job(session, record, from_unix(NOW), "http://console")
        await write_nodes(session, rows, from_unix(NOW))


async def apply(store: Database, record: VerdictRecord, at_s: float = NOW) -> Reason:
    async with store.transaction() as session:
        return (await apply_verdict(session, record, from_unix(at_s), "", CONTEXT)).reason


def h3(record: VerdictRecord, *roots: Root) -> VerdictRecord:
    verdict = replace(
        record.verdict, verdict_class=VerdictClass.H3, sub_reason=SubReason.MISSING_EXIT, owner=Owner.GPU,
        action=replace(record.verdict.action, kind=ActionKind.COLLECT),
        roots=roots or record.verdict.roots,
    )  # fmt: skip
    return replace(record, verdict=verdict)


async def places(store: Database) -> list[tuple[str, int, str]]:
    async with store.transaction() as session:
        rows = await session.execute(text("SELECT node, gpu, kind FROM incident_places ORDER BY 1, 2"))
        return [(node, gpu, kind) for node, gpu, kind in rows]


async def test_a_node_that_was_the_cause_in_other_jobs_is_proposed_for_replacement(
    store: Database, make_record: Make
) -> None:
    await register(store, "llama", "Llama", nodes=64)
    for job in ("bert", "gpt"):
        await register(store, job, job.upper())
        assert await apply(store, h3(make_record(job=job))) is Reason.OPEN
    record = h3(make_record())
    assert await apply(store, record) is Reason.OPEN
    async with store.transaction() as session:
        (incident,) = await IncidentRepository(session).page(IncidentFilter(jobs=["llama"]), 10)
        verdict = read_verdict(incident.verdict)
        stored = await session.scalar(text("SELECT verdict->>'confidence' FROM verdicts WHERE job = 'llama'"))
    assert verdict.confidence == 0.95
    assert (verdict.action.kind, verdict.action.target) == (ActionKind.REPLACE_NODE, "n0")
    assert "2 other jobs" in verdict.action.reason
    assert stored == "0.9"  # as judged: the evidence gives the same verdict again
    assert (incident.program, incident.symptom) == ("u/Llama", "H3|missing_exit|all_reduce")
    assert incident.versions == "torch 2.13"


async def test_a_replay_a_revision_and_a_withdrawal_leave_one_truth(
    store: Database, make_record: Make
) -> None:
    await register(store, "llama", "Llama", nodes=2)
    first = h3(make_record())
    await apply(store, first)
    assert await places(store) == [("n0", 5, "rank")]
    assert await apply(store, first) is Reason.IGNORE_DUPLICATE
    link = Root(RootKind.LINK, rank=0, node="n0", peer_rank=1)
    assert await apply(store, h3(make_record(2), link)) is Reason.REVISE
    assert await places(store) == [("n0", -1, "link"), ("n1", 0, "link")]
    gone = make_record(3)
    nothing = replace(gone, verdict=replace(gone.verdict, verdict_class=VerdictClass.NONE, roots=()))
    assert await apply(store, nothing) is Reason.WITHDRAW
    assert await places(store) == []


async def test_old_incidents_software_and_the_same_job_do_not_count(
    store: Database, make_record: Make
) -> None:
    await apply(store, h3(make_record(job="old")), NOW - 40 * 86400)
    await apply(store, make_record(job="soft"))
    await apply(store, h3(make_record(job="llama", episode="epi_0")))
    since = from_unix(NOW) - timedelta(days=30)
    async with store.transaction() as session:
        fleet = FleetRepository(session)
        past = await fleet.past(["n0"], since, besides_job="llama")
        assert [item.job for item in past] == ["soft"]
        assert await fleet.totals(since, SUSPICION, besides_job="llama") == (0, 0)
        (totals,) = await fleet.node_totals(since, SUSPICION, 10)
    assert (totals.node, totals.incidents_count, totals.offences_count, totals.jobs_count) == ("n0", 2, 1, 1)


async def test_the_same_symptom_on_many_jobs_points_to_their_version(
    store: Database, make_record: Make
) -> None:
    for at in range(6):
        await register(store, f"other{at}", f"Other{at}", torch="2.12")
    for at in range(4):
        job = f"job{at}"
        await register(store, job, job)
        record = make_record(job=job)
        roots = (Root(RootKind.RANK, rank=5, node=f"n{at}"),)
        await apply(store, replace(record, verdict=replace(record.verdict, roots=roots)))
    async with store.transaction() as session:
        (incident,) = await IncidentRepository(session).page(IncidentFilter(jobs=["job3"]), 10)
        verdict = read_verdict(incident.verdict)
    assert verdict.evidence[-1].rule == "memory.version"
    assert "4 jobs on 4 nodes" in verdict.evidence[-1].statement
    assert "torch 2.13" in verdict.evidence[-1].statement
    assert verdict.action.kind is ActionKind.FIX_CODE


async def test_the_migration_remembers_what_was_there_before(
    store: Database, database: str, make_record: Make
) -> None:
    await register(store, "llama", "Llama")
    await apply(store, h3(make_record()))
    await store.stop()
    await downgrade(database, "0003")
    await migrate(database)
    again = Database(database)
    async with again.transaction() as session:
        (incident,) = await IncidentRepository(session).page(IncidentFilter(), 10)
        found = await FleetRepository(session).places(incident.id)
    await again.stop()
    assert (found, incident.program) == ([("n0", 5, "rank")], "u/Llama")
