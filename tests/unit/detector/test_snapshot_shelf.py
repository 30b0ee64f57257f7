"""Snapshots of the compacted topic in memory: what is forgotten, when, and what it leaves behind."""

from dataclasses import replace
from typing import Any

from paceline.analysis.detection import DetectionPolicy
from paceline.detector.core import BlockKey, Held
from paceline.detector.state import EXPIRED_AT_ONCE_MAX, SnapshotShelf, load_held


def held_block(log: Any, job: Any) -> Held:
    log.second(job)
    held: Held = log.core.held[BlockKey(job.job, "a1", 0)]
    return held


def test_only_what_nobody_renews_expires(log: Any, fake_job: Any) -> None:
    shelf = SnapshotShelf(1 << 20)
    shelf.put(held_block(log, fake_job()), 100.0)
    shelf.put(held_block(log, fake_job(job="other")), 200.0)
    assert shelf.expired(150.0) == ["train:a1:0"]
    assert shelf.forget("train:a1:0") == ["train:a1:0:0"]
    assert shelf.expired(150.0) == []


def test_one_round_of_expiry_is_bounded(log: Any, fake_job: Any) -> None:
    shelf = SnapshotShelf(64 << 20)
    ((_, value),) = shelf.put(held_block(log, fake_job()), 100.0)
    assert value is not None
    for number in range(EXPIRED_AT_ONCE_MAX + 5):
        shelf.take(f"job{number}:a1:0:0", value)
    assert len(shelf.expired(150.0)) == EXPIRED_AT_ONCE_MAX


def test_a_tombstone_leaves_nothing_behind(log: Any, fake_job: Any) -> None:
    shelf = SnapshotShelf(1 << 20)
    ((record_key, _),) = shelf.put(held_block(log, fake_job()), 100.0)
    shelf.take(record_key, b"")
    shelf.take("never:seen:0:0", b"")
    assert shelf.size_bytes == 0
    assert shelf._record_keys == {}  # would grow with every job that ever ran


def test_garbage_and_a_full_shelf_are_counted_once() -> None:
    shelf = SnapshotShelf(0)
    shelf.take("job:a1:0:0", b"garbage")
    assert shelf.take_lost() == {"snapshot_unreadable": 1}
    assert shelf.take_lost() == {}


def test_a_snapshot_beyond_the_bound_is_counted(log: Any, fake_job: Any) -> None:
    shelf = SnapshotShelf(10)
    shelf.put(held_block(log, fake_job()), 100.0)
    assert shelf.take_lost() == {"shelf_full": 1}
    assert shelf.size_bytes == 0


def copy_between(writer: SnapshotShelf, reader: SnapshotShelf, held: Held, clock_s: float) -> None:
    for record_key, value in writer.put(held, clock_s):
        reader.take(record_key, value or b"")


def offset_on(shelf: SnapshotShelf, partition: int = 0) -> int:
    (stored,) = shelf.of_partition(partition, 0.0)
    return load_held(stored.raw(), DetectionPolicy()).next_offset


def test_the_log_and_no_clock_says_which_snapshot_is_newer(log: Any, fake_job: Any) -> None:
    """The partition moves from a detector whose clock is ahead to one whose clock is right, and back."""
    held = held_block(log, fake_job())
    ahead, right = SnapshotShelf(1 << 20), SnapshotShelf(1 << 20)
    copy_between(ahead, right, held, 1_000_060.0)
    newer = replace(held, next_offset=held.next_offset + 50)
    copy_between(right, ahead, newer, 1_000_010.0)
    assert offset_on(ahead) == offset_on(right) == newer.next_offset
    # What the first one still had in flight is history, whatever its clock says.
    copy_between(ahead, right, replace(held, next_offset=held.next_offset + 1), 1_000_070.0)
    assert offset_on(ahead) == offset_on(right) == newer.next_offset


def test_offsets_of_another_partition_are_not_compared(log: Any, fake_job: Any) -> None:
    held = held_block(log, fake_job())
    shelf = SnapshotShelf(1 << 20)
    shelf.put(replace(held, next_offset=900), 100.0)
    shelf.put(replace(held, partition=3, next_offset=4), 90.0)
    assert offset_on(shelf, partition=3) == 4
