"""Protection of one rank, step by step: the object that the training loop talks to."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

from paceline.trainer.guard import Guard
from paceline.trainer.protection import copier, ring
from paceline.trainer.protection.budget import (
    INTERVAL_STEPS_MAX,
    OVERHEAD_MAX,
    Budget,
    Costs,
    Coverage,
    budget,
)
from paceline.trainer.protection.checksum import checksum
from paceline.trainer.protection.copier import Copier, Stream
from paceline.trainer.protection.identity import Holding, Member, Part, Place, ShardIdentity
from paceline.trainer.protection.overruns import OverrunWatch, Taken
from paceline.trainer.protection.replica import Generation
from paceline.trainer.protection.server import Server, settle
from paceline.trainer.protection.slots import NEVER, Slot, Slots
from paceline.trainer.protection.state import Protected, Snapshot

log = logging.getLogger("paceline.protection")

CHECK_S = 0.002  # how often a waiting training thread looks whether its generation has ended
NOTICED_STALL_S = 0.0001  # a shorter wait is the lock itself
SETTLE_S = 15.0  # that a restore waits for a copy in progress, below the limit of one attempt to rebuild
PEERS_MAX = 4
CAPTURES_KEPT = 32
Clock = Callable[[], float]


@dataclass
class Counters:
    """What protection did and cost since the start; seconds are those of the training thread."""

    protected: int = 0
    skipped: int = 0
    overruns: int = 0
    stall_s: float = 0.0
    stall_max_s: float = 0.0
    capture_s: float = 0.0
    timeouts: int = 0
    bytes_own: int = 0
    bytes_shared: int = 0
    copy_s: float = 0.0  # of the last copy, on the copier's thread
    seal_s: float = 0.0
    list_s: float = 0.0  # of copy_s, in Python


class Protector:
    """Copies the state after each step, has the neighbour keep what is this rank's alone.

    Nothing here raises into training, with one exception that the caller asks for: `check` is called
    while `before_write` waits, and what it raises ends the wait (a generation that has ended).

    A gate before the optimizer's step keeps the promise of one replayed step: the copy of the step before
    is complete and committed by then. It is hung on the optimizers by itself; where none of the protected
    objects is a torch optimizer, `begin_step` is the gate. What it waits is an overrun, counted and logged.
    After `stall_max_s` it lets training go on, and the last committed copies stay as they are.
    """

    def __init__(
        self,
        protected: Protected,
        identity: ShardIdentity | None = None,
        *,
        clock: Clock = time.monotonic,
        interval_steps: int = 1,
        check: Callable[[], None] | None = None,
        stall_max_s: float = 30.0,
        host: str = "127.0.0.1",
    ) -> None:
        if interval_steps < 1:
            raise ValueError(f"interval_steps is {interval_steps}, expected at least 1")
        self.protected = protected
        self.identity = identity
        self.counters = Counters()
        self.guard = Guard()
        self.history: list[tuple[int, int]] = []
        self.finished = NEVER
        self.interval_steps = interval_steps
        self._clock, self._check, self._stall_max_s = clock, check, stall_max_s
        on_device = _on_device(protected)
        self.own = Slots(Place.OWN, on_device)
        self.kept = Slots(Place.REPLICA, on_device)
        self._stream = Stream(on_device)
        self._copier = Copier(self.guard.trip)
        self._server = Server(host)
        self._generation: Generation | None = None
        self._coming: Generation | None = None  # prepared, while the present one goes on
        self._members: Sequence[Member] = ()
        self._changed = threading.Condition()
        self._copying = False  # live tensors are being read
        self._sealing = False  # ... or their copy is not sealed yet
        self._captured = NEVER
        self._captures_s: deque[float] = deque(maxlen=CAPTURES_KEPT)
        self._copies_s: deque[tuple[float, float, float]] = deque(maxlen=CAPTURES_KEPT)  # copy, seal, list
        self.overruns = OverrunWatch()
        self._behind = ""
        self._differs = ""
        self._peers: dict[int, tuple[str, str]] = {}  # shared checksums by step, until our own is known
        self._hooks: list[Any] = []
        self.protect(protected)

    @property
    def endpoint(self) -> str:
        """host:port of this rank's replica server, for the other members."""
        return self._server.endpoint

    @property
    def generation(self) -> int:
        return self._generation.number if self._generation is not None else NEVER

    def protect(self, protected: Protected) -> None:
        """Copy these objects from now on; only while nothing is captured, as before the first `join`."""
        for hook in self._hooks:
            hook.remove()
        self.protected = protected
        self._captures_s.clear()
        self._copies_s.clear()
        self._hooks = [
            optimizer.register_step_pre_hook(self._before_optimizer) for optimizer in protected.optimizers
        ]

    def rehearse(self) -> None:
        """In a standby: touch what copies need, run their code and that of a load once; no copy stays.

        Where it fails the first steps are slower: what keeps failing turns protection off there.
        """
        try:
            self._rehearse()
        except Exception as error:
            log.warning("copies could not be rehearsed: %r", error)

    def _rehearse(self) -> None:
        snapshot = self.protected.capture()
        self._stream.mark()
        snapshot.complete()
        for slot in self.own.all:
            copier.reserve(snapshot, slot)
            self._stream.copy(snapshot, slot)
            for part in Part:
                checksum(slot.buffer(part).content())
        first = self.own.all[0]
        self.protected.load(first.buffer(Part.OWN).content(), first.buffer(Part.SHARED).content())
        for slot in self.kept.all:  # the neighbour's own part is about as large
            slot.buffer(Part.OWN).reserve(snapshot.ends[Part.OWN]).zero_()

    def join(
        self,
        identity: ShardIdentity,
        members: Sequence[Member],
        key: bytes,
        generation: int,
        held: int | None = None,
    ) -> None:
        """Enter a generation: from now on copies go to its ring, and older ones are refused.

        A standby gets its identity here. Copies that this rank has are offered to the new ring again. `held`:
        the step of which every member has a copy of its own, where it is not that of the last restore.
        """
        if generation <= self.generation:
            raise ValueError(f"generation {generation} is not newer than {self.generation}")
        self.leave()
        self.overruns.restart()
        self.identity, self._members = identity, tuple(members)
        self._behind = self._differs = ""
        self._peers.clear()
        restored = self.history[-1][1] if self.history else NEVER
        held = restored if held is None else held
        prepared = self._take_coming(generation)
        current = prepared or self._make(identity.rank, members, key, generation)
        self._generation = self._server.generation = current
        current.enter(held)
        if prepared is None:
            current.start()
        newest = self.own.at(self.own.newest(), identity.shard(Part.OWN))
        self._captured = newest.record.step if newest is not None and newest.record is not None else NEVER
        if newest is not None:
            current.offer(newest)

    def prepare(
        self, rank: int, members: Sequence[Member], key: bytes, generation: int, limit_s: float
    ) -> bool:
        """Connect the ring of a generation that may come, while the present one goes on; from any thread.

        `join` of that generation finds it. False where a peer was not reached within `limit_s`, where the key
        is not the present one's, and where a newer one is prepared: nothing is prepared for it then.
        """
        if self._generation is not None and self._generation.key != key:
            return False
        coming = self._make(rank, members, key, generation)
        with self._changed:
            older = self._coming
            if older is not None and older.number > generation:
                return False  # who was called off late does not end what is prepared now
            self._coming = self._server.coming = coming
        if older is not None:
            older.close()
        coming.start()
        if coming.await_links(limit_s):
            return True
        self.drop(generation)
        return False

    def drop(self, generation: int) -> None:
        """What was prepared for `generation` is not needed; nothing where something else is prepared."""
        coming = self._take_coming(generation)
        if coming is not None:
            coming.close()

    def _take_coming(self, generation: int) -> Generation | None:
        with self._changed:
            coming = self._coming
            if coming is None or coming.number != generation:
                return None
            self._coming = self._server.coming = None
            return coming

    def _make(self, rank: int, members: Sequence[Member], key: bytes, generation: int) -> Generation:
        return Generation(rank, members, key, generation, self.kept, self._note_commit, self._compare)

    def leave(self) -> None:
        """End the traffic of the current generation; copies stay."""
        if self._generation is not None:
            self._generation.close()

    def close(self) -> None:
        """End everything; the optimizers are as before."""
        for hook in self._hooks:
            hook.remove()
        self.leave()
        coming = self._coming
        if coming is not None:
            self.drop(coming.number)
        self._server.close()
        self._copier.close()

    def begin_step(self) -> None:
        """At the start of a step; waits only where no optimizer tells when it is going to write."""
        if not self._hooks:
            self.before_write()

    def before_write(self) -> None:
        """Right before the protected tensors are written: waits until the copy of them is safe.

        Raises only what `check` raises.
        """
        if self._is_free() or self.guard.off:
            return
        started_s = self._clock()
        deadline_s = started_s + self._stall_max_s
        try:
            with self._changed:
                while not self._is_free() and not self.guard.off:
                    if self._check is not None:
                        self._check()
                    if self._clock() >= deadline_s:
                        self._give_up_waiting()
                        return
                    self._changed.wait(CHECK_S)
        finally:
            self._count_stall(self._clock() - started_s)

    def end_step(self, step: int) -> None:
        """After step `step`: begin its copy. Costs the training thread a listing and the small tensors."""
        due = self.identity is not None and step % self.interval_steps == 0
        if due and not self._is_free():  # the optimizer did not step, as when a scaler skips an overflow
            self._wait_quietly()
        self.finished = step
        started_s = self._clock()
        if due and not self.guard.off:
            self.guard.attempt("end_step", partial(self._protect, step))
            self._captures_s.append(self._clock() - started_s)
            self.counters.capture_s += self._captures_s[-1]
        counters = self.counters
        taken = self.overruns.end_step(started_s, counters.overruns, counters.stall_s, counters.capture_s)
        if taken is not None:
            self._tell_overrun(taken)

    def committed(self) -> int:
        """The newest step that every rank's copy is safe of, in this generation; -1 for none."""
        return self._generation.committed if self._generation is not None else NEVER

    def status(self) -> tuple[str, str]:
        """(`protected` | `degraded` | `off`, why); where protection takes too much time, how much."""
        if self.guard.off:
            return "off", self.guard.reason
        if self._generation is None or self.identity is None:
            return "degraded", "not a member of a generation yet"
        if self._behind or self._differs:
            return "degraded", self._behind or self._differs
        if self.committed() < self._captured - self.interval_steps or self.committed() == NEVER:
            return "degraded", f"step {self._captured} is captured, {self.committed()} committed"
        exposed = ring.unprotected(self._members)
        if exposed:
            return "degraded", f"no keeper in another failure domain for ranks {exposed[:8]}"
        taken = self.overruns.newest
        return "protected", str(taken) if taken is not None and taken.exceeds else ""

    def budget(self, step_s: float, optimizer_s: float = 0.0, free_share: float = 1.0) -> Budget:
        """What protection costs, from the newest copies' own times, and the interval that it can hold.

        To be asked after some protected steps. `free_share`: see `Costs`.
        """
        sending_s = self._generation.sending_s if self._generation is not None else 0.0
        capture_s = median(self._captures_s) if self._captures_s else 0.0
        copies_s = list(self._copies_s) or [(0.0, 0.0, 0.0)]  # the copier's thread may append meanwhile
        copy_s, seal_s, list_s = (median(column) for column in zip(*copies_s, strict=True))
        return budget(Costs(copy_s, seal_s, sending_s, capture_s, step_s, optimizer_s, free_share, list_s))

    def coverage(self) -> Coverage:
        """What has a second copy, and where; to be asked after the first protected step."""
        rank = self.identity.rank if self.identity is not None else NEVER
        alone = rank in ring.unprotected(self._members) or not self._members
        exposed = [f"what rank {rank} alone holds: no keeper in another failure domain"] if alone else []
        if len({member.failure_domain for member in self._members}) < 2 and self.counters.bytes_shared:
            exposed.append("parameters: all replicas are in one failure domain")
        skipped = self.protected.shared_optimizer_bytes()
        return Coverage(self.counters.bytes_shared, self.counters.bytes_own, skipped, tuple(exposed))

    def settle(self, timeout_s: float = SETTLE_S) -> bool:
        """After a fault, with the training thread standing: let copies in progress come to their end.

        False where one still reads the live tensors or writes a slot: neither may be written then.
        """
        deadline_s = self._clock() + timeout_s
        with self._changed:
            while self._sealing and self._clock() < deadline_s:
                self._changed.wait(CHECK_S)
            settled = not self._sealing
        settle(self.kept, min(timeout_s, 0.25), self._clock)
        return settled

    def holdings(self) -> list[Holding]:
        """Every sealed copy that this rank can give."""
        return [*self.own.holdings(), *self.kept.holdings()]

    def adopt(self, step: int, generation: int) -> None:
        """A restore to `step` is complete: forget what came after it, and remember that it happened."""
        self.history.append((generation, step))
        self.own.keep_only(step)
        self.kept.keep_only(step)
        self.finished = step

    def _protect(self, step: int) -> None:
        identity = self.identity
        if identity is None:
            return
        with self._changed:
            shard = identity.shard(Part.OWN)
            slot = None if self._sealing else self.own.choose(shard, self.committed())
        if slot is None:
            self.counters.skipped += 1
            return
        snapshot = self.protected.capture()
        self._stream.mark()
        self._copying = self._sealing = True
        self._captured = step
        try:
            self._copier.submit(partial(self._copy, snapshot, slot, step, identity, self._generation))
        except Exception:
            self._tell(copying=False, sealing=False)  # or no restore would ever find it settled
            raise

    def _copy(
        self,
        snapshot: Snapshot,
        slot: Slot,
        step: int,
        identity: ShardIdentity,
        generation: Generation | None,
    ) -> None:
        """On the copier's thread."""
        try:
            started_s = self._clock()
            snapshot.complete()
            shared = Part.SHARED if snapshot.ends[Part.SHARED] else Part.OWN
            number = generation.number if generation is not None else NEVER
            shards = {part: identity.shard(part) for part in (Part.OWN, shared)}
            opened = slot.open(number, step, identity.rank, shards)
            copier.reserve(snapshot, slot)
            listed_s = self._clock()
            self._stream.copy(snapshot, slot)
            copied_s = self._clock()
            self._tell(copying=False)
            if self.guard.off:  # nobody waited for the end of it, so it may be torn
                slot.clear(opened)
                return
            if not slot.seal(copier.checksums(slot), opened):
                return  # the slot has another content by now
            self.counters.copy_s = copied_s - started_s
            self.counters.list_s = listed_s - started_s
            self.counters.seal_s = self._clock() - copied_s
            self._copies_s.append((self.counters.copy_s, self.counters.seal_s, self.counters.list_s))
            self._compare_at(step)
        finally:
            self._tell(copying=False, sealing=False)
        self.counters.bytes_own = slot.buffer(Part.OWN).used
        self.counters.bytes_shared = slot.buffer(Part.SHARED).used
        self.counters.protected += 1
        if generation is not None and not generation.closed.is_set():
            generation.offer(slot)

    def _tell(self, *, copying: bool, sealing: bool = True) -> None:
        with self._changed:
            self._copying, self._sealing = copying, sealing
            self._changed.notify_all()

    def _is_free(self) -> bool:
        if self._copying:
            return False
        if self._generation is None or self._behind:
            return True
        if (self.finished + 1) % self.interval_steps:  # nothing is captured after the coming step
            return True
        return self._generation.committed >= self._captured

    def _wait_quietly(self) -> None:
        try:
            self.before_write()
        except Exception as error:  # what `check` raises will be raised again by the next collective
            log.debug("the generation ended at the end of a step: %s", error)

    def _compare(self, step: int, shard: str, checksum: str) -> None:
        """A peer's checksum of what should be equal on both; from the server's threads."""
        with self._changed:
            self._peers[step] = (shard, checksum)
            for old in sorted(self._peers)[:-PEERS_MAX]:
                del self._peers[old]
        self._compare_at(step)

    def _compare_at(self, step: int) -> None:
        with self._changed:
            shard, theirs = self._peers.get(step, ("", ""))
            slot = self.own.at(step, shard)
            if slot is None or slot.checksums.get(Part.SHARED) == theirs or self._differs:
                return
            self._differs = f"step {step}: {shard} is not equal on two replicas, so it cannot be restored"
        log.warning("%s; protect it as `sharded`, or look for silent corruption", self._differs)

    def _give_up_waiting(self) -> None:
        self.counters.timeouts += 1
        if self._copying:
            self.guard.trip("copy", TimeoutError(f"a copy did not end within {self._stall_max_s} s"))
            return
        self._behind = f"step {self._captured} was not committed within {self._stall_max_s} s"
        log.warning("protection is behind (%s); training goes on, older copies stay", self._behind)

    def _note_commit(self, step: int) -> None:
        with self._changed:
            if step >= self._captured:
                self._behind = ""
            self._changed.notify_all()

    def _count_stall(self, seconds: float) -> None:
        if seconds < NOTICED_STALL_S:
            return
        self.counters.overruns += 1
        self.counters.stall_s += seconds
        self.counters.stall_max_s = max(self.counters.stall_max_s, seconds)

    def _tell_overrun(self, taken: Taken) -> None:
        try:
            found = self.budget(taken.step_s)
            advice = "fewer, larger or longer steps leave more room"
            if self.interval_steps < found.interval_steps < INTERVAL_STEPS_MAX:
                advice = f"a copy every {found.interval_steps} steps would keep within {OVERHEAD_MAX:.0%}"
            log.warning("%s; %s (%s: %s)", taken, advice, found.reason.value, found.detail)
        except Exception as error:  # advice is no reason to end protection
            log.warning("%s; no advice: %r", taken, error)

    def _before_optimizer(self, *_: Any) -> None:
        self.before_write()


def _on_device(protected: Protected) -> bool:
    snapshot = protected.capture()
    snapshot.complete()
    return any(captured.tensor.is_cuda for captured in snapshot.tensors)
