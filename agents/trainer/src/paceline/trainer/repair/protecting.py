"""The session's side of per-step protection: who is in it, with which key, and where its steps begin."""

import hashlib
import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from paceline.trainer.protection import (
    GroupExchange,
    Member,
    Part,
    Protected,
    Protector,
    RestoreReport,
    ShardIdentity,
    StateMismatch,
    restore,
)
from paceline.trainer.protection.checksum import checksum
from paceline.trainer.protection.slots import Slot
from paceline.trainer.repair.replicas import parameters_of, replicas_of, torch_ranks_of

KEY_BYTES = 32
PART_BYTES_MAX = 64 << 30


class Protection:
    """One rank's. Steps are counted from 1 inside, so that 0 is the state before the first one.

    The key of the replica servers is drawn by rank 0 and travels over the training's own groups, as the
    state itself does: whoever reads that network has both, whoever does not has neither.
    """

    def __init__(
        self, objects: Mapping[str, Any], job: str, domain: str, host: str, check: Callable[[], None]
    ) -> None:
        self._job = job
        self._domain = domain
        self._key = b""
        self._read(objects)
        self.protector = Protector(self._protected, check=check, host=host)

    def _read(self, objects: Mapping[str, Any]) -> None:
        self._replicas = replicas_of(objects, torch_ranks_of)
        self._manifest = _manifest_of(objects)
        self._protected = Protected(objects, replicas=self._replicas.size, sharded=self._replicas.own)

    def hold(self, objects: Mapping[str, Any]) -> None:
        """In a standby, before it is a member: protect these from now on, not those of before."""
        self._read(objects)
        self.protector.protect(self._protected)

    def rehearse(self) -> None:
        """In a standby, while nobody waits: make room for copies, so that its first steps need not."""
        self.protector.rehearse()

    def status(self) -> tuple[str, str]:
        return self.protector.status()

    @property
    def replica(self) -> str:
        return self.protector.endpoint

    @property
    def host(self) -> str:
        """The address at which others reach this process."""
        return self.replica.rpartition(":")[0]

    def begin_step(self) -> None:
        self.protector.begin_step()

    def settle(self) -> bool:
        """Whether no copy is in progress, after a wait for the one that was."""
        return self.protector.settle()

    def end_step(self, step: int) -> None:
        self.protector.end_step(step + 1)

    def start(self, group: Any, step: int, generation: int) -> None:
        """All members at once, before the first step: meet, and protect the state after `step`."""
        exchange = GroupExchange(group)
        members = self._meet(exchange)
        self.protector.join(self._identity(exchange.rank), members, self._key, generation)
        self.end_step(step)

    def restore(self, group: Any, generation: int) -> RestoreReport:
        """All members at once, on the new group; FallbackRequired on all of them where memory has no step."""
        exchange = GroupExchange(group)
        members = self._meet(exchange)
        identity = self._identity(exchange.rank)
        try:
            return restore(self.protector, identity, members, self._key, generation, exchange)
        except StateMismatch as error:
            raise StateMismatch(
                f"{error}; where ranks hold different objects, say in Session.on_place which"
            ) from error

    # a planned replacement: the leaver's newest copy goes to its joiner, 1 to 1

    @property
    def manifest(self) -> bytes:
        """What is protected here; a joiner whose manifest is another one cannot take this rank's place."""
        return self._manifest

    def meet(self, group: Any) -> list[Member]:
        """All members at once, on a group that training does not use yet: everybody's replica server."""
        return self._meet(GroupExchange(group))

    def prepare(self, rank: int, members: Sequence[Member], generation: int, limit_s: float) -> bool:
        """Connect the ring of a generation that may come; `members` have met in `meet`. See `enter`."""
        return self.protector.prepare(rank, members, self._key, generation, limit_s)

    def drop(self, generation: int) -> None:
        """It does not come."""
        self.protector.drop(generation)

    def has_copy(self, step: int) -> bool:
        """Whether this rank's copy of the state after `step` is whole; waits for one in progress."""
        return self.protector.settle() and self.protector.own.newest() == step + 1

    def copy_of(self, step: int, rank: int) -> tuple[dict[str, Any], list[Any]]:
        """The copy of the state after `step`: its header, and its parts as flat host tensors."""
        slot = self.protector.own.at(step + 1, self._identity(rank).shard(Part.OWN))
        if slot is None or slot.record is None:
            raise LookupError(f"rank {rank} holds no copy of the state after step {step}")
        parts = [(part, shard, slot.buffer(part).content()) for part, shard in slot.shards.items()]
        header = {
            "step": slot.record.step,
            "generation": slot.record.generation,
            "rank": rank,
            "history": self.protector.history,
            "parts": [[part.value, shard, one.numel(), slot.checksums[part]] for part, shard, one in parts],
        }
        return header, [content for _, _, content in parts]

    def room_for(self, header: Mapping[str, Any]) -> list[Any]:
        """Where a standby receives the parts of a copy. ValueError, KeyError, TypeError for a bad header."""
        slot = self._taken()
        slot.clear()
        rows = [(Part(part), int(size)) for part, _, size, _ in header["parts"]]
        if any(not 0 <= size <= PART_BYTES_MAX for _, size in rows):
            raise ValueError(f"parts of {[size for _, size in rows]} bytes")
        return [slot.buffer(part).reserve(size) for part, size in rows]

    def is_whole(self, header: Mapping[str, Any]) -> bool:
        """Whether what was received is what was sent."""
        slot = self._taken()
        return all(
            checksum(slot.buffer(Part(part)).content()) == sent for part, _, _, sent in header["parts"]
        )

    def load(self, header: Mapping[str, Any]) -> None:
        """Become what the leaver was, from a copy that is whole. StateMismatch where it does not fit."""
        slot = self._taken()
        self._protected.load(slot.buffer(Part.OWN).content(), slot.buffer(Part.SHARED).content())
        shards = {Part(part): str(shard) for part, shard, _, _ in header["parts"]}
        opened = slot.open(int(header["generation"]), int(header["step"]), int(header["rank"]), shards)
        slot.seal({Part(part): str(sent) for part, _, _, sent in header["parts"]}, opened)
        self.protector.history = [(int(number), int(step)) for number, step in header["history"]]
        self.protector.finished = int(header["step"])

    def enter(self, rank: int, members: Sequence[Member], generation: int, step: int) -> None:
        """Go on in a generation whose members have met before and all hold the state after `step`, if only in
        a copy that is not whole yet."""
        self.protector.settle()
        self.protector.join(self._identity(rank), members, self._key, generation, held=step + 1)

    def _taken(self) -> Slot:
        """A standby protects nothing, so its slots are free."""
        return self.protector.own.all[0]

    def _identity(self, rank: int) -> ShardIdentity:
        name = self._replicas.name(torch_ranks_of)
        return ShardIdentity(self._job, rank, name, shares=self._replicas.shares)

    def _meet(self, exchange: GroupExchange) -> list[Member]:
        """Everybody's replica server as it is now, and the job's key: that of the lowest rank that has one.

        An order names replicas too, but a process that takes a rank cold has none yet when it is written.
        """
        mine = {"replica": self.replica, "domain": self._domain, "key": self._key.hex()}
        if exchange.rank == 0:
            mine["fresh"] = secrets.token_hex(KEY_BYTES)
        entries = [json.loads(one) for one in exchange.gather(json.dumps(mine).encode())]
        known = [one["key"] for one in entries if one["key"]]
        self._key = bytes.fromhex(known[0] if known else entries[0]["fresh"])
        return [Member(rank, one["replica"], one["domain"]) for rank, one in enumerate(entries)]

    def corrupt_kept(self) -> None:
        """For tests: one bit of the newest copy that is kept for the neighbour."""
        kept = [slot for slot in self.protector.kept.all if slot.record is not None and slot.record.sealed]
        if kept:
            newest = max(kept, key=lambda slot: slot.record.step if slot.record is not None else -1)
            newest.buffer(Part.OWN).content()[0] ^= 1


def _manifest_of(objects: Mapping[str, Any]) -> bytes:
    """Rows [name, kind, parameters, digest of their shapes], in order of names."""
    rows = []
    for name, thing in sorted(objects.items()):
        shapes = [[str(one.dtype), *one.shape] for one in parameters_of(thing)]
        digest = hashlib.sha256(json.dumps(shapes).encode()).hexdigest()[:16]
        rows.append([name, type(thing).__name__, len(shapes), digest])
    return json.dumps(rows, separators=(",", ":")).encode()
