"""Snapshots of `paceline.detector-state.v1`: written by us, read whole, kept by record key."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from paceline.analysis.detection import DetectionPolicy
from paceline.analysis.detection.snapshot import (
    ChunkHead,
    SnapshotError,
    dump_block,
    load_block,
    pack_chunks,
    read_chunk,
    unpack_chunks,
)
from paceline.detector.core import BlockKey, Held

EXPIRED_AT_ONCE_MAX = 100  # tombstones in one round, far below the bound of the queue they wait in
_NUMBERS = ("shards", "partition", "next_offset", "first_offset", "signal_seq", "tick_seq", "sampled_unix_ns")


@dataclass
class StoredSnapshot:
    """Chunks of the newest snapshot of one block."""

    key: str
    head: ChunkHead
    chunks: dict[int, bytes] = field(default_factory=dict)

    @property
    def size_bytes(self) -> int:
        return sum(len(chunk) for chunk in self.chunks.values())

    def raw(self) -> bytes:
        """SnapshotError where chunks are missing or damaged."""
        return unpack_chunks(list(self.chunks.values()))


class SnapshotShelf:
    """The compacted topic in memory, compressed, bounded; a snapshot beyond the bound is not kept."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.size_bytes = 0
        self.dropped = 0
        self.unreadable = 0
        self._stored: dict[str, StoredSnapshot] = {}
        self._record_keys: dict[str, set[str]] = {}

    def take(self, record_key: str, value: bytes) -> None:
        """One record of the topic; an empty value is a tombstone. Garbage is counted."""
        key, _, number = record_key.rpartition(":")
        if not value:
            self._forget_record(key, record_key)
            if number == "0":
                self._remove(key)
            return
        try:
            head = read_chunk(value)
        except SnapshotError:
            self.unreadable += 1
            return
        self._record_keys.setdefault(key, set()).add(record_key)
        stored = self._stored.get(key)
        # By place in the log of frames, as `DetectorCore.adopt` decides: clocks of hosts differ. A
        # block that moved to another partition counts from there; its snapshots come in order.
        if (
            stored is not None
            and head.partition == stored.head.partition
            and head.snapshot_id < stored.head.snapshot_id
        ):
            return
        if stored is None or head != replace(stored.head, chunk=head.chunk):
            self._remove(key)
            stored = self._stored[key] = StoredSnapshot(key, head)
        before = len(stored.chunks.get(head.chunk, b""))
        if self.size_bytes + len(value) - before > self.bytes_max:
            self.dropped += 1
            return
        stored.chunks[head.chunk] = value
        self.size_bytes += len(value) - before

    def put(self, held: Held, saved_unix_s: float) -> list[tuple[str, bytes | None]]:
        """Records to publish for `held`: its snapshot, and tombstones for chunks no longer needed."""
        return self.keep(held.key.text, packer(held, saved_unix_s)())

    def keep(self, key: str, parts: Sequence[bytes]) -> list[tuple[str, bytes | None]]:
        """The same for a snapshot that is packed already."""
        records: list[tuple[str, bytes | None]] = [
            (f"{key}:{index}", part) for index, part in enumerate(parts)
        ]
        surplus = self._record_keys.get(key, set()) - {name for name, _ in records}
        for name, part in records:
            self.take(name, part or b"")
        return [*records, *((name, None) for name in sorted(surplus))]

    def forget(self, key: str) -> list[str]:
        """Record keys of a block that is gone; they want a tombstone each."""
        self._remove(key)
        return sorted(self._record_keys.pop(key, set()))

    def expired(self, saved_before_unix_s: float) -> list[str]:
        """At most EXPIRED_AT_ONCE_MAX snapshots that nobody has renewed since: their detector is gone,
        and no other would restore them. The compacted topic keeps them until somebody says so."""
        old = (key for key, stored in self._stored.items() if stored.head.saved_unix_s < saved_before_unix_s)
        return list(islice(old, EXPIRED_AT_ONCE_MAX))

    def take_lost(self) -> Counter[str]:
        """What was not kept since the last call, by reason."""
        lost = +Counter({"shelf_full": self.dropped, "snapshot_unreadable": self.unreadable})
        self.dropped = self.unreadable = 0
        return lost

    def of_partition(self, partition: int, saved_after_unix_s: float) -> list[StoredSnapshot]:
        """Snapshots of blocks of one partition of the frames that are not too old to be useful."""
        return [
            stored
            for stored in self._stored.values()
            if stored.head.partition == partition and stored.head.saved_unix_s >= saved_after_unix_s
        ]

    def _forget_record(self, key: str, record_key: str) -> None:
        names = self._record_keys.get(key, set())
        names.discard(record_key)
        if not names:
            self._record_keys.pop(key, None)

    def _remove(self, key: str) -> None:
        stored = self._stored.pop(key, None)
        if stored is not None:
            self.size_bytes -= stored.size_bytes


def packer(held: Held, saved_unix_s: float) -> Callable[[], list[bytes]]:
    """A copy of `held` as it is now; calling it compresses the copy, which may happen in a thread."""
    raw, snapshot_id, partition = dump_held(held), held.next_offset, held.partition
    return lambda: pack_chunks(raw, snapshot_id=snapshot_id, partition=partition, saved_unix_s=saved_unix_s)


def dump_held(held: Held) -> bytes:
    """`held` as bytes."""
    outer: dict[str, object] = {name: getattr(held, name) for name in _NUMBERS}
    outer |= {
        "job": held.key.job,
        "attempt": held.key.attempt,
        "shard": held.key.shard,
        "failed": held.failed,
    }
    return dump_block(held.block, outer)


def load_held(raw: bytes, policy: DetectionPolicy) -> Held:
    """Inverse of `dump_held`; SnapshotError for anything else."""
    block, outer = load_block(raw, policy)
    try:
        shards, partition, next_offset, first_offset, signal_seq, tick_seq, sampled_unix_ns = (
            _number(outer, name) for name in _NUMBERS
        )
        return Held(
            key=BlockKey(str(outer["job"]), str(outer["attempt"]), _number(outer, "shard")),
            shards=shards,
            partition=partition,
            block=block,
            next_offset=next_offset,
            first_offset=first_offset,
            signal_seq=signal_seq,
            tick_seq=tick_seq,
            sampled_unix_ns=sampled_unix_ns,
            failed=bool(outer["failed"]),
        )
    except KeyError as error:
        raise SnapshotError(f"snapshot has no {error}") from None


def _number(outer: dict[str, object], name: str) -> int:
    value = outer[name]
    if not isinstance(value, int):
        raise SnapshotError(f"{name} is {value!r}, expected a whole number")
    return value
