"""What the participants of one planned switch do, on top of groups that can be replaced.

stayer, leaver                                   joiner (a warm standby)
switch = PlannedSwitch(groups, order, rank, connect, tensors)
switch.start()                                   joining.prepare()      on both sides: side threads
each step: vote() rides in the all-reduce        joining.take_over()    waits for the leaver's state
  decide(sum) is SWITCH on all at one step
if not switch.switch(step): leave                training goes on at step + 1
"""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from paceline.trainer.groups.stores import generation_store
from paceline.trainer.switch.agree import Ballot, Decision, Preparing
from paceline.trainer.switch.errors import PrepareFailed
from paceline.trainer.switch.preparation import Preparation
from paceline.trainer.switch.transfer import JOINER, LEAVER, Transfer

TAKE_OVER_WAIT_S = 600.0  # a prepared joiner waits so long for the others to become ready
_DIGEST_BYTES = 32


class ReplaceableGroups(Protocol):
    """The part of `paceline.trainer.groups.Groups` that is used here."""

    job: str
    backend: Any

    def prepare(
        self, generation: int, attempt: int, store: Any, rank: int, size: int, timeout_s: float
    ) -> Any: ...

    def switch(self, prepared: Any) -> Any: ...


Connect = Callable[[], Any]  # a client of the control store for the calling thread alone


@dataclass(frozen=True)
class SwitchOrder:
    """The same for every participant. `digest` is that of the plan that each has computed;
    `timeout_s` bounds the preparation, and each message of the transfer."""

    generation: int
    attempt: int
    leaver: int  # rank, which the joiner takes over
    size: int
    digest: str
    timeout_s: float = 60.0


@dataclass
class _Ready:
    prepared: Any = None  # new groups; None at the leaver
    transfer: Transfer | None = None  # None at a stayer


class PlannedSwitch:
    """At a rank that trains. All methods but `start`'s thread belong to the training thread."""

    def __init__(
        self,
        groups: ReplaceableGroups,
        order: SwitchOrder,
        rank: int,
        connect: Connect,
        tensors: Mapping[str, Any],
    ) -> None:
        self._groups = groups
        self._order = order
        self._rank = rank
        self._connect = connect
        self._tensors = tensors
        self._ballot = Ballot(order.size)
        self._preparation = Preparation(self._prepare, order.timeout_s)

    @property
    def leaves(self) -> bool:
        return self._rank == self._order.leaver

    @property
    def error(self) -> BaseException | None:
        """Why this rank could not prepare."""
        return self._preparation.error

    @property
    def prepare_s(self) -> float:
        return self._preparation.took_s

    def start(self) -> None:
        """Begin to prepare; training goes on."""
        self._preparation.start()

    def vote(self) -> float:
        """This rank's part of the sum, for the next all-reduce of training."""
        return self._ballot.vote(self._preparation.state())

    def decide(self, total: float) -> Decision:
        """Of the sum of votes, on every rank at the same step. A cancelled switch is over."""
        decision = self._ballot.decide(total)
        if decision in (Decision.CANCEL, Decision.UNREADABLE):
            self._drop()
        return decision

    def switch(self, step: int) -> bool:
        """At the end of `step`, where SWITCH was decided. True: this rank trains on, in the new groups;
        False: it has handed its state over and has to end."""
        ready = self._preparation.result()
        if ready.transfer is not None:
            ready.transfer.hand_over(step)
            _keep(ready.transfer)
            return False
        self._groups.switch(ready.prepared)
        return True

    def _prepare(self) -> _Ready:
        store, order = self._connect(), self._order
        if self.leaves:
            transfer = make_transfer(self._groups, order, store, LEAVER, self._tensors)
            transfer.offer(order.digest)
            return _Ready(transfer=transfer)
        prepared = self._groups.prepare(
            order.generation, order.attempt, store, self._rank, order.size, order.timeout_s
        )
        confirm(prepared, self._rank, order.digest)
        return _Ready(prepared=prepared)

    def _drop(self) -> None:
        """Let go of what was prepared, off the training thread: closing a group takes tens of ms."""
        if self._preparation.state() is not Preparing.READY:
            return
        ready = self._preparation.result()
        self._preparation = Preparation(self._prepare, self._order.timeout_s)

        def drop() -> None:
            if ready.transfer is not None:
                ready.transfer.cancel()
            ready.prepared = ready.transfer = None

        threading.Thread(target=drop, name="paceline-drop", daemon=True).start()


class Joining:
    """At the standby that takes the leaver's rank. It trains nothing meanwhile and may block."""

    def __init__(
        self, groups: ReplaceableGroups, order: SwitchOrder, connect: Connect, tensors: Mapping[str, Any]
    ) -> None:
        self._groups = groups
        self._order = order
        self._connect = connect
        self._tensors = tensors
        self._ready = _Ready()

    def prepare(self) -> None:
        """PrepareFailed where plan or tensors differ from the leaver's; the others learn it at once."""
        order, store = self._order, self._connect()
        transfer = make_transfer(self._groups, order, store, JOINER, self._tensors)
        refused: PrepareFailed | None = None
        try:
            transfer.accept(order.digest)
        except PrepareFailed as error:
            refused = error
        prepared = self._groups.prepare(
            order.generation, order.attempt, store, order.leaver, order.size, order.timeout_s
        )
        try:
            confirm(prepared, order.leaver, "" if refused else order.digest)
        except PrepareFailed as error:
            raise refused or error from None
        self._ready = _Ready(prepared, transfer)

    def take_over(self, wait_s: float = TAKE_OVER_WAIT_S) -> int:
        """Wait for the state, enter the new groups; the step after which training goes on."""
        if self._ready.transfer is None:
            raise ValueError("prepare first")
        step = self._ready.transfer.take_over(wait_s)
        self._groups.switch(self._ready.prepared)
        _keep(self._ready.transfer)
        return step


# Groups of two that have done their work: closing one takes 20 ms with the GIL held, so not in the switch.
_kept: list[Transfer] = []


def _keep(transfer: Transfer) -> None:
    _kept.append(transfer)


def make_transfer(
    groups: ReplaceableGroups, order: SwitchOrder, store: Any, place: int, tensors: Mapping[str, Any]
) -> Transfer:
    """The group of leaver and joiner, apart from those of the job."""
    _kept.clear()  # at most one was kept: the switch before this one is over
    own = generation_store(store, f"{groups.job}/transfer", order.generation, order.attempt)
    group = groups.backend.build(own, place, 2, order.generation, order.timeout_s, order.timeout_s)
    return Transfer(group, place, tensors, order.timeout_s)


def confirm(prepared: Any, rank: int, digest: str) -> None:
    """Every new member is there and follows the same plan, or PrepareFailed on all of them.

    Also the first collective on each connection: lazy ones are made now and not in the switch.
    """
    import torch

    mine = torch.frombuffer(bytearray(_digest_bytes(digest)), dtype=torch.uint8)
    for inner in prepared.inner.values():
        everybody = [torch.zeros(_DIGEST_BYTES, dtype=torch.uint8) for _ in range(inner.size())]
        inner.allgather([everybody], [mine]).wait()
        others = [at for at, seen in enumerate(everybody) if not torch.equal(seen, mine)]
        if others or not digest:
            raise PrepareFailed(f"rank {rank} and members {others[:8]} of a new group do not follow one plan")


def _digest_bytes(digest: str) -> bytes:
    try:
        content = bytes.fromhex(digest)
    except ValueError:
        content = b""
    return content[:_DIGEST_BYTES].ljust(_DIGEST_BYTES, b"\0")
