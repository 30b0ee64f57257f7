"""The loop through the topics: supervisors at an agent's socket, real Kafka, real PostgreSQL."""

from collections.abc import Callable
from typing import Any

import pytest

from paceline.contracts.events import EventType
from paceline.contracts.topics import COMMAND_RESULTS, DEAD_LETTERS, HEALTH
from paceline.lab.kafka import LocalKafka
from paceline.lab.postgres import LocalPostgres
from paceline.remediator.app import RemediatorApp
from paceline.remediator.settings import RemediatorSettings
from paceline.runtime.clock import SystemClock
from paceline.runtime.consumer import Consumer
from paceline.runtime.options import ConsumerOptions, Start
from paceline.runtime.producer import Producer
from paceline.runtime.record import Record
from paceline.store import Database
from paceline.store.repositories.repair import RepairRepository
from tests.integration.remediator.conftest import FakeSupervisor, has, registered, state_of

Eventually = Callable[..., Any]
WAIT_S = 60.0  # the machine may be busy
pytestmark = pytest.mark.timeout(240)


async def test_a_kill_is_repaired_through_the_topics(
    settings: RemediatorSettings, crew: list[FakeSupervisor], store: Database, eventually: Eventually
) -> None:
    job = crew[0].hello.job
    remediator = RemediatorApp(settings)
    await remediator.start()
    try:
        await eventually(lambda: has(registered(store, job), 4), deadline_s=WAIT_S)
        began_ns = SystemClock().monotonic_ns()
        await crew[1].die()
        await eventually(lambda: has(state_of(store, job), "resumed"), deadline_s=WAIT_S)
        ended_ns = SystemClock().monotonic_ns()
        print(f"kill to order {(crew[3].ordered_ns - began_ns) / 1e6:.0f} ms")
        print(f"kill to resumed {(ended_ns - began_ns) / 1e6:.0f} ms")
        assert [order["kind"] for order in crew[3].orders] == ["rebuild"]
        assert "m1" not in crew[1].orders[0]["arguments"]["members"]
        async with store.transaction() as session:
            repairs = RepairRepository(session)
            (row,) = await repairs.recoveries([job], [], None, 10)
            phases = await repairs.phases(job, "a1", [row.generation])
        assert (row.state, row.step, row.replayed) == ("resumed", 41, 1)
        told = {(phase.member, phase.phase) for phase in phases if phase.kind == "phase"}
        assert {("m0", "rendezvous"), ("s0", "first_step"), ("m2", "resume")} <= told
    finally:
        await remediator.stop()


async def leave_in_a_swap(
    settings: RemediatorSettings,
    crew: list[FakeSupervisor],
    store: Database,
    eventually: Eventually,
    dead: int,
) -> str:
    """A remediator orders a rebuilding without `dead`, which nobody carries out yet, and is gone."""
    job = crew[0].hello.job
    remediator = RemediatorApp(settings)
    await remediator.start()
    await eventually(lambda: has(registered(store, job), 4), deadline_s=WAIT_S)
    for supervisor in crew:
        supervisor.mute = True
    await crew[dead].die()
    await eventually(lambda: bool(crew[3].orders), deadline_s=WAIT_S)
    await remediator.stop()
    assert await state_of(store, job) == "rebuilding"
    return job


async def test_a_remediator_that_dies_during_a_swap_is_followed_by_one_that_ends_it(
    settings: RemediatorSettings, crew: list[FakeSupervisor], store: Database, eventually: Eventually
) -> None:
    job = await leave_in_a_swap(settings, crew, store, eventually, dead=2)
    for supervisor in crew:  # what nobody hears now waits in the topic
        supervisor.mute = False
    for supervisor in (crew[0], crew[1], crew[3]):
        await supervisor.obey(supervisor.orders[-1])
    second = RemediatorApp(settings)
    await second.start()
    try:
        await eventually(lambda: has(state_of(store, job), "resumed"), deadline_s=WAIT_S)
    finally:
        await second.stop()
    assert [order["kind"] for order in crew[0].orders] == ["rebuild"], "nothing was ordered twice"


