"""Which step is restored and who gives what to whom: a pure function with named reasons.

Every member runs it on the same announcements and comes to the same plan.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from paceline.trainer.protection.identity import Holding, Part, Place, ShardIdentity


class RestoreReason(str, Enum):
    """Why this step."""

    NEWEST_COMMON = "newest_common"  # every shard has a copy of the newest step any copy has
    STEP_BACK = "step_back"  # a shard's newest copies were lost or are bad; an older step has all


class FallbackReason(str, Enum):
    """Why memory does not suffice."""

    NOTHING_PROTECTED = "nothing_protected"  # no sealed copy anywhere: the first step was not over
    SHARD_LOST = "shard_lost"  # a rank and the keeper of its copy are both gone
    STEPS_DISJOINT = "steps_disjoint"  # every shard has copies, but of no step all of them
    COPIES_BAD = "copies_bad"  # copies were there and failed their checksum
    REPLICAS_DIFFER = "replicas_differ"  # equal by construction and yet not equal: silent corruption


@dataclass(frozen=True)
class Refused:
    """A copy that failed its checksum, or could not be handed over; not to be used again."""

    rank: int
    shard: str
    step: int
    place: Place


@dataclass(frozen=True)
class Transfer:
    """One shard from the copy of `source` to `target`; the same rank where it has a copy itself."""

    shard: str
    part: Part
    source: int
    place: Place
    target: int
    bytes: int
    checksum: str


@dataclass(frozen=True)
class RestorePlan:
    """All members load `step`; `replayed` steps that some member had finished are run again."""

    step: int
    reason: RestoreReason
    transfers: tuple[Transfer, ...]
    replayed: int


@dataclass(frozen=True)
class Fallback:
    """No plan: the disk checkpoint is next."""

    reason: FallbackReason
    detail: str


History = Sequence[tuple[int, int]]
Copies = Mapping[str, Mapping[int, Sequence[tuple[int, Holding]]]]


def decide_restore(
    holdings_by_rank: Mapping[int, Iterable[Holding]],
    members: Sequence[ShardIdentity],
    history: History = (),
    finished: int = -1,
    refused: Iterable[Refused] = (),
) -> RestorePlan | Fallback:
    """The newest step of which every shard that `members` need has a usable copy.

    `holdings_by_rank`: what each member, by the rank it has now, announced. `history`: earlier restores as
    (generation, step): a copy made before one of them and of a later step belongs to a course that did not
    happen. `finished`: the newest step any survivor has finished. `refused`: copies found bad.
    """
    bad = frozenset(refused)
    copies, refused_any = _usable(holdings_by_rank, history, bad)
    wanted = {identity.shard(part) for identity in members for part in _parts(identity, copies)}
    if not any(copies.values()):
        why = FallbackReason.COPIES_BAD if refused_any else FallbackReason.NOTHING_PROTECTED
        return Fallback(why, "no member holds a usable copy")
    lost = sorted(shard for shard in wanted if not copies.get(shard))
    if lost:
        names = ", ".join(lost[:4])
        if {item.shard for item in bad} & set(lost):
            return Fallback(FallbackReason.COPIES_BAD, f"the only copies of {names} failed their checksum")
        return Fallback(FallbackReason.SHARD_LOST, f"no copy of {names}: its rank and its keeper are lost")
    common = set.intersection(*(set(copies[shard]) for shard in wanted))
    if not common:
        ranges = ", ".join(f"{shard}: {sorted(copies[shard])}" for shard in sorted(wanted)[:4])
        return Fallback(FallbackReason.STEPS_DISJOINT, f"no step of which all shards have a copy ({ranges})")
    step = max(common)
    differing = _differing(copies, wanted, step)
    if differing:
        return Fallback(
            FallbackReason.REPLICAS_DIFFER, f"step {step}: {differing} differs between its holders"
        )
    newest = max(max(copies[shard]) for shard in wanted)
    reason = RestoreReason.NEWEST_COMMON if step == newest else RestoreReason.STEP_BACK
    return RestorePlan(step, reason, tuple(_transfers(copies, members, step)), max(finished - step, 0))


def _usable(
    holdings_by_rank: Mapping[int, Iterable[Holding]], history: History, bad: frozenset[Refused]
) -> tuple[dict[str, dict[int, list[tuple[int, Holding]]]], bool]:
    copies: dict[str, dict[int, list[tuple[int, Holding]]]] = {}
    refused_any = False
    for rank in sorted(holdings_by_rank):
        for holding in holdings_by_rank[rank]:
            if not is_current(holding.generation, holding.step, history):
                continue
            if Refused(rank, holding.shard, holding.step, holding.place) in bad:
                refused_any = True
                continue
            copies.setdefault(holding.shard, {}).setdefault(holding.step, []).append((rank, holding))
    return copies, refused_any


def is_current(generation: int, step: int, history: History) -> bool:
    """Whether a copy made in `generation` is of the course of training that led to now."""
    return all(generation >= later or step <= restored for later, restored in history)


def _parts(identity: ShardIdentity, copies: Copies) -> list[Part]:
    """The shared part is needed where anybody of the replica set ever had one, or should have."""
    needed = identity.shares or identity.shard(Part.SHARED) in copies
    return [Part.OWN, Part.SHARED] if needed else [Part.OWN]


def _differing(copies: Copies, wanted: Iterable[str], step: int) -> str:
    for shard in sorted(wanted):
        if len({holding.checksum for _, holding in copies[shard][step]}) > 1:
            return shard
    return ""


def _transfers(copies: Copies, members: Sequence[ShardIdentity], step: int) -> Iterable[Transfer]:
    given: dict[int, int] = {}  # bytes each source sends, so that several targets do not queue at one
    for identity in sorted(members, key=lambda each: each.rank):
        for part in _parts(identity, copies):
            shard = identity.shard(part)
            found = copies[shard][step]
            source, holding = min(
                found,
                key=lambda pair: (
                    pair[0] != identity.rank,
                    pair[1].place is Place.REPLICA,
                    given.get(pair[0], 0),
                    pair[0],
                ),
            )
            if source != identity.rank:
                given[source] = given.get(source, 0) + holding.bytes
            yield Transfer(shard, part, source, holding.place, identity.rank, holding.bytes, holding.checksum)
