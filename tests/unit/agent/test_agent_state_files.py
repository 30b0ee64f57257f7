"""What the agent leaves on disk for its successor, and what it does with nonsense there."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paceline.agent.delivery import Event, EventQueue
from paceline.agent.event_file import FEW_EVENTS, EventFile
from paceline.agent.state_file import FILE_BYTES_MAX, StateFile
from paceline.contracts.events import EventType
from paceline.contracts.registry import HealthEvent, HealthKind, NodeRecord, RankRecord
from paceline.contracts.topics import HEALTH, JOBS


def waiting() -> list[Event]:
    health = HealthEvent("h1", HealthKind.PROCESS_EXIT, "n1", "job", "a1", 3, 9, 1.5, exit_code=-9)
    node = NodeRecord("job", "a1", "n1", "n1/agent", (RankRecord(0, 0, 1, 2, coordinates={"tp": 1}),))
    return [
        Event(JOBS, "job:n1", EventType.NODE_RECORD, "r1", node),
        Event(HEALTH, "job", EventType.HEALTH, "h1", health),
    ]


def test_waiting_events_come_back_equal(tmp_path: Path) -> None:
    queue, again = EventQueue(Counter()), EventQueue(Counter())
    for event in waiting():
        queue.push(event)
    EventFile(tmp_path / "events.json", queue).save()
    assert EventFile(tmp_path / "events.json", again).restore() == 2
    assert again.head(10) == waiting()


def test_delivered_events_do_not_come_back(tmp_path: Path) -> None:
    queue = EventQueue(Counter())
    file = EventFile(tmp_path / "events.json", queue)
    for event in waiting():
        queue.push(event)
    file.save()
    queue.remove(queue.head(10))
    file.save()
    assert EventFile(tmp_path / "events.json", EventQueue(Counter())).restore() == 0


def count_writes(file: EventFile, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    sizes: list[int] = []
    write = file.file.write

    def counted(data: bytes) -> None:
        sizes.append(len(data))
        write(data)

    monkeypatch.setattr(file.file, "write", counted)
    return sizes


def many(number: int) -> list[Event]:
    _, health = waiting()
    return [replace(health, id=f"m{index}") for index in range(number)]


def test_an_outage_writes_its_events_when_they_change_and_not_at_every_sample(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = EventQueue(Counter())
    file = EventFile(tmp_path / "events.json", queue)
    writes = count_writes(file, monkeypatch)
    queue.push(waiting()[0])
    for second in range(10):
        file.save_sometimes(second * 10**9)
    assert len(writes) == 1  # nothing changed
    queue.push(waiting()[1])
    file.save_sometimes(10 * 10**9)
    assert len(writes) == 2  # few are kept at once
    for second, event in enumerate(many(FEW_EVENTS + 20), 11):
        queue.push(event)
        file.save_sometimes(second * 10**9)
    assert len(writes) == 2 + FEW_EVENTS - 2 + 4  # the last 22 s every 5 s
    file.save()
    again = EventQueue(Counter())
    assert EventFile(tmp_path / "events.json", again).restore() == len(queue)


def test_events_that_the_disk_refused_are_written_at_the_next_sample(tmp_path: Path) -> None:
    queue = EventQueue(Counter())
    file = EventFile(tmp_path / "absent" / "events.json", queue)
    queue.push(waiting()[0])
    file.save_sometimes(0)
    assert file.file.failures == 1
    (tmp_path / "absent").mkdir()
    file.save_sometimes(10**9)
    assert EventFile(tmp_path / "absent" / "events.json", EventQueue(Counter())).restore() == 1


@pytest.mark.parametrize(
    "text",
    ["", "x", "{}", '[{"key":"k"}]',
     '[{"key":"k","type":"dev.paceline.health.observed.v1","id":"i","value":"{}"}]',
     '[{"key":"k","type":"dev.paceline.verdict.recorded.v1","id":"i","value":"{}"}]'],
)  # fmt: skip
def test_nonsense_in_the_file_is_counted(tmp_path: Path, text: str) -> None:
    (tmp_path / "events.json").write_text(text)
    file = EventFile(tmp_path / "events.json", EventQueue(Counter()))
    assert file.restore() == 0
    assert file.file.failures == (1 if text else 0)


def test_disk_that_refuses_is_counted_and_tried_again(tmp_path: Path) -> None:
    file = StateFile(tmp_path / "absent" / "state.json")
    file.write(b"1")
    assert file.failures == 1
    assert file.read() == b""
    (tmp_path / "absent").mkdir()
    file.write(b"1")
    assert file.read() == b"1"


def test_content_beyond_the_bound_is_counted_and_the_last_one_stays(tmp_path: Path) -> None:
    file = StateFile(tmp_path / "state.json")
    file.write(b"1")
    file.write(b"x" * (FILE_BYTES_MAX + 1))
    assert file.failures == 1
    assert file.read() == b"1"


async def test_nonsense_in_the_roster_does_not_stop_the_agent(
    start_agent: Any, start_rank: Any, agent_folder: Path, publisher: Any, eventually: Any
) -> None:
    (agent_folder / "roster.json").write_text('[{"hello": 1}]')
    app = await start_agent()
    assert app.roster.processes == {}
    await start_rank()
    await eventually(lambda: publisher.batches())
    assert app.drops["state_file"] == 1
