"""The outbox: what changed is published, and a start with many communicators costs what they are."""

from collections import Counter
from pathlib import Path

import pytest

from paceline.agent import outbox as outbox_module
from paceline.agent.delivery import Event, EventQueue
from paceline.agent.event_file import EventFile
from paceline.agent.graves import AT_ONCE_MAX, Graves, GravesFile
from paceline.agent.kafka_publisher import KafkaPublisher
from paceline.agent.outbox import Outbox
from paceline.agent.registry import LocalJob, close_communicator, open_communicator
from paceline.contracts.agent_socket import CommunicatorOpened, Hello
from paceline.contracts.events import EventType
from paceline.contracts.registry import CommunicatorRecord
from paceline.contracts.schemas import dump_json
from paceline.contracts.topics import JOBS, Topic
from paceline.runtime.clock import ManualClock
from paceline.runtime.settings import KafkaSettings


def job_of_one() -> LocalJob:
    hello = Hello("job", "declared", "a1", "declared", 0, 1, 0, 1, 1)
    job = LocalJob(("job", "a1"), 0, hello, 0, 0.0)
    job.hellos[0], job.pids[0] = hello, 1
    return job


def opened(number: int) -> CommunicatorOpened:
    return CommunicatorOpened(f"{number:016x}", f"c{number}", "0", 0, "nccl", 0)


def new_outbox() -> tuple[Outbox, EventQueue]:
    queue = EventQueue(Counter())
    return Outbox(queue, ManualClock(), "n1", "n1/agent"), queue


def drain(queue: EventQueue) -> list[Event]:
    events = queue.head(len(queue))
    queue.remove(events)
    return events


def test_each_communicator_is_written_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    dumped: list[object] = []

    def dump(value: object) -> bytes:
        dumped.append(value)
        return dump_json(value)

    monkeypatch.setattr(outbox_module, "dump_json", dump)
    outbox, _ = new_outbox()
    job = job_of_one()
    for number in range(1, 101):
        assert open_communicator(job, 0, opened(number)) is None
        outbox.sync(job)
    assert len([value for value in dumped if isinstance(value, CommunicatorRecord)]) == 100


def test_only_changes_are_published_and_everything_again_on_repeat() -> None:
    outbox, queue = new_outbox()
    job = job_of_one()
    for number in (1, 2):
        open_communicator(job, 0, opened(number))
    outbox.sync(job)
    first = drain(queue)
    assert len(first) == 4  # job, node, two communicators
    outbox.sync(job)
    assert drain(queue) == []
    assert close_communicator(job, 0, f"{2:016x}")
    outbox.sync(job)
    (closed,) = drain(queue)
    assert isinstance(closed.value, CommunicatorRecord)
    assert closed.value.closed
    outbox.repeat(job)
    outbox.sync(job)
    assert [event.key for event in drain(queue)] == [event.key for event in first]


def tombstones(queue: EventQueue) -> list[str]:
    return [event.key for event in drain(queue) if event.value is None]


def ended_job(outbox: Outbox, queue: EventQueue, *, at_unix_s: float = 0.0) -> list[str]:
    """Keys that were published of a job that is over and forgotten."""
    job = job_of_one()
    open_communicator(job, 0, opened(1))
    outbox.sync(job)
    job.ended_unix_s = at_unix_s
    outbox.forget(job)
    return [event.key for event in drain(queue)]


def test_an_ended_job_leaves_the_registry_after_its_time() -> None:
    outbox, queue = new_outbox()
    keys = ended_job(outbox, queue, at_unix_s=outbox._clock.unix_s())
    assert len(keys) == 3
    outbox.bury()
    assert tombstones(queue) == []
    outbox.graves._due = dict.fromkeys(outbox.graves._due, outbox._clock.unix_s())
    outbox.bury()
    assert sorted(tombstones(queue)) == sorted(keys)
    outbox.bury()
    assert tombstones(queue) == []


def test_a_job_that_comes_back_keeps_its_records() -> None:
    outbox, queue = new_outbox()
    keys = ended_job(outbox, queue, at_unix_s=-90_000.0)
    outbox.sync(job_of_one())  # publishes job and node, not the communicator
    outbox.bury()
    assert tombstones(queue) == [key for key in keys if key.endswith(f"{1:016x}")]


def test_only_the_node_that_speaks_for_a_record_buries_it() -> None:
    outbox, queue = new_outbox()
    hello = Hello("job", "declared", "a1", "declared", 1, 2, 0, 1, 1)
    job = LocalJob(("job", "a1"), 0, hello, 0, 0.0)
    job.hellos[1], job.pids[1] = hello, 1
    assert open_communicator(job, 1, CommunicatorOpened(f"{1:016x}", "c", "0-1", 0, "nccl", 0)) is None
    outbox.sync(job)
    job.ended_unix_s = -90_000.0
    outbox.forget(job)
    outbox.bury()
    assert tombstones(queue) == ["job:n1"]  # job and communicator belong to the node of rank 0


def test_the_next_agent_buries_and_tombstones_wait_for_kafka(tmp_path: Path) -> None:
    graves, again = Graves(), Graves()
    graves.dig([f"job{number}" for number in range(AT_ONCE_MAX + 1)], 5.0)
    GravesFile(tmp_path / "graves.json", graves).save()
    GravesFile(tmp_path / "graves.json", again).restore()
    assert again.take_due(4.0) == []
    assert len(again.take_due(5.0)) == AT_ONCE_MAX
    assert len(again) == 1
    outbox, queue = new_outbox()
    outbox.graves.dig(["job"], 0.0)
    outbox.bury()
    EventFile(tmp_path / "events.json", queue).save()
    restored = EventQueue(Counter())
    assert EventFile(tmp_path / "events.json", restored).restore() == 1
    assert tombstones(restored) == ["job"]


@pytest.mark.parametrize("text", ["x", "[]", '{"job": "soon"}'])
def test_nonsense_in_the_graves_is_counted(tmp_path: Path, text: str) -> None:
    (tmp_path / "graves.json").write_text(text)
    file = GravesFile(tmp_path / "graves.json", Graves())
    file.restore()
    assert file.file.failures == 1


async def test_a_tombstone_goes_out_without_a_value(monkeypatch: pytest.MonkeyPatch) -> None:
    publisher = KafkaPublisher(KafkaSettings(), "agent", ManualClock())
    sent: list[tuple[str, str, bytes | None]] = []

    async def send(topic: Topic, key: str, value: bytes | None, *, timeout_s: float) -> None:
        sent.append((topic.name, key, value))

    monkeypatch.setattr(publisher._producer, "send", send)
    await publisher.publish([Event(JOBS, "job", EventType.JOB_RECORD, "x", None)])
    assert sent == [(JOBS.name, "job", None)]
