"""One job id, two runs one after the other: real PostgreSQL."""

import json
from dataclasses import replace

import pytest

from paceline.contracts.recovery import RecoveryPhase
from paceline.contracts.repair import MemberRecord, RepairMode
from paceline.remediator.model import JobOver, ProcessExit, Reason, Step, Tick
from paceline.store import Database
from paceline.store.repositories.repair import RepairRepository
from tests.integration.remediator.test_repair_tables import NOW, Job, member

LATER = NOW + 300.0
PIDS = 40_000  # of the second run


def of_second(rank: int, **changes: object) -> MemberRecord:
    name = f"z{rank}" if rank >= 0 else "y0"
    pid = PIDS + rank + 1
    record = member(name if rank >= 0 else "s1", rank, f"n{rank + 1}", at_unix_s=LATER)
    return replace(record, member=name, child_pid=pid, child_pid_start=pid * 3, **changes)  # type: ignore[arg-type]


async def exit_of(job: Job, record: MemberRecord, code: int = -9) -> Step:
    event = ProcessExit(
        f"exit-{record.member}", job.now_s, record.rank, record.member, record.child_pid,
        record.child_pid_start, code, record.node,
    )  # fmt: skip
    await job.register(replace(record, child_pid=0, child_pid_start=0, at_unix_s=record.at_unix_s + 1))
    return await job.feed(event)


@pytest.fixture
async def job(store: Database) -> Job:
    """A run of three ranks that was repaired once, and in which all have ended since."""
    job = Job(store, RepairMode.AUTO)
    first = [member("m0", 0, "n0"), member("m1", 1, "n0"), member("m2", 2, "n1"), member("s0", -1, "n2")]
    await job.register(*first)
    assert (await job.kill(1)).reason is Reason.REBUILD
    for phase in (RecoveryPhase.RENDEZVOUS, RecoveryPhase.FIRST_STEP):
        for name in ("m0", "s0", "m2"):
            step = await job.report(name, phase)
    assert step.reason is Reason.RESUMED
    job.now_s = NOW + 200
    await job.register(*(replace(each, child_pid=0, left=True, at_unix_s=NOW + 200) for each in first))
    await job.feed(Tick())
    job.now_s = LATER
    return job


async def test_a_death_in_the_second_run_of_a_job_id_is_repaired(job: Job) -> None:
    before = len(await job.commands())
    for rank in (1, 0, 2, -1):  # they register one after the other
        await job.register(of_second(rank))
        await job.feed(Tick())
    assert (await exit_of(job, of_second(2))).reason is Reason.REBUILD
    orders = (await job.commands())[before:]
    assert {order.generation for order in orders} == {2}  # the first run had opened 1
    rows = json.loads(orders[0].arguments["members"])
    assert [row["member"] for row in rows] == ["z0", "z1", "y0"]


async def test_late_records_of_the_first_run_end_nothing_of_the_second(job: Job) -> None:
    await job.register(*(of_second(rank) for rank in (0, 1, 2, -1)))
    await job.feed(Tick())
    assert (await job.feed(JobOver("over", NOW + 210, True, "scancel"))).reason is Reason.STALE
    # As if rank 2 of the first run lived, told late; then a record of one that was never seen.
    await job.register(member("m2", 2, "n1", generation=1, at_unix_s=NOW + 201))
    await job.register(member("m9", 2, "n1", generation=1, at_unix_s=NOW + 201))
    assert (await job.feed(ProcessExit("late", job.now_s, 2, "m2", 1002, 3006, -9, "n1"))).reason in (
        Reason.UNKNOWN_MEMBER, Reason.OTHER_PROCESS,
    )  # fmt: skip
    assert (await exit_of(job, of_second(2))).reason is Reason.REBUILD
    async with job.store.transaction() as session:
        runs = {row.member: row.run for row in await RepairRepository(session).members("train", "a1")}
    assert runs == {"m0": 0, "m1": 0, "m2": 0, "s0": 0, "m9": -1, "y0": 1, "z0": 1, "z1": 1, "z2": 1}


async def test_after_a_run_that_ended_in_order_the_next_one_is_repaired_at_once(store: Database) -> None:
    job = Job(store, RepairMode.AUTO)
    first = [member("m0", 0, "n0"), member("m1", 1, "n0")]
    await job.register(*first, member("s0", -1, "n2"))
    for each in first:
        step = await exit_of(job, each, 0)
    assert step.job.over
    job.now_s = LATER
    await job.register(*(of_second(rank) for rank in (0, 1, -1)))
    assert (await exit_of(job, of_second(0))).reason is Reason.REBUILD
