"""The traffic of one generation: shards to their keeper, acknowledgements, and what is committed.

Nothing here touches the training thread. Every thread ends when the generation is closed; every
connection, queue and wait is bounded.
"""

import logging
import queue
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from paceline.trainer.protection import ring, wire
from paceline.trainer.protection.checksum import checksum
from paceline.trainer.protection.commit import CommitTracker
from paceline.trainer.protection.errors import WireError
from paceline.trainer.protection.identity import Member, Part
from paceline.trainer.protection.memory import memory_of
from paceline.trainer.protection.slots import NEVER, Slot, Slots
from paceline.trainer.protection.wire import Channel

log = logging.getLogger("paceline.protection")

HANDSHAKE_S = 5.0
RETRY_S = 0.02
RETRY_MAX_S = 0.2
BODY_S = 60.0  # without a byte; a frozen peer must not hold the slots
OFFERS_MAX = 4
SHARD_BYTES_MAX = 64 << 30


class Generation:
    """One rank's part in one generation: whom it sends to, whom it keeps, and the tree of commits.

    `start` connects, also while another generation goes on; copies are taken from peers once it is entered.
    """

    def __init__(
        self,
        rank: int,
        members: Sequence[Member],
        key: bytes,
        number: int,
        kept: Slots,
        on_commit: Callable[[int], None],
        on_equal: Callable[[int, str, str], None] = lambda step, shard, checksum: None,
        shard_bytes_max: int = SHARD_BYTES_MAX,
    ) -> None:
        ranks = [member.rank for member in members]
        self.rank, self.key, self.number = rank, key, number
        self._endpoints = {member.rank: member.replica for member in members}
        self._held = ring.holders(members)
        self._keeps = {one for one, holder in self._held.items() if holder == rank}
        self._shard_bytes_max = shard_bytes_max
        self._kept = kept
        self._floor = NEVER
        self._tracker = CommitTracker(ranks, rank, NEVER)
        self._lock = threading.Lock()
        self._on_commit, self._on_equal = on_commit, on_equal
        self._offers: queue.Queue[Slot | None] = queue.Queue(OFFERS_MAX)
        self._children: dict[int, Channel] = {}
        self._up: Channel | None = None
        self._open: list[Channel] = []
        self.closed = threading.Event()
        self._entered = threading.Event()  # also once it is closed, so that nobody waits for it any more
        self._linked: dict[str, threading.Event] = {}  # by what the link is for
        self.sending_s = 0.0  # of the last copy, its check by the keeper included
        self.refused_frames = 0
        self._threads: list[threading.Thread] = []

    @property
    def committed(self) -> int:
        return self._tracker.committed

    def start(self) -> None:
        """Connect to the keeper and to the parent in the background."""
        links = (
            ("replica", self.rank in self._held, self._send_offers),
            ("commit", self._tracker.parent is not None, self._follow_parent),
        )
        self._linked = {role: threading.Event() for role, needed, _ in links if needed}
        for role, needed, run in links:
            if needed:
                self._spawn(run, f"paceline-{role}")

    def await_links(self, limit_s: float) -> bool:
        """Whether this rank has reached its keeper and its parent within `limit_s`."""
        until_s = time.monotonic() + limit_s
        return all(link.wait(max(0.0, until_s - time.monotonic())) for link in self._linked.values())

    def enter(self, restored: int = NEVER) -> None:
        """Take part from now on. `restored`: a step that every member holds a copy of itself, so that of the
        kept copies one step before it is enough."""
        self._floor = restored - 1
        self._entered.set()

    def offer(self, slot: Slot) -> None:
        """This rank's own copy is sealed: send what is its alone, and count it when it is kept."""
        if self.rank not in self._held:
            self._acknowledge(slot.record.step if slot.record else NEVER)
            return
        try:
            self._offers.put_nowait(slot)
        except queue.Full:  # the newest comes with the next one; nothing is committed meanwhile
            log.debug("the keeper is %d copies behind", OFFERS_MAX)

    def close(self) -> None:
        """End all connections and threads of this generation; what is sealed stays."""
        self.closed.set()
        self._entered.set()
        for channel in list(self._open):  # whoever holds the lock may stand in one of them
            channel.close()
        with self._lock:
            channels, self._open = list(self._open), []
        for channel in channels:
            channel.close()
        try:
            self._offers.put_nowait(None)
        except queue.Full:
            pass

    def serve(self, channel: Channel, hello: Mapping[str, Any]) -> None:
        """A peer connected to this rank's server: serve it until it leaves. Raises OSError, WireError."""
        role, rank = wire.text(hello, "role"), wire.number(hello, "rank")
        theirs = wire.number(hello, "generation")
        if theirs != self.number or self.closed.is_set():
            self.refused_frames += 1
            channel.send({"kind": "refused", "older": theirs < self.number, "generation": self.number})
            return
        self._remember(channel)
        try:
            self._serve(channel, role, rank)
        finally:
            self._forget(channel)

    def _serve(self, channel: Channel, role: str, rank: int) -> None:
        if role == "replica" and rank in self._keeps:
            channel.send({"kind": "welcome"})
            channel.set_timeout(None)
            self._keep(channel, rank)
        elif role == "commit" and rank in self._tracker.children:
            with self._lock:
                self._children[rank] = channel
                channel.send({"kind": "welcome"})
                if self._tracker.committed > NEVER:
                    self._post(channel, self._tracker.committed)
            channel.set_timeout(None)
            self._follow_child(channel, rank)
        else:
            raise WireError(f"rank {rank} has no business here as {role!r}")

    def _keep(self, channel: Channel, rank: int) -> None:
        while not self.closed.is_set():
            header = channel.receive()
            self._refuse_other_generations(header)
            self._entered.wait()  # a peer is there a moment before this rank
            if self.closed.is_set():
                return
            step, shard = wire.number(header, "step"), wire.text(header, "shard")
            wanted = wire.text(header, "checksum")
            if header.get("set"):
                self._on_equal(step, wire.text(header, "set"), wire.text(header, "equal"))
            with self._kept.lock:
                if header.get("kind") == "ask":
                    slot = self._kept.at(step, shard)
                    answer = "kept" if slot is not None and wanted in slot.checksums.values() else "want"
                else:
                    answer = "kept" if self._receive(channel, header, rank) else "bad"
            channel.send({"kind": answer, "step": step, "generation": self.number})

    def _receive(self, channel: Channel, header: dict[str, Any], rank: int) -> bool:
        """The body that follows `header`, into a slot; whether it is sealed. With the lock held."""
        step, shard = wire.number(header, "step"), wire.text(header, "shard")
        length = wire.number(header, "bytes", self._shard_bytes_max, 0)
        committed = max(self.committed, wire.number(header, "committed"), self._floor)
        slot = self._kept.choose(shard, committed)
        if slot is None:
            raise WireError(f"rank {rank} sends step {step}, but both slots are still needed")
        opened = slot.open(wire.number(header, "origin"), step, rank, {Part.OWN: shard})
        good = False
        try:
            channel.set_timeout(BODY_S)
            content = self._room(slot, length)
            channel.receive_into(memory_of(content))
            channel.set_timeout(None)
            good = checksum(content) == header["checksum"] and not self.closed.is_set()
        finally:
            if good:
                good = slot.seal({Part.OWN: header["checksum"]}, opened)
            else:
                slot.clear(opened)
        return good

    def _room(self, slot: Slot, length: int) -> Any:
        try:
            return slot.buffer(Part.OWN).reserve(length)
        except (RuntimeError, MemoryError) as error:  # torch has no more memory for it
            raise WireError(f"no room for a copy of {length} bytes: {error}") from error

    def _refuse_other_generations(self, header: dict[str, Any]) -> None:
        if wire.number(header, "generation") != self.number:
            self.refused_frames += 1
            raise WireError(f"a frame of generation {header['generation']}, here it is {self.number}")

    def _send_offers(self) -> None:
        endpoint = self._endpoints[self._held[self.rank]]
        pending: Slot | None = None
        while not self.closed.is_set():
            channel, ask = self._connect(endpoint, "replica"), True
            try:
                while not self.closed.is_set():
                    pending = pending or self._offers.get()
                    if pending is None:
                        return
                    self._send(channel, pending, ask)
                    pending, ask = None, False
            except (OSError, WireError) as error:
                log.info("the link to the keeper at %s broke: %s", endpoint, error)
            finally:
                self._forget(channel)
            self.closed.wait(RETRY_S)

    def _send(self, channel: Channel, slot: Slot, ask: bool) -> None:
        """`ask`: first on this link, so the keeper may have it already, from before or unacknowledged."""
        record = slot.record
        if record is None or not record.sealed:
            return
        content = slot.buffer(Part.OWN).content()
        header = {
            "kind": "data",
            "generation": self.number,
            "origin": record.generation,
            "step": record.step,
            "committed": self.committed,
            "shard": slot.shards[Part.OWN],
            "checksum": slot.checksums[Part.OWN],
            "bytes": content.numel(),
            "set": slot.shards.get(Part.SHARED, ""),
            "equal": slot.checksums.get(Part.SHARED, ""),
        }
        if ask:
            channel.send({**header, "kind": "ask"})
            if self._answer(channel, record.step) == "kept":
                self._acknowledge(record.step)
                return
        started_s = time.monotonic()
        channel.send(header, memory_of(content))
        if self._answer(channel, record.step) != "kept":
            raise WireError(f"step {record.step} reached the keeper with another checksum")
        self.sending_s = time.monotonic() - started_s
        self._acknowledge(record.step)

    def _answer(self, channel: Channel, step: int) -> str:
        answer = channel.receive()
        self._refuse_other_generations(answer)
        if wire.number(answer, "step") != step:
            raise WireError(f"the keeper answers to step {answer['step']}, asked was {step}")
        return wire.text(answer, "kind")

    def _acknowledge(self, step: int) -> None:
        with self._lock:
            self._tell_up(self._tracker.acknowledge(step))

    def _tell_up(self, step: int | None) -> None:
        """With the lock held."""
        if step is None:
            return
        if self._tracker.parent is None:
            self._tell_down(self._tracker.commit(step))
        elif self._up is not None:
            self._post(self._up, step)

    def _tell_down(self, step: int | None) -> None:
        """With the lock held."""
        if step is None:
            return
        self._on_commit(step)
        for channel in list(self._children.values()):
            self._post(channel, step)

    def _post(self, channel: Channel, step: int) -> None:
        try:
            channel.send({"kind": "step", "generation": self.number, "step": step})
        except OSError as error:
            log.debug("a link of the tree of commits is gone: %s", error)

    def _follow_child(self, channel: Channel, rank: int) -> None:
        while not self.closed.is_set():
            message = channel.receive()
            self._refuse_other_generations(message)
            with self._lock:
                self._tell_up(self._tracker.from_child(rank, wire.number(message, "step")))

    def _follow_parent(self) -> None:
        endpoint = self._endpoints[self._tracker.parent or 0]
        while not self.closed.is_set():
            channel = self._connect(endpoint, "commit")
            try:
                with self._lock:
                    self._up = channel
                    if self._tracker.subtree > NEVER:
                        self._post(channel, self._tracker.subtree)
                while not self.closed.is_set():
                    message = channel.receive()
                    self._refuse_other_generations(message)
                    with self._lock:
                        self._tell_down(self._tracker.commit(wire.number(message, "step")))
            except (OSError, WireError) as error:
                log.info("the link to the parent at %s broke: %s", endpoint, error)
            finally:
                self._forget(channel)
            self.closed.wait(RETRY_S)

    def _connect(self, endpoint: str, role: str) -> Channel:
        """Try until it works or the generation ends; the peer may enter the generation after us."""
        wait_s = RETRY_S
        while not self.closed.is_set():
            try:
                channel = self._greet(endpoint, role)
                if channel is not None:
                    return channel
                wait_s = RETRY_S  # it is a moment behind us
            except (OSError, WireError) as error:
                log.debug("no connection to %s yet: %s", endpoint, error)
            self.closed.wait(wait_s)
            wait_s = min(2 * wait_s, RETRY_MAX_S)
        raise ConnectionAbortedError("the generation ended")

    def _greet(self, endpoint: str, role: str) -> Channel | None:
        """One attempt; None where the peer is in another generation. Raises OSError, WireError."""
        host, _, port = endpoint.rpartition(":")
        sock = socket.create_connection((host, int(port)), HANDSHAKE_S)
        try:
            channel = Channel(sock, self.key, is_client=True, handshake_s=HANDSHAKE_S)
            channel.send({"role": role, "rank": self.rank, "generation": self.number})
            if channel.receive().get("kind") != "welcome":
                sock.close()
                return None
            channel.set_timeout(None)
        except BaseException:
            sock.close()
            raise
        self._remember(channel)
        self._linked[role].set()
        return channel

    def _remember(self, channel: Channel) -> None:
        with self._lock:
            self._open.append(channel)
        if self.closed.is_set():
            channel.close()

    def _forget(self, channel: Channel) -> None:
        with self._lock:
            if channel in self._open:
                self._open.remove(channel)
        channel.close()

    def _spawn(self, target: Callable[[], None], name: str) -> None:
        thread = threading.Thread(target=self._guarded, args=(target,), name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _guarded(self, target: Callable[[], None]) -> None:
        try:
            target()
        except (OSError, WireError) as error:
            log.debug("%s ended: %s", threading.current_thread().name, error)
