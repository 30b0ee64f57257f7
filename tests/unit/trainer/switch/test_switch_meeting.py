"""Participants that agree on a boundary over a store, each in its own thread and at its own pace."""

import random
import threading
from datetime import timedelta

import pytest

from paceline.trainer.switch.agree import NO_BOUNDARY
from paceline.trainer.switch.meeting import Meeting


class Store:
    """As torch's, for threads of one process."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._changed = threading.Condition()

    def set(self, key: str, value: str) -> None:
        with self._changed:
            assert key not in self._values, "a word is said once"
            self._values[key] = value.encode()
            self._changed.notify_all()

    def get(self, key: str) -> bytes:
        return self._values[key]

    def wait(self, keys: list[str], limit: timedelta) -> None:
        with self._changed:
            if not self._changed.wait_for(lambda: self._values.keys() >= set(keys), limit.total_seconds()):
                raise RuntimeError("wait timeout")


def meet(proposals: list[int], absent: int = -1) -> list[int | None]:
    """What each participant takes for agreed; None where it gave up."""
    store, names = Store(), [f"m{number}" for number in range(len(proposals))]
    agreed: list[int | None] = [None] * len(names)

    def run(number: int) -> None:
        meeting = Meeting(store, names, names[number])
        try:
            meeting.arrive(0.05 if absent >= 0 else 10)
            meeting.propose(proposals[number])
        except RuntimeError:
            meeting.propose(NO_BOUNDARY)
        try:
            agreed[number] = meeting.agreed(0.05 if absent >= 0 else 10)
        except RuntimeError:
            pass

    threads = [
        threading.Thread(target=run, args=(number,)) for number in range(len(names)) if number != absent
    ]
    random.Random(len(names)).shuffle(threads)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    return agreed


def test_everybody_hears_the_same_boundary() -> None:
    assert meet([7, 8, 7, 0]) == [8] * 4


def test_one_that_cannot_switch_keeps_all_from_it() -> None:
    assert meet([7, NO_BOUNDARY, 7]) == [NO_BOUNDARY] * 3


@pytest.mark.parametrize("absent", [0, 2])
def test_one_that_never_comes_is_no_boundary_for_anybody(absent: int) -> None:
    assert all(each in (None, NO_BOUNDARY) for each in meet([3, 3, 3], absent))
