"""Repair in a browser: a proposal is read and approved on the incident page, and its phases come in.

The remediator's own decisions on a real PostgreSQL; supervisors are rows. Screenshots stay in
`.paceline/screens` to be looked at.
"""

import asyncio
import json
import os
import shutil
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlalchemy import text

from paceline.api.server import ApiApp
from paceline.api.settings import ApiSettings
from paceline.contracts.recovery import RecoveryPhase, Role, Support
from paceline.contracts.repair import MemberRecord, RecoveryReport, RepairCause, RepairMode, ReportKind
from paceline.incidents.decide import IncidentPolicy
from paceline.incidents.registry import write_job, write_nodes
from paceline.incidents.verdicts import VerdictContext, apply_verdict
from paceline.lab.platform import find_console
from paceline.localizer.core import LocalizerCore
from paceline.remediator.deciding import apply
from paceline.remediator.model import Event, Judged, Policy, ProcessExit, Reason, Step, Tick
from paceline.remediator.reading import event_of_report, member_values, phase_values
from paceline.remediator.writing import Context
from paceline.store import Database
from paceline.store.repositories.repair import RepairRepository
from paceline.store.settings import StoreSettings
from paceline.store.times import from_unix
from tests.unit.analysis.injections import inject
from tests.unit.analysis.simulated_job import Shape, SimulatedJob
from tests.unit.localizer.test_localizer_core import feed, register

ROOT = Path(__file__).parents[2]
SCREENS = ROOT / ".paceline" / "screens"
DRIVE = ROOT / "web" / "e2e" / "repair-incident.mjs"
CHROMIUM = os.environ.get("PACELINE_CHROMIUM", "/usr/bin/chromium")
TOKEN = "plt_a-token-of-this-test-only-0123456789"
RANKS = 16
MEASURED = {
    RecoveryPhase.DETECT: 41.0, RecoveryPhase.RENDEZVOUS: 83.0, RecoveryPhase.PARAMETERS: 22.0,
    RecoveryPhase.OPTIMIZER: 205.0, RecoveryPhase.RESUME: 4.2, RecoveryPhase.FIRST_STEP: 1310.0,
}  # fmt: skip

pytestmark = [
    pytest.mark.timeout(240),
    pytest.mark.skipif(not shutil.which(CHROMIUM), reason=f"{CHROMIUM} is not installed"),
]


def name_of(rank: int) -> str:
    """As a supervisor names itself: host, pid and the pid's start."""
    return f"gpu-{rank:04d}.rack-{rank // 4:02d}.cluster-a.example-{41000 + rank}-98765432{rank}"


class RepairedJob:
    """The rows of one job, and what happens to it, as the remediator sees it."""

    def __init__(self, store: Database, job: str, attempt: str, lost: int) -> None:
        self.store, self.job, self.attempt, self.lost = store, job, attempt, lost
        self.now_s = time.time()  # moves with events only: a slow machine misses no deadline of a phase
        self.context = Context(b"a key of the whole cluster", Policy(RepairMode.APPROVE), "http://console")

    def record(self, name: str, rank: int, *, ready: bool = True) -> MemberRecord:
        node, number = name.partition("-4")[0], rank if rank >= 0 else 100 + len(name)
        return MemberRecord(
            job=self.job, attempt=self.attempt, member=name, node=node,
            role=Role.MEMBER if rank >= 0 else Role.STANDBY, rank=rank, pid=9000 + number,
            child_pid=1000 + number, child_pid_start=3000 + number, generation=0, step=40,
            store=f"{node}:1", replica=f"{node}:2", failure_domain=node[9:16], ready=ready, world_size=RANKS,
            support=Support.VERIFIED, lease_s=0.0, left=False, at_unix_s=self.now_s,
        )  # fmt: skip

    async def supervise(self) -> None:
        records = [self.record(name_of(rank), rank) for rank in range(RANKS)]
        records += [self.record(name_of(90), -1), self.record(name_of(91), -1, ready=False)]
        async with self.store.transaction() as session:
            await RepairRepository(session).put_members(
                [member_values(each) | {"updated_at": from_unix(self.now_s)} for each in records]
            )

    async def happens(self, event: Event) -> Step:
        self.now_s += 0.01
        async with self.store.transaction() as session:
            return await apply(session, self.job, self.attempt, event, self.now_s, self.context, "")

    async def dies(self, incident: str) -> None:
        """The rank that is lost is killed, and the incident says so a moment later."""
        now = self.now_s
        await self.happens(ProcessExit("exit", now, self.lost, "", 1000 + self.lost, 3000 + self.lost, -9))
        words = f"rank {self.lost} was killed by signal 9"
        cause = RepairCause.PROCESS_EXIT
        step = await self.happens(Judged("judged", now, incident, cause, False, (self.lost,), (), words, now))
        assert step.reason is Reason.MERGED
        assert (await self.happens(Tick())).reason is Reason.NEEDS_APPROVAL

    async def recovers(self) -> None:
        """What was approved is done: every member reports its phases."""
        step = await self.happens(Tick())
        assert step.reason is Reason.REBUILD
        assert step.job.action is not None
        for phase, duration_ms in MEASURED.items():
            for seat in step.job.action.seats:
                joined = phase is RecoveryPhase.DETECT and seat.rank == self.lost
                if not joined:
                    last = await self.reports(seat.member, seat.rank, phase, duration_ms + seat.rank)
        assert last.reason is Reason.RESUMED

    async def reports(self, name: str, rank: int, phase: RecoveryPhase, duration_ms: float) -> Step:
        moved = 3_200_000 if phase is RecoveryPhase.OPTIMIZER and rank == self.lost else 0
        report = RecoveryReport(
            f"rep_{name}_{phase.value}", ReportKind.PHASE, name.partition("-4")[0], self.job, self.attempt,
            name, rank, 1, self.now_s, phase=phase, duration_ms=duration_ms, step=41, replayed=1,
            bytes=moved,
        )  # fmt: skip
        async with self.store.transaction() as session:
            await RepairRepository(session).add_phases([phase_values(report)])
        event = event_of_report(report)
        return await self.happens(event)


