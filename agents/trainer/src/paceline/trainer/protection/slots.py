"""Which slot may be overwritten, and what the slots hold; the buffers hang on them.

The rule: never the newest sealed copy at or below the committed step, nor anything sealed after it. The
papers' form of it ("the other slot is sealed and at or above the committed step") is not enough: with
steps s and s+1 sealed here and s committed it lets s go, and if a peer dies whose s+1 was still on its way,
no step is left that all shards have. A property test shows both.
"""

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from paceline.trainer.protection.identity import Holding, Part, Place
from paceline.trainer.protection.memory import Buffer

NEVER = -1


@dataclass(frozen=True)
class Record:
    """What a slot holds, without the bytes."""

    generation: int
    step: int
    shard: str
    sealed: bool


def overwritable(records: Iterable[Record | None], shard: str, committed: int) -> list[int]:
    """Indices of the slots that a copy of `shard` may overwrite, empty ones first, then the oldest.

    Copies of other shards are left from before the ring changed: the newest of each stays until the new
    ring has committed its step.
    """
    slots = list(records)
    kept: set[int] = set()
    newest: dict[str, int] = {}
    for index, record in enumerate(slots):
        if record is None or not record.sealed:
            continue
        best = newest.get(record.shard)
        counts = record.shard != shard or record.step <= committed
        if counts and (best is None or record.step > (slots[best] or record).step):
            newest[record.shard] = index
    for name, index in newest.items():
        record = slots[index]
        if record is not None and (name == shard or record.step > committed):
            kept.add(index)
    anchor = slots[newest[shard]] if shard in newest else None
    floor = anchor.step if anchor is not None else NEVER
    for index, record in enumerate(slots):
        if record is not None and record.sealed and record.shard == shard and record.step > floor:
            kept.add(index)
    return sorted(
        (index for index in range(len(slots)) if index not in kept),
        key=lambda index: _age(slots[index]),
    )


def _age(record: Record | None) -> int:
    return record.step if record is not None and record.sealed else NEVER


@dataclass
class Slot:
    """Room for one step of one rank: its parts, and who and what they are."""

    pinned: bool
    record: Record | None = None
    rank: int = NEVER
    shards: dict[Part, str] = field(default_factory=dict)
    checksums: dict[Part, str] = field(default_factory=dict)
    buffers: dict[Part, Buffer] = field(default_factory=dict)

    def buffer(self, part: Part) -> Buffer:
        """The block of one part, made when it is first asked for."""
        if part not in self.buffers:
            self.buffers[part] = Buffer(self.pinned)
        return self.buffers[part]

    def open(self, generation: int, step: int, rank: int, shards: dict[Part, str]) -> Record:
        """From now until `seal` the content counts as nothing; the record is the writer's claim to it."""
        record = Record(generation, step, shards[Part.OWN], sealed=False)
        self.record = record
        self.rank, self.shards, self.checksums = rank, shards, {}
        return record

    def seal(self, checksums: dict[Part, str], opened: Record) -> bool:
        """The content is complete; False where somebody else has opened or cleared the slot since."""
        if self.record is not opened:
            return False
        self.checksums = checksums
        self.record = replace(opened, sealed=True)
        return True

    def clear(self, opened: Record | None = None) -> None:
        """Forget the content, with `opened` only where it still is that one; the memory stays."""
        if opened is None or self.record is opened:
            self.record = None

    def holdings(self, place: Place) -> list[Holding]:
        """What this slot can give, as announced after a failure."""
        if self.record is None or not self.record.sealed:
            return []
        return [
            Holding(
                shard,
                self.record.step,
                self.record.generation,
                self.checksums[part],
                place,
                self.buffer(part).used,
            )
            for part, shard in self.shards.items()
        ]


class Slots:
    """The slots of one owner: of this rank, or of the rank before it in the ring.

    `lock`: for receivers, of which those of a generation that is being closed overlap the next one's.
    """

    def __init__(self, place: Place, pinned: bool, count: int = 2) -> None:
        self.place = place
        self.lock = threading.Lock()
        self.all = [Slot(pinned) for _ in range(count)]

    def choose(self, shard: str, committed: int) -> Slot | None:
        """The slot that the next copy of `shard` may overwrite, or None while every one is needed."""
        free = overwritable([slot.record for slot in self.all], shard, committed)
        return self.all[free[0]] if free else None

    def at(self, step: int, shard: str) -> Slot | None:
        """The sealed slot that holds a shard at a step."""
        for slot in self.all:
            record = slot.record
            if record and record.sealed and record.step == step and shard in slot.shards.values():
                return slot
        return None

    def newest(self) -> int:
        """The highest sealed step, or NEVER."""
        return max(
            (slot.record.step for slot in self.all if slot.record and slot.record.sealed), default=NEVER
        )

    def keep_only(self, step: int) -> None:
        """After a restore: whatever is of a later step belongs to a history that did not happen."""
        for slot in self.all:
            if slot.record is not None and (not slot.record.sealed or slot.record.step > step):
                slot.clear()

    def holdings(self) -> list[Holding]:
        return [holding for slot in self.all for holding in slot.holdings(self.place)]
