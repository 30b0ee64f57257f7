"""gloo's errors. `Timed out` is said by a rank that waits; `Connection closed by peer` means that the other
process ended. What follows in the same process is only the consequence."""

import re
from collections.abc import Iterator

from paceline.analysis.adapters.model import LOOK_CHARS, Block, base_of
from paceline.analysis.facts import Fact, GlooFailure, GlooKind

_TIMED_OUT = re.compile(r"Timed out waiting (?P<ms>\d{1,18})ms for (?P<direction>recv|send) operation")
_PEER = re.compile(r"\[(?P<address>[\da-fA-F.:%\w-]+)\]:(?P<port>\d{1,18})")


class GlooFailures:
    """Lines of gloo/transport/tcp, whatever path the build left in them."""

    name = "gloo"
    needles = ("gloo", "Application timeout caused pair closure", "Connection closed by peer")

    def read(self, block: Block) -> Iterator[Fact]:
        line = block.line
        kind, direction, timeout = _kind(line.text[:LOOK_CHARS])
        if kind is None:
            return
        peer = _PEER.search(line.text[:LOOK_CHARS])
        yield GlooFailure(
            **base_of(block),
            kind=kind,
            direction=direction,
            peer=f"{peer['address']}:{peer['port']}" if peer else "",
            timeout_ms=timeout,
        )


def _kind(text: str) -> tuple[GlooKind | None, str, int | None]:
    if found := _TIMED_OUT.search(text):
        return GlooKind.TIMEOUT, found["direction"], int(found["ms"][:18])
    if "Application timeout caused pair closure" in text:
        return GlooKind.CASCADE, "", None
    if "NCCL" in text:
        return None, "", None
    if "Connection closed by peer" in text:
        return GlooKind.CLOSED, "", None
    if "gloo" in text and ("Connection reset by peer" in text or "Broken pipe" in text):
        return GlooKind.RESET, "", None
    if "gloo" in text and (
        "onnect timeout" in text
        or "connect() timed out" in text
        or "Connection refused" in text
        or "connectFullMesh failed" in text
    ):
        return GlooKind.CONNECT, "", None
    return None, "", None
