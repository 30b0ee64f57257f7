"""Identifiers: how each is made, so that every writer makes the same one."""

import hashlib
import uuid
from collections.abc import Callable, Sequence

NAMESPACE = uuid.UUID("7b1f3d52-8f0c-5c0a-9b2e-9d4f6a1c2e30")

NewId = Callable[[str], str]  # prefix -> id; injected wherever an id is drawn


def new_id(prefix: str) -> str:
    """A fresh random id such as `inc_01f3...`."""
    return f"{prefix}_{uuid.uuid4().hex}"


def derived_id(prefix: str, *parts: object) -> str:
    """The same id for the same parts: outputs of a replayed consumer are equal."""
    return f"{prefix}_{uuid.uuid5(NAMESPACE, chr(31).join(map(str, parts))).hex}"


def communicator_id(name: str, ranks: Sequence[int], instance: int = 0) -> int:
    """64-bit id of a communicator: name, global ranks in communicator order, instance number.

    Every member computes it alone and gets the same number. 0 is never returned.
    """
    text = f"{name}\x1f{format_ranks(ranks)}\x1f{instance}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") or 1


def format_communicator(comm: int) -> str:
    """The text form used in keys, JSON and URLs: 16 hex digits."""
    return f"{comm:016x}"


def parse_communicator(text: str) -> int:
    """Inverse of `format_communicator`; ValueError where it is not hexadecimal."""
    return int(text, 16)


def shard_of(comm: int, shards: int) -> int:
    """Shard of a communicator: all its members meet in one partition."""
    return comm % shards


def format_ranks(ranks: Sequence[int]) -> str:
    """Ranks as text that keeps order: `0-3,8,10-12`; strides as `0-56/8`."""
    parts: list[str] = []
    index = 0
    while index < len(ranks):
        end = index
        step = ranks[index + 1] - ranks[index] if index + 1 < len(ranks) else 1
        if step > 0:
            while end + 1 < len(ranks) and ranks[end + 1] - ranks[end] == step:
                end += 1
        if end - index >= 2 or (end > index and step == 1):
            suffix = "" if step == 1 else f"/{step}"
            parts.append(f"{ranks[index]}-{ranks[end]}{suffix}")
            index = end + 1
        else:
            parts.append(str(ranks[index]))
            index += 1
    return ",".join(parts)


def rank_spans(text: str, count_max: int = 1_000_000) -> list[range]:
    """The parts of `format_ranks` unexpanded: what it costs follows from the text, not from the ranks.

    ValueError names the part that is wrong.
    """
    spans: list[range] = []
    count = 0
    for part in filter(None, text.split(",")):
        body, _, step = part.partition("/")
        first, dash, last = body.partition("-")
        try:
            low, high, stride = int(first), int(last) if dash else int(first), int(step or 1)
        except ValueError:
            raise ValueError(f"ranks {text[:80]!r}: {part[:80]!r} is not N, N-M or N-M/STEP") from None
        if stride < 1 or high < low or (high - low) // stride + count >= count_max:
            raise ValueError(f"ranks {text[:80]!r}: {part[:80]!r} is empty or exceeds {count_max} ranks")
        count += (high - low) // stride + 1
        spans.append(range(low, high + 1, stride))
    return spans


def parse_ranks(text: str, count_max: int = 1_000_000) -> list[int]:
    """Inverse of `format_ranks`; ValueError names the part that is wrong."""
    return [rank for span in rank_spans(text, count_max) for rank in span]
