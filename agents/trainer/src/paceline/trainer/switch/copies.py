"""A leaver's protected copy to its joiner: the bytes that were copied after the step for any recovery.

So nothing reads live tensors in the switch, and the joiner can give the copy to others from then on. The two
are connected, and have compared what they hold, before the switch; at its boundary the bytes follow one
another on that connection without a question between them.

leaver -> joiner: offer and manifest | at the boundary: state, header, parts; or cancel
joiner -> leaver: accepted or refused | arrived or damaged
"""

import json
import secrets
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from paceline.trainer.protection import wire
from paceline.trainer.protection.errors import WireError
from paceline.trainer.protection.memory import memory_of
from paceline.trainer.protection.wire import Channel
from paceline.trainer.switch.errors import PrepareFailed, SwitchCancelled, TransferFailed

TEXT_BYTES_MAX = 16 << 20  # of a manifest or a header
RATE_BYTES_S = 64 << 20  # below this a transfer counts as stuck, on any network that training can use
ANSWER_S = 10.0  # of a message, and what a transfer of nothing may take
PIECE_BYTES = 8 << 20  # between two looks at the clock
KEY_BYTES = 32
ADDRESS_BYTES_MAX = 512
Clock = Callable[[], float]


def limit_s(size: int) -> float:
    """How long `size` bytes may take."""
    return ANSWER_S + size / RATE_BYTES_S


class Link:
    """One end of the connection. `manifest`: JSON rows [name, ...] of what the leaver has to give and the
    joiner has room for; `digest`: of the plan that this side follows."""

    def __init__(self, channel: Channel, digest: str, manifest: bytes, clock: Clock = time.monotonic) -> None:
        self._channel = channel
        self._offered = digest.encode() + b"\n" + manifest
        self._clock = clock
        channel.set_timeout(ANSWER_S)

    def close(self) -> None:
        self._channel.close()

    def _send_text(self, kind: str, text: bytes, step: int = 0) -> None:
        header = {"kind": kind, "step": step, "bytes": len(text)}
        self._channel.send(header, memoryview(text) if text else None)

    def _receive_text(self, *kinds: str) -> tuple[str, bytes, int]:
        """Kind, text and step of the next message, which has to be one of `kinds`."""
        header = self._channel.receive()
        kind = wire.text(header, "kind")
        if kind not in kinds:
            raise WireError(f"the message is {kind!r}, expected {' or '.join(kinds)}")
        body = bytearray(wire.number(header, "bytes", TEXT_BYTES_MAX))
        self._channel.set_timeout(limit_s(len(body)))
        self._channel.receive_into(memoryview(body))
        return kind, bytes(body), wire.number(header, "step")


class Leaving(Link):
    """The leaver's end."""

    def offer(self) -> None:
        """PrepareFailed where the joiner holds other tensors or another plan. OSError, WireError."""
        self._send_text("offer", self._offered)
        kind, _, _ = self._receive_text("accepted", "refused")
        if kind == "refused":
            raise PrepareFailed("the joiner holds other tensors, or was prepared for another plan")

    def cancel(self) -> None:
        """Tell the joiner that it does not take place. OSError."""
        self._send_text("cancel", b"")

    def give(self, step: int, header: Mapping[str, Any], parts: Sequence[Any]) -> None:
        """Send the copy of `step` and wait until it has arrived. TransferFailed, OSError, WireError."""
        size = sum(part.numel() for part in parts)
        self._channel.set_timeout(limit_s(size))  # of each part; the joiner bounds them together
        self._send_text("state", json.dumps(header, separators=(",", ":")).encode(), step)
        for part in parts:
            self._channel.send_body(memory_of(part))
        kind, _, _ = self._receive_text("arrived", "damaged")
        if kind != "arrived":
            raise TransferFailed("the joiner has not taken the state")


