"""Framing of the agent socket and file descriptors beside it. Standard library only."""

from __future__ import annotations

import array
import json
import socket
from collections.abc import Sequence
from dataclasses import fields

from paceline.contracts.agent_socket import MESSAGE_BYTES_MAX, MESSAGE_TYPES, Framer, FramingError, Message
from paceline.probe.errors import MessageError

FDS_MAX = 4  # per read; a hello carries two
READ_BYTES = 65536


def decode_message(body: bytes) -> Message:
    """The message in `body`. Fields of a newer release are ignored; MessageError names what is wrong."""
    try:
        raw = json.loads(body)
    except (ValueError, RecursionError):
        raise MessageError("message", body, "a JSON object") from None
    kind = raw.get("type") if isinstance(raw, dict) else None
    message_type = MESSAGE_TYPES.get(kind) if isinstance(kind, str) else None
    if message_type is None:
        raise MessageError("type", kind, f"one of {', '.join(MESSAGE_TYPES)}")
    known = {field.name: raw[field.name] for field in fields(message_type) if field.name in raw}
    try:
        message: Message = message_type(**known)
    except TypeError as error:
        raise MessageError(str(kind), sorted(known), str(error).partition("() ")[2]) from None
    for field in fields(message_type):
        value = getattr(message, field.name)
        simple = {"str": str, "int": int}.get(str(field.type).removeprefix("<class '").removesuffix("'>"))
        if simple is not None and not (isinstance(value, simple) and not isinstance(value, bool)):
            raise MessageError(f"{kind}.{field.name}", value, simple.__name__)
    return message


class MessageDecoder:
    """Cuts a byte stream into messages."""

    def __init__(self) -> None:
        self._framer = Framer()

    def feed(self, data: bytes) -> list[Message]:
        """Messages that `data` completes, in order; MessageError ends the stream."""
        try:
            bodies = self._framer.feed(data)
        except FramingError as error:
            raise MessageError("message length", error.length, f"2 to {MESSAGE_BYTES_MAX} bytes") from None
        return [decode_message(body) for body in bodies]


def send_with_fds(sock: socket.socket, data: bytes, fds: Sequence[int] = ()) -> None:
    """Send all of `data`, the descriptors with its first byte. OSError where the peer is gone.

    MSG_NOSIGNAL: the training script may have given SIGPIPE back its deadly default.
    """
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    sent = sock.sendmsg([data], rights, socket.MSG_NOSIGNAL)
    if sent < len(data):
        sock.sendall(memoryview(data)[sent:], socket.MSG_NOSIGNAL)


def receive_with_fds(sock: socket.socket) -> tuple[bytes, list[int]]:
    """One read and the descriptors that came with it, now owned by the caller; b"" at the end."""
    data, ancillary, _, _ = sock.recvmsg(
        READ_BYTES, socket.CMSG_SPACE(FDS_MAX * array.array("i").itemsize), socket.MSG_CMSG_CLOEXEC
    )
    fds: list[int] = []
    for level, kind, content in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            numbers = array.array("i")
            numbers.frombytes(content[: len(content) - len(content) % numbers.itemsize])
            fds += numbers
    return data, fds
