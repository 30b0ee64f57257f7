"""A real DDP job on gloo, repaired through the whole platform in auto mode; nothing shows in the result."""

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from paceline.lab.repair.crew import all_ended, job_environment
from paceline.lab.repair.registry import recoveries_of, standbys_ready, state_of
from paceline.remediator.app import RemediatorApp
from paceline.remediator.settings import RemediatorSettings
from paceline.runtime.app import App
from paceline.store import Database
from paceline.store.models import RepairAction
from paceline.store.repositories.repair import RepairRepository
from paceline.trainer.testing import Fault, RepairJob
from paceline.trainer.testing.fixture import nursery, same_outcomes, uninterrupted
from tests.integration.remediator.conftest import has

__all__ = ["nursery", "same_outcomes", "uninterrupted"]
pytestmark = [pytest.mark.needs_torch, pytest.mark.timeout(300)]
PROGRAM = str(Path(__file__).parents[1] / "trainer" / "programs" / "repaired.py")
RANKS = 4
WAIT_S = 90.0  # the machine may be busy
# Of a job that shall not end before a planned replacement has come through the topics.
STEPS, STEP_S = 60, 0.3
Eventually = Callable[..., Any]


@pytest.fixture
def make_job(nursery: Any, folder: Path) -> Iterator[Callable[..., RepairJob]]:
    """Supervisors that speak with the agent of this test instead of a controller of their own."""
    jobs: list[RepairJob] = []

    def make(*faults: Fault, standbys: int = 1, words: tuple[str, ...] = ()) -> RepairJob:
        environment = job_environment(folder / "agent.sock", f"test-{folder.name}")
        job = RepairJob(
            [PROGRAM, *words], RANKS, standbys, faults, environment, controller=False, nursery=nursery
        )
        jobs.append(job)
        job.start()
        return job

    yield make
    for job in jobs:
        job.close()


@pytest.fixture
async def begin(
    settings: RemediatorSettings,
    platform: list[App],
    make_job: Callable[..., RepairJob],
    store: Database,
    eventually: Eventually,
) -> AsyncIterator[Callable[..., Awaitable[RepairJob]]]:
    """Starts a job beside a remediator in auto mode. Its ranks train once all of them are registered and what
    other jobs have left in the topics is read: a job that trains does not wait for that."""
    remediator = RemediatorApp(settings)
    await remediator.start()
    jobs: list[RepairJob] = []

    async def start(*faults: Fault, standbys: int = 1, **options: Any) -> RepairJob:
        job = make_job(*faults, standbys=standbys, **options)
        jobs.append(job)
        known = RANKS + standbys
        await eventually(lambda: has(standbys_ready(store, job.name, known), standbys), deadline_s=WAIT_S)
        since_s = time.time()
        await eventually(lambda: remediator.heard_s >= since_s, deadline_s=WAIT_S)
        job.open_gate()
        return job

    yield start
    await remediator.stop()
    for job in jobs:
        print(job.output())


@pytest.mark.parametrize(
    "fault",
    [Fault("sigkill", 0, 5, "in_collective"), Fault("sigstop", 1, 5, "in_collective")],
    ids=["sigkill", "sigstop"],
)
async def test_a_lost_rank_is_replaced_through_the_topics(
    fault: Fault,
    begin: Callable[..., Awaitable[RepairJob]],
    uninterrupted: Callable[..., Any],
    same_outcomes: Callable[..., None],
    store: Database,
    eventually: Eventually,
) -> None:
    job = await begin(fault)
    await eventually(lambda: has(state_of(store, job.name), "resumed"), deadline_s=WAIT_S)
    await eventually(lambda: all_ended(job), deadline_s=WAIT_S)
    same_outcomes(job.outcomes(), uninterrupted(PROGRAM, ranks=RANKS))
    (row,) = await recoveries_of(store, job.name)
    async with store.transaction() as session:
        phases = await RepairRepository(session).phases(row.job, row.attempt, [row.generation])
    assert {phase.phase for phase in phases} >= {"rendezvous", "first_step"}
    print(job.fault_times(), [(p.rank, p.phase, round(p.duration_ms, 1), p.at.timestamp()) for p in phases])


