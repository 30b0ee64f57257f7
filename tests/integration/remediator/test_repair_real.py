"""A real DDP job on gloo, repaired through the whole platform in auto mode; nothing shows in the result."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from paceline.lab.repair.crew import all_ended, job_environment
from paceline.lab.repair.registry import recoveries_of, standbys_ready, state_of
from paceline.remediator.app import RemediatorApp
from paceline.remediator.settings import RemediatorSettings
from paceline.runtime.app import App
from paceline.store import Database
from paceline.store.repositories.repair import RepairRepository
from paceline.trainer.testing import Fault, RepairJob
from paceline.trainer.testing.fixture import nursery, same_outcomes, uninterrupted
from tests.integration.remediator.conftest import has

__all__ = ["nursery", "same_outcomes", "uninterrupted"]
pytestmark = [pytest.mark.needs_torch, pytest.mark.timeout(300)]
PROGRAM = str(Path(__file__).parents[1] / "trainer" / "programs" / "repaired.py")
RANKS = 4
WAIT_S = 90.0  # the machine may be busy
Eventually = Callable[..., Any]


@pytest.fixture
def make_job(nursery: Any, folder: Path) -> Iterator[Callable[..., RepairJob]]:
    """Supervisors that speak with the agent of this test instead of a controller of their own."""
    jobs: list[RepairJob] = []

    def make(*faults: Fault, standbys: int = 1) -> RepairJob:
        environment = job_environment(folder / "agent.sock", f"test-{folder.name}")
        job = RepairJob([PROGRAM], RANKS, standbys, faults, environment, controller=False, nursery=nursery)
        jobs.append(job)
        job.start()
        return job

    yield make
    for job in jobs:
        job.close()


@pytest.mark.parametrize(
    "fault",
    [Fault("sigkill", 0, 5, "in_collective"), Fault("sigstop", 1, 5, "in_collective")],
    ids=["sigkill", "sigstop"],
)
async def test_a_lost_rank_is_replaced_through_the_topics(
    fault: Fault,
    settings: RemediatorSettings,
    platform: list[App],
    make_job: Callable[..., RepairJob],
    uninterrupted: Callable[..., Any],
    same_outcomes: Callable[..., None],
    store: Database,
    eventually: Eventually,
) -> None:
    remediator = RemediatorApp(settings)
    await remediator.start()
    job = make_job(fault)
    name = job.name
    try:
        await eventually(lambda: has(standbys_ready(store, name, RANKS + 1), 1), deadline_s=WAIT_S)
        job.open_gate()
        await eventually(lambda: has(state_of(store, name), "resumed"), deadline_s=WAIT_S)
        await eventually(lambda: all_ended(job), deadline_s=WAIT_S)
        same_outcomes(job.outcomes(), uninterrupted(PROGRAM, ranks=RANKS))
        (row,) = await recoveries_of(store, name)
        async with store.transaction() as session:
            phases = await RepairRepository(session).phases(row.job, row.attempt, [row.generation])
        assert {phase.phase for phase in phases} >= {"rendezvous", "first_step"}
        print(
            job.fault_times(), [(p.rank, p.phase, round(p.duration_ms, 1), p.at.timestamp()) for p in phases]
        )
    except BaseException:
        print(job.output())
        raise
    finally:
        await remediator.stop()
