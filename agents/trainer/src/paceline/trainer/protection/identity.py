"""Names of what is protected: shards, their copies, and the members that hold them."""

from dataclasses import dataclass
from enum import Enum
from typing import Any

from paceline.trainer.protection.errors import ProtectionError


class Place(str, Enum):
    """Where a copy lies, seen from its holder."""

    OWN = "own"
    REPLICA = "replica"


class Part(str, Enum):
    """The two halves of a rank's state.

    SHARED: equal on all ranks of a replica set, so each of them is a copy (parameters under data
    parallelism). OWN: nobody else has it (optimizer shard, buffers, random numbers, positions), so it
    travels to the neighbour.
    """

    SHARED = "shared"
    OWN = "own"


@dataclass(frozen=True)
class ShardIdentity:
    """Who a rank is logically; a standby takes over the identity of the rank it replaces.

    `replica_set` names the ranks that hold equal parameters (same tensor and pipeline coordinates).
    `shares`: it surely has a shared part, so that a set of which no copy is left counts as lost.
    """

    job: str
    rank: int
    replica_set: str = "0"
    shares: bool = False

    def shard(self, part: Part) -> str:
        """Name of a logical shard, equal on all members of the job."""
        return f"rank/{self.rank}" if part is Part.OWN else f"set/{self.replica_set}"


@dataclass(frozen=True)
class Member:
    """One rank of a generation: where its replica server listens and what fails together with it."""

    rank: int
    replica: str
    failure_domain: str


@dataclass(frozen=True)
class Holding:
    """One sealed copy of one shard at one step, as its holder announces it."""

    shard: str
    step: int
    generation: int
    checksum: str
    place: Place
    bytes: int

    def to_json(self) -> list[Any]:
        return [self.shard, self.step, self.generation, self.checksum, self.place.value, self.bytes]

    @staticmethod
    def from_json(value: Any) -> "Holding":
        kinds = (str, int, int, str, str, int)
        if not isinstance(value, list) or [type(item) for item in value] != list(kinds):
            raise ProtectionError(
                f"holding: expected [shard, step, generation, checksum, place, bytes]: {value!r}"
            )
        return Holding(value[0], value[1], value[2], value[3], Place(value[4]), value[5])
