"""Frames between replica servers: a JSON header, authenticated, then raw bytes.

    magic 4 | header length u32 | header | HMAC-SHA256 of direction, number and header, 32 | body

Both sides put 32 random bytes into the key of the connection, and frames are numbered, so no recorded frame
is good a second time. The header carries the body's length and checksum. Whoever lacks the job's key can
neither connect nor be connected to. Somebody who rewrites packets on the path could alter a body within the
limits of the checksum, as they could the training's own traffic, which is plain.
"""

import hmac
import json
import logging
import os
import socket
import struct
import time
from collections.abc import Callable, Mapping
from typing import Any

from paceline.trainer.protection.errors import WireError

log = logging.getLogger("paceline.protection")
MAGIC = b"PLP1"
HEAD = struct.Struct("<4sI")
NONCE_BYTES = 32
MAC_BYTES = 32
HEADER_BYTES_MAX = 64 << 10


def listen(host: str, backlog: int) -> socket.socket:
    """A listener that others reach at `host`. Where that is no address of this machine (a name or an address
    that something in between translates) it listens on all: who has no key is refused anyway. OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, 0), family=family, backlog=backlog)
    except OSError as error:
        log.warning("nothing can listen on %s alone (%s), so it listens on all addresses", host, error)
        return socket.create_server(("", 0), family=family, backlog=backlog)


class Channel:
    """One authenticated connection. One thread reads; writers must not overlap."""

    def __init__(
        self,
        sock: socket.socket,
        key: bytes,
        is_client: bool,
        handshake_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Exchange nonces; the first received frame proves that the other side has the key.

        `handshake_s`: for all of it until `set_timeout`, however slowly a stranger sends.
        """
        self._sock = sock
        self._clock = clock
        self._until_s = None if handshake_s is None else clock() + handshake_s
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        mine = os.urandom(NONCE_BYTES)
        sock.sendall(mine)
        theirs = bytearray(NONCE_BYTES)
        self._fill(memoryview(theirs))
        client, server = (mine, theirs) if is_client else (theirs, mine)
        self._key = hmac.digest(key, b"paceline replica" + bytes(client) + bytes(server), "sha256")
        self._directions = (b"c", b"s") if is_client else (b"s", b"c")
        self._sent = self._received = 0

    def send(self, header: Mapping[str, Any], body: memoryview | None = None) -> None:
        """Blocks until the kernel has taken everything. Raises OSError."""
        text = json.dumps(header, separators=(",", ":")).encode()
        mac = self._mac(self._directions[0], self._sent, text)
        self._sent += 1
        self._sock.sendall(HEAD.pack(MAGIC, len(text)) + text + mac)
        if body is not None:
            self.send_body(body)

    def send_body(self, body: memoryview) -> None:
        """Bytes that a header has announced. Raises OSError."""
        self._sock.sendall(body)

    def receive(self) -> dict[str, Any]:
        """The next header; its body, if any, must be read with `receive_into` before the next one.

        Raises WireError, and ConnectionError when the peer has gone.
        """
        head = bytearray(HEAD.size)
        self._fill(memoryview(head))
        magic, length = HEAD.unpack(head)
        if magic != MAGIC or length > HEADER_BYTES_MAX:
            raise WireError(f"not a frame of a replica: {bytes(head).hex()}")
        text = bytearray(length + MAC_BYTES)
        self._fill(memoryview(text))
        header, mac = bytes(text[:length]), bytes(text[length:])
        if not hmac.compare_digest(mac, self._mac(self._directions[1], self._received, header)):
            raise WireError("a frame is not authentic: the peer has another key, or somebody changed it")
        self._received += 1
        try:
            value = json.loads(header)
        except (ValueError, RecursionError) as error:
            raise WireError(f"a header is not JSON: {error}") from error
        if not isinstance(value, dict):
            raise WireError("a header is not a JSON object")
        return value

    def receive_into(self, body: memoryview) -> None:
        """Fill `body` completely."""
        self._fill(body)

    def set_timeout(self, seconds: float | None) -> None:
        """Of each single wait; the handshake is over."""
        self._until_s = None
        self._sock.settimeout(seconds)

    def close(self) -> None:
        """Also wakes a thread that reads."""
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self._sock.close()

    def _mac(self, direction: bytes, number: int, text: bytes) -> bytes:
        return hmac.digest(self._key, direction + number.to_bytes(8, "little") + text, "sha256")

    def _fill(self, target: memoryview) -> None:
        done = 0
        while done < len(target):
            if self._until_s is not None:
                left_s = self._until_s - self._clock()
                if left_s <= 0:
                    raise TimeoutError("the peer did not finish its greeting in time")
                self._sock.settimeout(left_s)
            count = self._sock.recv_into(target[done:])
            if not count:
                raise ConnectionResetError("the peer closed the connection")
            done += count


def number(header: Mapping[str, Any], name: str, maximum: int = 1 << 62, minimum: int = -1) -> int:
    """A whole number of a header from `minimum` to `maximum`. Raises WireError."""
    value = header.get(name)
    if type(value) is not int or not minimum <= value <= maximum:
        raise WireError(f"{name} is {value!r}, expected a whole number from {minimum} to {maximum}")
    return value


def text(header: Mapping[str, Any], name: str, length_max: int = 512) -> str:
    """A string of a header. Raises WireError."""
    value = header.get(name)
    if not isinstance(value, str) or len(value) > length_max:
        raise WireError(f"{name} is {str(value)[:64]!r}, expected text of at most {length_max} characters")
    return value
