"""Health of a job with more exits than are kept."""

import pytest

from paceline.contracts.registry import HealthEvent, HealthKind
from paceline.localizer.core import LocalizerCore
from paceline.localizer.health_log import HealthLog, Noted
from paceline.localizer.memory import MemoryBounds

LIMIT = 10


def event(number: int, code: int | None = 1, kind: HealthKind = HealthKind.PROCESS_EXIT) -> HealthEvent:
    return HealthEvent(f"e{number}", kind, "n", "j", "a1", number, 1, float(number), code)


def ids(log: HealthLog) -> list[int]:
    return [int(kept.id[1:]) for kept in log]


def test_the_oldest_exits_stay() -> None:
    log = HealthLog()
    noted = [log.note(event(number), LIMIT) for number in range(LIMIT + 5)]
    assert noted == [Noted.NEW] * LIMIT + [Noted.REFUSED] * 5
    assert ids(log) == list(range(LIMIT))
    assert log.note(event(0), LIMIT) is Noted.KNOWN


def test_signals_and_hardware_take_the_place_of_the_newest_plain_exits() -> None:
    log = HealthLog()
    for number in range(LIMIT):
        log.note(event(number), LIMIT)
    assert log.note(event(20, -9), LIMIT) is Noted.NEW_FOR_ANOTHER
    assert log.note(event(21, None, HealthKind.XID), LIMIT) is Noted.NEW_FOR_ANOTHER
    assert ids(log) == [*range(LIMIT - 2), 20, 21]


def test_no_flood_pushes_out_the_first_cause() -> None:
    log = HealthLog()
    log.note(event(0), LIMIT)
    for number in range(1, 100):
        log.note(event(number, -6), LIMIT)
    for number in range(100, 200):
        log.note(event(number, None, HealthKind.THERMAL), LIMIT)
    assert ids(log)[0] == 0
    assert len(log) == LIMIT
    assert log.note(event(300, -9), LIMIT) is Noted.REFUSED


@pytest.mark.parametrize(("code", "dropped"), [(1, 5), (-9, 5)])
def test_what_is_lost_is_counted(code: int, dropped: int) -> None:
    core = LocalizerCore(bounds=MemoryBounds(health_max=LIMIT))
    for number in range(LIMIT):
        core.note_health(event(number), 0.0)
    for number in range(50, 55):
        core.note_health(event(number, code), 0.0)
    assert core.memory.dropped["health"] == dropped
