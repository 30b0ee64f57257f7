"""Faults on faults, through the topics: supervisors at an agent's socket, real Kafka, real PostgreSQL."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from paceline.contracts.commands import Command, sign
from paceline.contracts.events import EventType
from paceline.contracts.ids import new_id
from paceline.contracts.recovery import OrderOutcome
from paceline.contracts.schemas import dump_json, load_json
from paceline.contracts.topics import COMMANDS
from paceline.remediator.app import RemediatorApp
from paceline.remediator.settings import RemediatorSettings
from paceline.runtime.cloud_events import EventHeaders, encode_headers
from paceline.runtime.producer import Producer
from paceline.store import Database
from paceline.store.models.incident import Incident
from paceline.store.models.repair import Recovery
from paceline.store.repositories.repair import RepairRepository
from tests.integration.remediator.conftest import KEY, NODE, FakeSupervisor, has, registered, state_of
from tests.integration.remediator.test_repair_incidents import add_incident

Eventually = Callable[..., Any]
WAIT_S = 60.0  # the machine may be busy
pytestmark = pytest.mark.timeout(240)


@pytest.fixture
async def full(
    crew: list[FakeSupervisor],
    settings: RemediatorSettings,
    folder: Path,
    store: Database,
    eventually: Eventually,
) -> AsyncIterator[list[FakeSupervisor]]:
    """m0, m1, m2 and two standbys, all of them registered with two remediators that run."""
    spare = FakeSupervisor(folder, crew[0].hello.job, "s1", -1, 4)
    await spare.start()
    remediators = [RemediatorApp(settings) for _ in range(2)]
    for remediator in remediators:
        await remediator.start()
    await eventually(lambda: has(registered(store, spare.hello.job), 5), deadline_s=WAIT_S)
    yield [*crew, spare]
    for remediator in remediators:
        await remediator.stop()
    await spare.stop()


async def recoveries(store: Database, job: str) -> list[Recovery]:
    """The oldest first."""
    async with store.transaction() as session:
        rows = await RepairRepository(session).recoveries([job], [], None, 10)
    return sorted(rows, key=lambda row: row.generation)


def seated(row: Recovery) -> list[str]:
    return [seat["member"] for seat in row.seats]


async def severity(store: Database) -> str:
    async with store.transaction() as session:
        found = await session.get(Incident, "inc_1")
    return "" if found is None else found.severity


async def standbys(store: Database, job: str) -> int:
    async with store.transaction() as session:
        return await RepairRepository(session).standbys_ready(job, "a1")


@pytest.mark.parametrize("lost", ["standbys", "state"])
async def test_what_cannot_be_repaired_is_given_up_and_somebody_is_called(
    full: list[FakeSupervisor], store: Database, eventually: Eventually, lost: str
) -> None:
    """No standby, or a rank and the neighbour that had its copy: whoever joins finds none."""
    job = full[0].hello.job
    await add_incident(store, job=job)
    if lost == "standbys":
        for standby in full[3:]:
            await standby.stop()
        await eventually(lambda: has(standbys(store, job), 0), deadline_s=WAIT_S)
    full[3].outcome = OrderOutcome.LOST
    await full[1].die()
    kinds = ["fallback"] if lost == "standbys" else ["rebuild", "fallback"]
    await eventually(lambda: [each["kind"] for each in full[0].orders] == kinds, deadline_s=WAIT_S)
    await eventually(lambda: has(severity(store), "critical"), deadline_s=WAIT_S)
    assert full[0].orders[-1]["arguments"]["reason"] == ("no_standby" if lost == "standbys" else "state_lost")
    assert await state_of(store, job) == "fallback"


async def test_a_standby_that_dies_during_the_swap_is_replaced_by_the_next(
    full: list[FakeSupervisor], store: Database, eventually: Eventually
) -> None:
    job = full[0].hello.job
    for supervisor in full:
        supervisor.mute = True
    await full[1].die()
    await eventually(lambda: bool(full[3].orders and full[0].orders), deadline_s=WAIT_S)
    for supervisor in (full[0], full[2], full[4]):
        supervisor.mute = False
    await full[3].die()
    await eventually(lambda: has(state_of(store, job), "resumed"), deadline_s=WAIT_S)
    first, second = await recoveries(store, job)
    assert (seated(first), first.reason) == (["m0", "s0", "m2"], "superseded")
    assert (seated(second), second.state) == (["m0", "s1", "m2"], "resumed")


async def test_of_two_faults_at_one_instant_one_recovery_is_made_by_two_services(
    full: list[FakeSupervisor], store: Database, eventually: Eventually
) -> None:
    job = full[0].hello.job
    await asyncio.gather(full[1].die(), full[2].die())
    await eventually(lambda: has(state_of(store, job), "resumed"), deadline_s=WAIT_S)
    rows = await recoveries(store, job)
    assert sorted(seated(rows[-1])) == ["m0", "s0", "s1"]
    assert [row.state for row in rows].count("resumed") == 1
    for earlier, later in itertools.pairwise(rows):
        assert earlier.ended_at is not None
        assert earlier.ended_at <= later.started_at, "one at a time"
    begun = [(each["kind"], each["generation"]) for each in full[0].orders]
    assert begun == [("rebuild", row.generation) for row in rows]


async def test_a_stale_command_is_refused_and_changes_nothing(
    full: list[FakeSupervisor], settings: RemediatorSettings, store: Database, eventually: Eventually
) -> None:
    job = full[0].hello.job
    for number, name in enumerate((1, 2)):
        await full[name].die()
        await eventually(lambda number=number: resumed(store, job, number + 1), deadline_s=WAIT_S)
    before = await recoveries(store, job)
    async with store.transaction() as session:
        query = text("SELECT payload FROM outbox WHERE topic <> '' AND job = :job ORDER BY sequence LIMIT 1")
        old = load_json(Command, (await session.execute(query, {"job": job})).scalar_one())
    assert old.generation == 1
    members = [full[0], full[3], full[4]]  # of the running generation; the agent refuses for them
    ordered = [len(each.orders) for each in members]
    producer = Producer(settings.kafka, "test")
    await producer.start()
    # The record itself, and one that whoever has the key might write: a leader that was cut off.
    for command in (old, sign(replace(old, id=new_id("cmd")), KEY.encode())):
        headers = EventHeaders(command.id, EventType.COMMAND.value, "test")
        await producer.send(COMMANDS, NODE, dump_json(command), headers=encode_headers(headers))
    await producer.stop()
    told = {"m0", "m2", "s0"}  # of both generations; they may answer in one poll
    await eventually(lambda: has(refusals(store, job), told), deadline_s=WAIT_S)
    assert [len(each.orders) for each in members] == ordered
    after = await recoveries(store, job)
    assert [(row.generation, row.state) for row in after] == [(row.generation, row.state) for row in before]
    assert await state_of(store, job) == "resumed"


async def resumed(store: Database, job: str, count: int) -> bool:
    rows = await recoveries(store, job)
    return [row.state for row in rows].count("resumed") == count


async def refusals(store: Database, job: str) -> set[str]:
    async with store.transaction() as session:
        rows = await RepairRepository(session).phases(job, "a1", [1, 2])
    return {row.member for row in rows if row.outcome == "refused"}
