"""Which events of the kernel's log the job can have failed by."""

import pytest

from paceline.analysis.diagnosis.case import Case
from paceline.analysis.diagnosis.rules.devices import causes
from paceline.analysis.facts import (
    Clock,
    DeviceEvent,
    Fact,
    Group,
    Membership,
    Origin,
    ProgressSeen,
    Speaker,
    Work,
    WorkTimeout,
)

HANG_S = 1_000_000.0
GPU = "0000:c3:00"


def event(at_s: float | None, code: int = 79, gpu: str = GPU) -> DeviceEvent:
    clock = Clock.NONE if at_s is None else Clock.UNIX
    return DeviceEvent(
        origin=Origin("kern.log", 1), speaker=Speaker(host="n1", gpu=gpu), time_s=at_s, clock=clock, code=code
    )


def timeout(at_s: float) -> WorkTimeout:
    return WorkTimeout(
        origin=Origin("rank0.log", 9), speaker=Speaker(rank=0, host="n1"), time_s=at_s, clock=Clock.UNIX,
        group=Group("0"), work=Work("all_reduce", 7), ran_ms=600_000, timeout_ms=600_000,
    )  # fmt: skip


def step(at_s: float) -> ProgressSeen:
    return ProgressSeen(origin=Origin("rank0.log", 1), time_s=at_s, clock=Clock.UNIX, done=1)


@pytest.mark.parametrize(
    ("at_s", "is_cause"),
    [
        (HANG_S - 600.0, True),  # when the hang began
        (HANG_S + 30.0, True),  # clocks of two hosts differ by less
        (HANG_S + 1500.0, False),  # long after everybody had given up
        (HANG_S + 7230.0, True),  # two hours: the logs are of two time zones
        (HANG_S + 9000.0, False),
        (None, True),
    ],
)
def test_an_event_after_the_complaint_is_no_cause(at_s: float | None, is_cause: bool) -> None:
    facts: list[Fact] = [timeout(HANG_S), event(at_s)]
    assert bool(causes(Case(facts))) == is_cause


@pytest.mark.parametrize(
    ("last_step_s", "is_cause"),
    [(20.0, True), (2000.0, False), (3650.0, True), (16_300.0, False)],
)
def test_an_event_that_steps_came_after_is_no_cause(last_step_s: float, is_cause: bool) -> None:
    facts: list[Fact] = [event(0.0), step(1.0), step(last_step_s), timeout(last_step_s + 610.0)]
    assert bool(causes(Case(facts))) == is_cause


@pytest.mark.parametrize(("gpu", "is_cause"), [(GPU, True), ("0000:df:00", False)])
def test_a_gpu_that_no_rank_uses_is_no_cause(gpu: str, is_cause: bool) -> None:
    member = Membership(
        origin=Origin("nccl.log", 1), speaker=Speaker(host="n1", pid=7, gpu=GPU), group=Group("0x1", size=1),
        rank_in_group=0, complete=True,
    )  # fmt: skip
    assert bool(causes(Case([member, timeout(HANG_S), event(HANG_S - 600.0, gpu=gpu)]))) == is_cause


def test_what_follows_is_no_cause() -> None:
    facts: list[Fact] = [event(1.0, code=45), event(2.0, code=43), timeout(HANG_S)]
    assert causes(Case(facts)) == []