@pytest.fixture
async def repaired(database: str) -> AsyncIterator[tuple[RepairedJob, str]]:
    """A job with an incident and a proposal that waits for a person."""
    store = Database(database)
    job = inject("h1", SimulatedJob(Shape(4, 4, 1), 3)).job
    core = LocalizerCore()
    register(core, job)
    record = next(iter(feed(core, job))).record
    at = from_unix(record.judged_unix_s + 1)
    async with store.transaction() as session:
        described, nodes, groups = job.registry()
        await write_job(session, described, at, "http://console")
        await write_nodes(session, [*nodes, *groups], at)
    context = VerdictContext(IncidentPolicy(), "http://console", bundles_max=4)
    async with store.transaction() as session:
        await apply_verdict(session, record, at, "", context)
    async with store.transaction() as session:
        incident = (await session.execute(text("SELECT id FROM incidents"))).scalars().one()
    lost = record.verdict.roots[0].rank
    assert lost is not None
    repaired = RepairedJob(store, record.job, record.attempt, lost)
    await repaired.supervise()
    await repaired.dies(incident)
    yield repaired, incident
    await store.stop()


async def test_a_proposal_is_approved_and_its_phases_come_in(
    repaired: tuple[RepairedJob, str], database: str
) -> None:
    job, incident = repaired
    console = find_console()
    assert console is not None, "the console is not built: make setup"
    SCREENS.mkdir(parents=True, exist_ok=True)
    settings = ApiSettings(
        database=StoreSettings(url=database), port=0, admin_token=TOKEN, console_path=console
    )
    app = ApiApp(settings)
    await app.start()
    try:
        browser = await asyncio.create_subprocess_exec(
            "node", str(DRIVE), app.url, TOKEN, str(SCREENS), incident, job.job,
            stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert browser.stdout is not None
        assert await browser.stdout.readline() == b'"approved"\n'
        async with job.store.transaction() as session:
            row = (await session.execute(text("SELECT status, note, version FROM repair_actions"))).one()
        assert (row.status, row.note) == ("approved", "seen, go ahead")
        await job.recovers()
        output, _ = await asyncio.wait_for(browser.communicate(), 180)
    finally:
        await app.stop()
    assert browser.returncode == 0
    seen = json.loads(output)
    assert "needs_approval" in seen["checks"]
    assert all(name in seen["places"] for name in (name_of(job.lost), name_of(90), f"rank {job.lost}"))
    assert seen["ended"].startswith("Resumed at step 41 on generation 1: 1 step run again")
    assert f"Detect · {RANKS - 1} of {RANKS - 1} members, slowest rank {RANKS - 1}" in seen["phases"]
    assert "3.2 MB" in seen["phases"]
    assert seen["sameLoad"] is True
    assert seen["problems"] == []
    assert seen["violations"] == []
    assert {screen["overflow"] for screen in seen["screens"]} == {0}