class Later(SystemClock):
    """The time of a service that comes back after a while."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def unix_s(self) -> float:
        return super().unix_s() + self._seconds


async def test_what_happened_while_no_remediator_ran_is_read_before_anything_is_late(
    settings: RemediatorSettings, crew: list[FakeSupervisor], store: Database, eventually: Eventually
) -> None:
    job = await leave_in_a_swap(settings, crew, store, eventually, dead=1)
    for supervisor in (crew[0], crew[2], crew[3]):  # the repair succeeds, and the job comes to its end
        supervisor.mute = False
        await supervisor.obey(supervisor.orders[-1])
        await supervisor.die(0)
    second = RemediatorApp(settings, Later(60.0))
    await second.start()
    try:
        await eventually(lambda: crew[0].orders[-1]["kind"] == "release", deadline_s=WAIT_S)
    finally:
        await second.stop()
    assert [order["kind"] for order in crew[0].orders] == ["rebuild", "release"]
    async with store.transaction() as session:
        (row,) = await RepairRepository(session).recoveries([job], [], None, 10)
    assert row.state == "resumed"


async def test_what_cannot_be_read_goes_to_the_dead_letters_and_stops_nothing(
    settings: RemediatorSettings, crew: list[FakeSupervisor], store: Database, eventually: Eventually
) -> None:
    job = crew[0].hello.job
    kept: list[Record] = []

    async def keep(records: Any) -> None:
        kept.extend(record for record in records if record.key_text in (HEALTH.name, COMMAND_RESULTS.name))

    reader = Consumer(
        settings.kafka, [DEAD_LETTERS], None, keep, producer=None, name="letters",
        options=ConsumerOptions(start=Start.LATEST),
    )  # fmt: skip
    await reader.start()
    await eventually(lambda: reader.caught_up.is_set(), deadline_s=WAIT_S)
    producer = Producer(settings.kafka, "test")
    await producer.start()
    remediator = RemediatorApp(settings)
    await remediator.start()
    try:
        await producer.send(HEALTH, job, b"\xff")
        headers = [("ce_specversion", b"1.0"), ("ce_id", b"x"), ("ce_source", b"s")]
        headers.append(("ce_type", EventType.RECOVERY_REPORT.value.encode()))
        await producer.send(COMMAND_RESULTS, job, b"{}", headers=headers)
        await eventually(lambda: len(kept) >= 2, deadline_s=WAIT_S)
        await eventually(lambda: has(registered(store, job), 4), deadline_s=WAIT_S)
        await crew[1].die()
        await eventually(lambda: has(state_of(store, job), "resumed"), deadline_s=WAIT_S)
    finally:
        await remediator.stop()
        await producer.stop()
        await reader.stop()


@pytest.mark.parametrize("away", ["kafka", "postgres"])
async def test_what_is_away_during_a_swap_delays_its_end_and_loses_nothing(
    away: str,
    settings: RemediatorSettings,
    crew: list[FakeSupervisor],
    store: Database,
    eventually: Eventually,
    request: pytest.FixtureRequest,
) -> None:
    job = crew[0].hello.job
    server: LocalKafka | LocalPostgres = request.getfixturevalue(f"{away}_server")
    remediator = RemediatorApp(settings)
    await remediator.start()
    try:
        await eventually(lambda: has(registered(store, job), 4), deadline_s=WAIT_S)
        for supervisor in crew:
            supervisor.mute = True
        await crew[1].die()
        await eventually(lambda: bool(crew[3].orders), deadline_s=WAIT_S)
        server.stop()
        for supervisor in (crew[0], crew[2], crew[3]):
            supervisor.mute = False
            await supervisor.obey(supervisor.orders[-1])
        server.start()
        await eventually(lambda: has(state_of(store, job), "resumed"), deadline_s=2 * WAIT_S)
        async with store.transaction() as session:
            rows = await RepairRepository(session).recoveries([job], [], None, 10)
        assert [row.generation for row in rows if row.state == "resumed"] == [
            max(row.generation for row in rows)
        ]
    finally:
        await remediator.stop()
