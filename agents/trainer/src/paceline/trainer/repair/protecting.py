"""The session's side of per-step protection: who is in it, with which key, and where its steps begin."""

import json
import secrets
from collections.abc import Callable, Mapping
from typing import Any

from paceline.trainer.protection import (
    GroupExchange,
    Member,
    Part,
    Protected,
    Protector,
    RestoreReport,
    ShardIdentity,
    restore,
)
from paceline.trainer.repair.replicas import replicas_of, torch_ranks_of

KEY_BYTES = 32


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
        self._replicas = replicas_of(objects, torch_ranks_of)
        self._protected = Protected(objects, replicas=self._replicas.size, sharded=self._replicas.own)
        self.protector = Protector(self._protected, check=check, host=host)

    @property
    def replica(self) -> str:
        return self.protector.endpoint

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
        return restore(self.protector, identity, members, self._key, generation, exchange)

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