async def test_a_corrupt_copy_is_never_loaded(
    begin: Callable[..., Awaitable[RepairJob]],
    uninterrupted: Callable[..., Any],
    same_outcomes: Callable[..., None],
    store: Database,
    eventually: Eventually,
) -> None:
    """Either the copy of the step after it has arrived, or the job is given up and says why."""
    job = await begin(Fault("corrupt_replica", 3, 5), Fault("sigkill", 2, 5))
    await eventually(lambda: all_ended(job), deadline_s=WAIT_S)
    await eventually(lambda: is_over(store, job.name), deadline_s=WAIT_S)
    (row,) = await recoveries_of(store, job.name)
    if row.state == "resumed":
        same_outcomes(job.outcomes(), uninterrupted(PROGRAM, ranks=RANKS))
    else:
        assert (row.state, row.reason) == ("fallback", "state_lost")


async def test_a_living_rank_is_replaced_on_request_and_no_step_is_replayed(
    begin: Callable[..., Awaitable[RepairJob]],
    uninterrupted: Callable[..., Any],
    same_outcomes: Callable[..., None],
    store: Database,
    eventually: Eventually,
) -> None:
    job = await begin(words=("--steps", str(STEPS), "--pause", str(STEP_S)))
    await eventually(lambda: has(furthest_step(store, job.name), True), deadline_s=WAIT_S)
    wanted = await ask_for(store, job.name, rank=1)
    await eventually(lambda: has(status_of(store, wanted), "succeeded"), deadline_s=WAIT_S)
    await eventually(lambda: all_ended(job), deadline_s=WAIT_S)
    whole = uninterrupted(PROGRAM, "--steps", str(STEPS), ranks=RANKS)
    same_outcomes(job.outcomes(), whole, replayed_max=0)
    async with store.transaction() as session:
        row = await RepairRepository(session).action(wanted)
        assert row is not None
        phases = await RepairRepository(session).phases(job.name, row.attempt, [row.generation])
    assert (row.replayed, row.reason) == (0, "resumed")
    steps = [phase for phase in phases if phase.phase == "first_step"]
    assert sorted(phase.rank for phase in steps) == list(range(RANKS))


async def is_over(store: Database, job: str) -> bool:
    return all(row.ended_at is not None for row in await recoveries_of(store, job))


async def furthest_step(store: Database, job: str) -> bool:
    async with store.transaction() as session:
        rows = await RepairRepository(session).members_page([job], [], None, 100)
    return max((row.step for row in rows), default=-1) >= 2


async def ask_for(store: Database, job: str, rank: int) -> str:
    """A planned replacement that a person has asked for and approved, as the API writes it."""
    now = datetime.now(UTC)
    async with store.transaction() as session:
        repairs = RepairRepository(session)
        (attempt,) = {row.attempt for row in await repairs.members_page([job], [], None, 100)}
        row = RepairAction(
            id=f"act-{job}", job=job, attempt=attempt, incident_id=None, kind="planned_swap",
            cause="requested",
            status="approved", mode="approve", reason="proposed", message="wanted elsewhere", ranks=str(rank),
            leavers=[], joiners=[], generation=0, step=-1, replayed=0, requested_by="test", decided_by="test",
            note="", cancel_requested=False, created_at=now, expires_at=now + timedelta(seconds=900),
            decided_at=now, dispatched_at=None, ended_at=None, updated_at=now, version=1,
        )  # fmt: skip
        repairs.add(row)
        await session.flush()
        await repairs.look_at(job, attempt, now)
    return f"act-{job}"


async def status_of(store: Database, action: str) -> str:
    async with store.transaction() as session:
        row = await RepairRepository(session).action(action)
    return "" if row is None else row.status