class Arriving(Link):
    """The joiner's end."""

    def accept(self) -> None:
        """Answer the leaver's offer; PrepareFailed says what differs. OSError, WireError."""
        _, theirs, _ = self._receive_text("offer")
        fits = theirs == self._offered
        self._send_text("accepted" if fits else "refused", b"")
        if not fits:
            raise PrepareFailed(_difference(theirs, self._offered))

    def await_state(self, wait_s: float) -> tuple[int, bytes]:
        """The step after which the leaver's state was taken, and its header, within `wait_s`; it follows.
        SwitchCancelled, OSError, WireError."""
        self._channel.set_timeout(wait_s)
        kind, text, step = self._receive_text("state", "cancel")
        if kind == "cancel":
            raise SwitchCancelled("the leaver says that the switch does not take place")
        return step, text

    def take(
        self,
        text: bytes,
        room: Callable[[Mapping[str, Any]], Sequence[Any]],
        is_whole: Callable[[Mapping[str, Any]], bool],
    ) -> Mapping[str, Any]:
        """The header in `text`, once the state that it describes is here and `is_whole` says so.

        `room` gives the flat uint8 tensors of the host to receive into. TransferFailed, OSError, WireError.
        """
        try:
            header: Mapping[str, Any] = json.loads(text)
            self._fill(room(header))
            whole = is_whole(header)
        except (ValueError, KeyError, TypeError) as error:
            raise TransferFailed(f"the leaver's header cannot be read: {error!r}") from error
        self._send_text("arrived" if whole else "damaged", b"")
        if not whole:
            raise TransferFailed("the leaver's state arrived damaged; nothing of it may be used")
        return header

    def _fill(self, parts: Sequence[Any]) -> None:
        size = sum(part.numel() for part in parts)
        until_s = self._clock() + limit_s(size)
        for memory in map(memory_of, parts):
            for start in range(0, len(memory), PIECE_BYTES):
                left_s = until_s - self._clock()
                if left_s <= 0:
                    raise TransferFailed(f"{size} bytes did not arrive within {limit_s(size):.0f} s")
                self._channel.set_timeout(left_s)
                self._channel.receive_into(memory[start : start + PIECE_BYTES])
        self._channel.set_timeout(ANSWER_S)


def connect(store: Any, digest: str, manifest: bytes, wait_s: float) -> Leaving:
    """The leaver's: reach the joiner that has invited on `store`. PrepareFailed, RuntimeError, OSError."""
    store.wait(["joiner"], timedelta(seconds=wait_s))
    content = bytes(store.get("joiner"))
    address, _, key = content.decode(errors="replace").partition(" ")
    host, _, port = address.rpartition(":")
    if len(content) > ADDRESS_BYTES_MAX or not host or not port.isdigit():
        raise PrepareFailed(f"the joiner's address is {address[:64]!r}, expected host:port")
    sock = socket.create_connection((host, int(port)), wait_s)
    return Leaving(_opened(sock, bytes.fromhex(key), wait_s, is_client=True), digest, manifest)


def invite(store: Any, host: str, digest: str, manifest: bytes, wait_s: float) -> Arriving:
    """The joiner's: be found by the leaver on `store`, which nobody but the two reads. OSError."""
    key = secrets.token_bytes(KEY_BYTES)
    with wire.listen(host, 1) as listener:
        listener.settimeout(wait_s)
        store.set("joiner", f"{host}:{listener.getsockname()[1]} {key.hex()}")
        sock, _ = listener.accept()
    return Arriving(_opened(sock, key, wait_s, is_client=False), digest, manifest)


def _opened(sock: socket.socket, key: bytes, wait_s: float, is_client: bool) -> Channel:
    try:
        sock.settimeout(wait_s)
        return Channel(sock, key, is_client, handshake_s=wait_s)
    except BaseException:
        sock.close()
        raise


def _difference(theirs: bytes, mine: bytes) -> str:
    """In words, for whoever has to make the standby fit."""
    their_plan, _, their_rows = theirs.partition(b"\n")
    my_plan, _, my_rows = mine.partition(b"\n")
    if their_plan != my_plan:
        return f"the leaver follows plan {their_plan[:12]!r}, this joiner {my_plan[:12]!r}"
    try:
        has = {row[0]: row[1:] for row in json.loads(their_rows)}
    except (ValueError, TypeError, IndexError):
        return "the leaver's manifest cannot be read"
    holds = {row[0]: row[1:] for row in json.loads(my_rows)}
    names = sorted(name for name in {*has, *holds} if has.get(name) != holds.get(name))
    shown = "; ".join(f"{name}: leaver {has.get(name)}, joiner {holds.get(name)}" for name in names[:3])
    return f"{len(names)} tensors differ ({shown})"
