"""Restoring in band: announce, decide, move, verify, agree, load. Raw bytes on the new group.

Nothing is loaded anywhere before every member has verified everything it needs, so no step is ever
applied by some members only. A copy that fails its checksum is refused by all, and the decision is made
again without it.
"""

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from paceline.trainer.protection.checksum import checksum
from paceline.trainer.protection.decide import (
    Fallback,
    FallbackReason,
    Refused,
    RestorePlan,
    Transfer,
    decide_restore,
)
from paceline.trainer.protection.errors import FallbackRequired, NotSettled, ProtectionError
from paceline.trainer.protection.exchange import Exchange
from paceline.trainer.protection.identity import Holding, Member, Part, Place, ShardIdentity
from paceline.trainer.protection.protector import Protector
from paceline.trainer.protection.slots import Slot

DECISIONS_MAX = 8  # each one but the last refuses at least one more copy


@dataclass(frozen=True)
class RestoreReport:
    """What a restore did on this rank; durations in seconds, bytes received from others."""

    step: int
    reason: str
    replayed: int
    decisions: int
    refused: int
    bytes_shared: int
    bytes_own: int
    settle_s: float
    decide_s: float
    shared_s: float
    own_s: float
    load_s: float


def restore(
    protector: Protector,
    identity: ShardIdentity,
    members: Sequence[Member],
    key: bytes,
    generation: int,
    exchange: Exchange,
    clock: Callable[[], float] = time.monotonic,
) -> RestoreReport:
    """Bring every member to one step, and let the protector enter `generation`. Called by all members.

    Raises FallbackRequired, on all members alike, where memory does not suffice; NotSettled on this one,
    before it has announced or written anything, where a copy in progress does not end.
    """
    times = [clock()]
    protector.leave()
    if not protector.settle():
        raise NotSettled("the copy of the newest step still reads the live tensors: restore again later")
    times.append(clock())
    identities, holdings, history, finished = _announce(protector, identity, exchange)
    refused: set[Refused] = set()
    decisions, settled = 0, False
    while not settled:
        decisions += 1
        plan = _required(decide_restore(holdings, identities, history, finished, refused))
        if decisions > DECISIONS_MAX:
            raise FallbackRequired(FallbackReason.COPIES_BAD.value, f"{len(refused)} copies were bad")
        times = [*times[:2], clock()]
        bad, moved = _fetch(protector, plan, identity, generation, exchange, times, clock)
        fresh = _agree_on_refused(bad, exchange)
        settled, refused = not fresh, refused | fresh
        _drop(protector, fresh, identity.rank)
    loading_s = clock()
    _load(protector, identity, plan)
    protector.history = list(history)
    protector.adopt(plan.step, generation)
    protector.join(identity, members, key, generation)
    return RestoreReport(
        plan.step,
        plan.reason.value,
        plan.replayed,
        decisions,
        len(refused),
        moved[Part.SHARED],
        moved[Part.OWN],
        times[1] - times[0],
        times[2] - times[1],
        times[3] - times[2],
        times[4] - times[3],
        clock() - loading_s,
    )


def _required(plan: RestorePlan | Fallback) -> RestorePlan:
    if isinstance(plan, Fallback):
        raise FallbackRequired(plan.reason.value, plan.detail)
    return plan


def _announce(
    protector: Protector, identity: ShardIdentity, exchange: Exchange
) -> tuple[list[ShardIdentity], dict[int, list[Holding]], list[tuple[int, int]], int]:
    mine = {
        "identity": asdict(identity),
        "holdings": [holding.to_json() for holding in protector.holdings()],
        "history": protector.history,
        "finished": protector.finished,
    }
    identities, holdings = [], {}
    history: set[tuple[int, int]] = set()
    finished = -1
    for rank, payload in enumerate(exchange.gather(json.dumps(mine).encode())):
        try:
            value = json.loads(payload)
            theirs = ShardIdentity(**value["identity"])
            holdings[rank] = [Holding.from_json(item) for item in value["holdings"]]
            history |= {(int(number), int(step)) for number, step in value["history"]}
            finished = max(finished, int(value["finished"]))
        except (ValueError, KeyError, TypeError) as error:
            raise ProtectionError(f"rank {rank} announces what cannot be read: {error!r}") from error
        if theirs.job != identity.job or theirs.rank != rank:
            raise ProtectionError(f"rank {rank} says it is rank {theirs.rank} of {theirs.job}")
        identities.append(theirs)
    return identities, holdings, sorted(history), finished


