"""The localizer on a real Kafka: verdict, resolution, restart, garbage on every topic, deaths."""

from typing import Any

from paceline.contracts.registry import HealthEvent, HealthKind
from paceline.contracts.topics import HEALTH, JOBS, SIGNALS
from paceline.contracts.verdicts import VerdictClass
from paceline.localizer import LocalizerApp, LocalizerSettings
from paceline.runtime.producer import Producer

WAIT_S = 45


async def test_hang_becomes_one_verdict_and_is_resolved(
    settings: LocalizerSettings, fake_job: Any, ear: Any, eventually: Any
) -> None:
    job = fake_job()
    await job.register()
    app = LocalizerApp(settings)
    await app.start()
    try:
        await job.stall()
        (found,) = await eventually(lambda: ear.of(job.name), WAIT_S)
        assert found.verdict.verdict_class is VerdictClass.H1
        assert [root.rank for root in found.verdict.roots] == list(job.injection.ranks)
        assert found.evidence_bundle
        await job.stall()
        await job.resume()
        first, last = await eventually(lambda: len(found := ear.of(job.name)) > 1 and found, WAIT_S)
        assert last.resolved
        assert last.episode == first.episode
        assert all(traceparent for _, traceparent in ear.verdicts)
        assert app.readiness().ready
    finally:
        await app.stop()


async def test_restart_in_a_hang_publishes_nothing_twice_and_resolves(
    settings: LocalizerSettings, fake_job: Any, ear: Any, eventually: Any
) -> None:
    job = fake_job()
    await job.register()
    first = LocalizerApp(settings)
    await first.start()
    await job.stall()
    await eventually(lambda: ear.of(job.name), WAIT_S)
    await first.stop()

    second = LocalizerApp(settings)
    await second.start()
    try:
        await job.stall()
        await job.resume()
        chain = await eventually(lambda: (c := ear.of(job.name)) and c[-1].resolved and c, WAIT_S)
        assert [record.resolved for record in chain] == [False, True]
        assert len({record.episode for record in chain}) == 1
    finally:
        await second.stop()


async def test_garbage_on_every_topic_becomes_dead_letters_and_stops_nothing(
    settings: LocalizerSettings, producer: Producer, fake_job: Any, ear: Any, eventually: Any
) -> None:
    job = fake_job("h2_op")
    app = LocalizerApp(settings)
    await app.start()
    try:
        garbage = (b"\x00" * 64, b"PLB1" + b"\xff" * 200, b'{"job": 1}', b"not json")
        for value in garbage:
            await producer.send(SIGNALS, job.name, value)
            for topic in (JOBS, HEALTH):
                await producer.send(topic, f"garbage-{len(value)}", value)
        await eventually(lambda: len(ear.dead) >= 3 * len(garbage), WAIT_S)
        await job.register()

        # Registry and signals come over different topics: the signal is repeated, as detectors do.
        async def heard() -> bool:
            await job.stall()
            return any(r.verdict.verdict_class is VerdictClass.H2 for r in ear.of(job.name))

        await eventually(heard, WAIT_S)
    finally:
        await app.stop()


async def test_death_without_a_signal(
    settings: LocalizerSettings, fake_job: Any, ear: Any, eventually: Any
) -> None:
    job = fake_job()
    await job.register()
    app = LocalizerApp(settings)
    await app.start()
    try:
        for rank, code in ((5, -9), (6, 1)):
            await job.report(
                HealthEvent(
                    f"{job.name}-{rank}", HealthKind.PROCESS_EXIT, "node0", "", "a1", rank, 1, 0.0, code
                )
            )
        (death,) = await eventually(lambda: ear.of(job.name), WAIT_S)
        assert death.verdict.verdict_class is VerdictClass.DEAD_PROCESS
        assert [root.rank for root in death.verdict.roots] == [5]
    finally:
        await app.stop()
