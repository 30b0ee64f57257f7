"""The detector on a real Kafka: hang, garbage, restart in the middle of a hang."""

from typing import Any

from paceline.contracts.batch import BatchKind, RowKind
from paceline.contracts.topics import FRAMES
from paceline.detector import DetectorApp

START_S, HANG_S = 60, 30


async def until_watched(app: Any, eventually: Any, job: Any) -> None:
    await eventually(
        lambda: any(key.job == job.job and h.tick_seq > 5 for key, h in app.core.held.items()), START_S
    )


async def test_hang_is_signalled_and_cleared(
    detector_settings: Any, fake_job: Any, agents: Any, ear: Any, eventually: Any
) -> None:
    job = fake_job()
    app = DetectorApp(detector_settings())
    await app.start()
    try:
        crew = agents(job)
        await until_watched(app, eventually, job)
        assert ear.of(job.job, BatchKind.STALLED) == []
        crew.moving = False
        job.hang(7, missing=[3])
        stalled = (await eventually(lambda: ear.of(job.job, BatchKind.STALLED), HANG_S))[0]
        assert sorted(stalled.table(RowKind.STATE)["rank"]) == list(range(8))
        job.release(7)
        crew.moving = True
        await eventually(lambda: ear.of(job.job, BatchKind.CLEAR), HANG_S)
        assert app.readiness().ready
    finally:
        await app.stop()


async def test_garbage_becomes_dead_letters_and_stops_nothing(
    detector_settings: Any, fake_job: Any, agents: Any, producer: Any, ear: Any, eventually: Any
) -> None:
    job = fake_job()
    app = DetectorApp(detector_settings())
    await app.start()
    try:
        crew = agents(job)
        await until_watched(app, eventually, job)
        for value in (b"", b"PLB1", b"\x00" * 64, b"PLB1" + b"\xff" * 200):
            await producer.send(FRAMES, f"{job.job}:0", value)
        await eventually(lambda: len(ear.dead) >= 4, HANG_S)
        crew.moving = False
        job.hang(7, missing=[3])
        await eventually(lambda: ear.of(job.job, BatchKind.STALLED), HANG_S)
    finally:
        await app.stop()


async def test_killed_in_a_hang_the_next_detector_goes_on_with_the_same_episode(
    detector_process: Any, detector_settings: Any, fake_job: Any, agents: Any, ear: Any, eventually: Any
) -> None:
    job = fake_job()
    first = detector_process("d1")
    crew = agents(job)
    await eventually(lambda: sum(tick.job == job.job for tick in ear.ticks) > 5, START_S)
    crew.moving = False
    job.hang(7, missing=[3])
    await eventually(lambda: ear.of(job.job, BatchKind.STALLED), HANG_S)
    await eventually(lambda: ear.stored_suspicion(job.job), HANG_S)
    first.kill()
    first.wait()
    heard = len(ear.batches)

    second = DetectorApp(detector_settings("d2"))
    await second.start()
    try:
        again = await eventually(
            lambda: [b for b in ear.batches[heard:] if b.job == job.job and b.node == "d2"], START_S
        )
        assert again[0].kind is BatchKind.STALLED
        assert again[0].seq > 1, "the sequence of signals goes on"
        job.release(7)
        crew.moving = True
        cleared = await eventually(lambda: ear.of(job.job, BatchKind.CLEAR), HANG_S)
        assert len({b.episode for b in [*ear.of(job.job, BatchKind.STALLED), *cleared]}) == 1
    finally:
        await second.stop()


async def test_two_detectors_share_jobs_and_one_takes_over_when_the_other_stops(
    detector_settings: Any, fake_job: Any, agents: Any, ear: Any, eventually: Any
) -> None:
    jobs = [fake_job() for _ in range(6)]
    apps = [DetectorApp(detector_settings(name)) for name in ("d1", "d2")]
    for app in apps:
        await app.start()
    try:
        crews = [agents(job) for job in jobs]

        def shared() -> Any:
            return {key.job for app in apps for key in app.core.held} >= {job.job for job in jobs}

        await eventually(shared, START_S)
        await apps[0].stop()
        for crew, job in zip(crews, jobs, strict=True):
            crew.moving = False
            job.hang(7, missing=[3])
        await eventually(lambda: all(ear.of(job.job, BatchKind.STALLED) for job in jobs), START_S)
        assert {key.job for key in apps[1].core.held} >= {job.job for job in jobs}
    finally:
        for app in apps:
            await app.stop()