def _fetch(
    protector: Protector,
    plan: RestorePlan,
    identity: ShardIdentity,
    generation: int,
    exchange: Exchange,
    times: list[float],
    clock: Callable[[], float],
) -> tuple[list[Refused], dict[Part, int]]:
    """Move what the plan moves, the shared parts first; which copies turned out bad, and bytes received."""
    bad: list[Refused] = []
    moved = dict.fromkeys(Part, 0)
    given = {
        each: _content(protector, plan.step, each) for each in plan.transfers if each.source == identity.rank
    }
    target = _target(protector, plan, identity, generation)
    for part in (Part.SHARED, Part.OWN):
        ours = [each for each in plan.transfers if each.part is part]
        sends = [
            (each.target, given[each])
            for each in ours
            if each.source == exchange.rank and each.target != exchange.rank
        ]
        wanted = [each for each in ours if each.target == exchange.rank]
        arriving = [each for each in wanted if each.source != exchange.rank]
        receives = [(each.source, target.buffer(part).reserve(each.bytes)) for each in arriving]
        exchange.move(sends, receives)
        for each in wanted:
            if each.source == exchange.rank and each.place is Place.REPLICA:
                target.buffer(part).reserve(each.bytes).copy_(given[each])
            if checksum(target.buffer(part).content()) == each.checksum:
                target.shards[part], target.checksums[part] = each.shard, each.checksum
            else:
                bad.append(Refused(each.source, each.shard, plan.step, each.place))
        moved[part] = sum(each.bytes for each in arriving)
        times.append(clock())
    if not bad and target.record is not None:
        target.seal(dict(target.checksums), target.record)
    return bad, moved


def _target(protector: Protector, plan: RestorePlan, identity: ShardIdentity, generation: int) -> Slot:
    """The own slot of the step, where this rank has one, else one to receive into."""
    shard = identity.shard(Part.OWN)
    mine = [each for each in plan.transfers if each.target == identity.rank]
    slot = protector.own.at(plan.step, shard)
    if slot is not None and all(each.source == identity.rank and each.place is Place.OWN for each in mine):
        return slot
    slot = slot or min(protector.own.all, key=lambda each: _worth(each, plan.step))
    held = dict(slot.checksums), dict(slot.shards)
    slot.open(generation, plan.step, identity.rank, {Part.OWN: shard})
    slot.checksums, slot.shards = held[0], {**held[1], **slot.shards}
    return slot


def _worth(slot: Slot, step: int) -> tuple[int, int]:
    """How much is lost when a copy of `step` takes the slot; a later step goes before an earlier one."""
    if slot.record is None or not slot.record.sealed:
        return 0, 0
    return (1, -slot.record.step) if slot.record.step > step else (2, slot.record.step)


def _content(protector: Protector, step: int, transfer: Transfer) -> Any:
    slots = protector.own if transfer.place is Place.OWN else protector.kept
    slot = slots.at(step, transfer.shard)
    if slot is None:  # announced a moment ago: a torn copy is sent, and refused by its checksum
        import torch

        return torch.zeros(transfer.bytes, dtype=torch.uint8)
    return slot.buffer(transfer.part).content()


def _agree_on_refused(bad: Sequence[Refused], exchange: Exchange) -> set[Refused]:
    mine = [[each.rank, each.shard, each.step, each.place.value] for each in bad]
    found = set()
    for payload in exchange.gather(json.dumps(mine).encode()):
        for rank, shard, step, place in json.loads(payload):
            found.add(Refused(int(rank), str(shard), int(step), Place(place)))
    return found


def _drop(protector: Protector, refused: Iterable[Refused], rank: int) -> None:
    """Forget the copies of this rank that turned out bad, so that new ones can take their place."""
    for each in refused:
        slots = protector.own if each.place is Place.OWN else protector.kept
        slot = slots.at(each.step, each.shard)
        if each.rank == rank and slot is not None:
            slot.clear()


def _load(protector: Protector, identity: ShardIdentity, plan: RestorePlan) -> None:
    slot = protector.own.at(plan.step, identity.shard(Part.OWN))
    if slot is None:
        raise ProtectionError(f"step {plan.step} was verified and is not there")
    contents: Mapping[Part, Any] = {part: slot.buffer(part).content() for part in Part}
    protector.protected.load(contents[Part.OWN], contents[Part.SHARED])
