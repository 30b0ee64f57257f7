"""A hang is a stall, a healthy job is not, and progress ends it."""

from typing import Any

from paceline.analysis.detection import DecisionKind, Reason

STALLED, CLEAR = DecisionKind.STALLED, DecisionKind.CLEAR


def test_healthy_job_decides_nothing(fake_job: Any, watch: Any) -> None:
    assert watch(fake_job(), healthy=60).decisions == []


def test_missing_rank_is_a_stall_soon_after_the_floor(fake_job: Any, watch: Any) -> None:
    job = fake_job()
    seen = watch(job)
    job.hang(7, missing=[3])
    assert seen.idle(4) == []
    found = seen.idle(3)
    assert found[0].kind is STALLED
    assert found[0].reason is Reason.NO_PROGRESS
    assert (found[0].communicator, found[0].round) == (7, job.member[7, 0].entered)


def test_stall_is_published_again_and_cleared_after_two_calm_ticks(fake_job: Any, watch: Any) -> None:
    job = fake_job()
    seen = watch(job)
    job.hang(7, missing=[3])
    assert [d.kind for d in seen.idle(8)].count(STALLED) >= 2
    job.release(7)
    seen.decisions.clear()
    for _ in range(4):
        job.run(1.0)
        seen.tick()
    assert seen.kinds() == [CLEAR]
    assert seen.decisions[0].reason is Reason.PROGRESS


def test_second_stall_after_clear_is_a_new_episode(fake_job: Any, watch: Any) -> None:
    job = fake_job()
    seen = watch(job)
    rounds = []
    for _ in range(2):
        job.hang(7, missing=[3])
        rounds.append(next(d for d in seen.idle(8) if d.kind is STALLED).round)
        job.release(7)
        seen.healthy(4)
    assert rounds[0] < rounds[1]
    assert seen.kinds().count(CLEAR) == 2
