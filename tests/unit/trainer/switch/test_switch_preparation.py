"""What is prepared on a side thread: states that are final, and an end to waiting."""

import threading

import pytest

from paceline.trainer.switch.agree import Preparing
from paceline.trainer.switch.preparation import Preparation


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def settled(preparation: Preparation[str]) -> Preparing:
    for thread in threading.enumerate():
        if thread.name == "paceline-prepare":
            thread.join(10)
    return preparation.state()


def test_it_is_idle_then_building_then_ready() -> None:
    gate = threading.Event()
    preparation = Preparation(lambda: "groups" if gate.wait(10) else "", 60)
    assert preparation.state() is Preparing.IDLE
    preparation.start()
    assert preparation.state() is Preparing.BUILDING
    with pytest.raises(ValueError, match="building"):
        preparation.result()
    gate.set()
    assert settled(preparation) is Preparing.READY
    assert preparation.result() == "groups"


def test_an_error_stays_off_the_training_thread() -> None:
    def fail() -> str:
        raise RuntimeError("nobody came")

    preparation = Preparation(fail, 60)
    preparation.start()
    assert settled(preparation) is Preparing.FAILED
    assert "nobody came" in str(preparation.error)


def test_a_stuck_thread_counts_as_failed_and_its_late_result_as_nothing() -> None:
    gate, clock = threading.Event(), Clock()
    preparation = Preparation(lambda: "late" if gate.wait(10) else "", 5, clock)
    preparation.start()
    clock.now = 5.1
    assert preparation.state() is Preparing.FAILED
    gate.set()
    assert settled(preparation) is Preparing.FAILED
    with pytest.raises(ValueError, match="failed"):
        preparation.result()


def test_a_vote_that_was_given_is_never_taken_back() -> None:
    clock = Clock()
    preparation = Preparation(lambda: "groups", 5, clock)
    preparation.start()
    assert settled(preparation) is Preparing.READY
    clock.now = 100.0
    assert preparation.state() is Preparing.READY
