"""The outbox: what changed is published, and a start with many communicators costs what they are."""

from collections import Counter

import pytest

from paceline.agent import outbox as outbox_module
from paceline.agent.delivery import Event, EventQueue
from paceline.agent.outbox import Outbox
from paceline.agent.registry import LocalJob, close_communicator, open_communicator
from paceline.contracts.agent_socket import CommunicatorOpened, Hello
from paceline.contracts.registry import CommunicatorRecord
from paceline.contracts.schemas import dump_json
from paceline.runtime.clock import ManualClock


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
