"""Findings about scaling from Kafka to rows: nothing else happens, and the table stays bounded."""

from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import func, select

from paceline.contracts.events import EventType
from paceline.contracts.ids import derived_id
from paceline.contracts.scaling import ScalingFinding, ScalingMode, ScalingRecord
from paceline.contracts.schemas import ContractError
from paceline.contracts.topics import DEAD_LETTERS, FINDINGS
from paceline.incidents.app import IncidentsApp
from paceline.incidents.retention import clean
from paceline.incidents.scaling import write_window
from paceline.incidents.settings import IncidentsSettings
from paceline.runtime.consumer import Consumer
from paceline.runtime.options import ConsumerOptions, Start
from paceline.runtime.producer import Producer
from paceline.runtime.record import Record
from paceline.runtime.settings import KafkaSettings
from paceline.store import Database
from paceline.store.models.incident import Incident
from paceline.store.repositories.jobs import JobRepository
from paceline.store.repositories.scaling import ScalingRepository
from paceline.store.settings import StoreSettings
from paceline.store.times import from_unix

NOW = 1_767_323_045.0
WAIT_S = 60.0
MANY_INPUTS = ScalingFinding(
    ScalingMode.LOCALITY_VARIANCE, "slower", 0.06, {str(number): "1" for number in range(100)}
)


def make_window(number: int = 1, job: str = "llama", **changes: object) -> ScalingRecord:
    finding = ScalingFinding(
        ScalingMode.LOCALITY_VARIANCE, "2 ranks are slower", 0.06, {"stable": "0.9", "a": "1"}, (2, 3), "node"
    )
    record = ScalingRecord(
        derived_id("scal", job, number), job, "a1", number * 60, number * 60 + 59, 60, 8, 8, 1.25,
        (0.02, 0.11), (finding,), "", NOW + 60 * number,
    )  # fmt: skip
    return replace(record, **changes)  # type: ignore[arg-type]


async def test_a_window_becomes_a_row_and_no_incident(
    database: str, kafka_bootstrap: str, store: Database, request: pytest.FixtureRequest, eventually: object
) -> None:
    job = f"job-{request.node.name}"
    kafka = KafkaSettings(bootstrap=kafka_bootstrap, group_prefix=job, send_timeout_s=60.0)
    settings = IncidentsSettings(kafka=kafka, database=StoreSettings(url=database))
    letters: list[Record] = []

    async def bury(records: list[Record]) -> None:
        letters.extend(record for record in records if record.header("paceline_key") == job)

    ear = Consumer(
        kafka, [DEAD_LETTERS], None, bury, producer=None, name="dead",  # type: ignore[arg-type]
        options=ConsumerOptions(start=Start.LATEST, poll_s=0.1),
    )  # fmt: skip
    producer, app = Producer(kafka, "test"), IncidentsApp(settings)
    for each in (ear, producer, app):
        await each.start()
    await ear.caught_up.wait()  # it hears only what comes from then on

    async def stored() -> list[int]:
        async with store.transaction() as session:
            rows = await ScalingRepository(session).newest(job, "a1", 10)
            return [row.first_step for row in rows]

    async def send(record: ScalingRecord) -> None:
        await producer.send_event(FINDINGS, job, EventType.SCALING, record, event_id=record.id)

    try:
        await send(make_window(1, job))
        await send(make_window(1, job))
        await send(make_window(3, job, step_s=float("inf")))
        await send(make_window(2, job))
        await eventually(lambda: stored(), WAIT_S)  # type: ignore[operator]

        async def both() -> bool:
            return await stored() == [120, 60] and len(letters) == 1

        await eventually(both, WAIT_S)  # type: ignore[operator]
    finally:
        for each in (app, producer, ear):
            await each.stop()
    assert "step_s" in letters[0].header("paceline_reason")
    async with store.transaction() as session:
        assert await session.scalar(select(func.count()).where(Incident.job == job)) == 0


async def test_only_the_newest_windows_of_an_attempt_are_kept(store: Database) -> None:
    for number in (1, 4, 2, 3):
        async with store.transaction() as session:
            assert await write_window(session, make_window(number), windows_max=2)
    async with store.transaction() as session:
        assert not await write_window(session, make_window(4), windows_max=2)
        await write_window(session, make_window(9, job="other"), windows_max=2)
        kept = await ScalingRepository(session).newest("llama", "a1", 10)
        assert [row.first_step for row in kept] == [240, 180]
        assert kept[0].findings[0]["ranks"] == [2, 3]
        assert list(kept[0].findings[0]["inputs"]) == ["stable", "a"]  # in their order


async def test_windows_go_with_their_attempt_and_with_age(store: Database) -> None:
    async with store.transaction() as session:
        await write_window(session, make_window(1), 10)
        await write_window(session, make_window(1, job="nobody-registered"), 10)
        assert await JobRepository(session).delete_attempts([("llama", "a1")]) == 1
    dropped = await clean(store, from_unix(NOW) + timedelta(days=31), IncidentsSettings(), _no_bury)
    assert dropped.scaling == 1


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"job": "a\x00b"}, "job is"),
        ({"cv": (float("nan"),)}, "finite"),
        ({"cv": (0.1,) * 100}, "cv has 100 entries"),
        ({"iterations": -1}, "iterations is -1"),
        ({"judged_unix_s": 1e18}, "judged_unix_s"),
        ({"findings": (MANY_INPUTS,)}, "findings.inputs has 100 entries"),
        ({"findings": (replace(MANY_INPUTS, inputs={}, ranks=(1,) * 65),)}, "findings.ranks has 65 entries"),
    ],
)
async def test_what_cannot_be_stored_is_named(
    store: Database, changes: dict[str, object], words: str
) -> None:
    async with store.transaction() as session:
        with pytest.raises(ContractError, match=words):
            await write_window(session, make_window(**changes), 10)  # type: ignore[arg-type]


async def _no_bury(keys: object) -> None: ...
