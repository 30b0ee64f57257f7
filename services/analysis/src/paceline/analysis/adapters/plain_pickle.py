"""Pickles as plain data: numbers, words, lists, tuples and dictionaries, and nothing that runs.

The bytes are walked before anything is built. Only operations that PyTorch and Python use for plain data
pass; a pickle that imports or calls is refused with the name of what it wanted, and nothing of it is
executed. Two more bounds: memo indices (one operation could claim gigabytes) and containers (each takes a
hundred times its byte).
"""

import io
import pickle
import re
from itertools import islice
from typing import Any

from paceline.analysis.adapters.model import UnusableInput

PICKLE_BYTES_MAX = 64 << 20  # 2,000 entries with stacks are about 2 MB
CONTAINERS_MAX = 1_000_000
TUPLES_MAX = 4_000_000
_OPERATIONS_NAMED_MAX = 200_000  # walked to name the import of a hostile pickle
_SALVAGE_TRIES = 64
_OPERAND_BYTES_MAX = 9
# Operations of a fixed length: memo, small numbers, constants, containers; memo indices below 2^20, and
# no tuple right around a tuple, which would nest without end at a byte each.
_PLAIN = re.compile(
    rb"(?:[hqK].|[(ue}\]N\x88\x89\x94tsa)]|[rj]..[\x00-\x0f]\x00|M..|J....|[\x85-\x87](?![\x85-\x87])"
    rb"|\x8a(?:\x08.{8}|\x07.{7}|\x06.{6}|\x05.{5}|\x04.{4}|\x03...|\x02..|\x01.|\x00)|G.{8}"
    rb"|\x80[\x02-\x05]|\x95.{6}\x00\x00){1,500}",
    re.DOTALL,
)
_FIXED = frozenset(b"hqK(ue}]N\x88\x89\x94tsa)rjMJ\x85\x86\x87\x8aG\x80\x95")
_WORDS = {0x58: 4, 0x8C: 1, 0x8D: 8, 0x43: 1, 0x42: 4}  # strings and bytes: size of their length


class _Plain(pickle.Unpickler):
    """A second lock: the walk lets nothing through that would come here."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it would import {module}.{name}")


def is_pickle(content: bytes) -> bool:
    """Whether the bytes begin as a pickle of protocol 2 or later does."""
    return len(content) > 2 and content[0] == 0x80 and 2 <= content[1] <= 5


def load_plain(name: str, content: bytes) -> tuple[Any, bool]:
    """(value, whole) of a pickle of plain data; of a cut one what stands before the cut, if anything.

    Raises `UnusableInput` for anything else, and names what a pickle wanted to import.
    """
    if len(content) > PICKLE_BYTES_MAX:
        raise UnusableInput(f"{name} is a pickle of more than {PICKLE_BYTES_MAX >> 20} MiB: not read")
    containers = content.count(b"}") + content.count(b"]")
    tuples = content.count(b"\x85") + content.count(b"\x86") + content.count(b"\x87") + content.count(b"t")
    if containers > CONTAINERS_MAX or tuples > TUPLES_MAX:
        raise UnusableInput(f"{name} is a pickle of more containers than any dump has: refused")
    end = _walk(content)
    if end < len(content) and content[end] != 0x2E:
        _refuse_foreign(name, content, end)
        end = len(content)
    if end >= len(content):
        return _salvaged(name, content), False
    return _load(name, content), True


def _walk(content: bytes) -> int:
    """Where plain data ends: at STOP, at the first other operation, or beyond a cut."""
    at, size = 0, len(content)
    while at < size:
        found = _PLAIN.match(content, at)
        if found:
            at = found.end()
            continue
        width = _WORDS.get(content[at])
        if width is None:
            return at
        at += 1 + width + int.from_bytes(content[at + 1 : at + 1 + width], "little")
    return at


def _load(name: str, content: bytes) -> Any:
    try:
        return _Plain(io.BytesIO(content)).load()
    except Exception as error:  # whatever a damaged pickle makes of it
        raise UnusableInput(f"{name} is a damaged pickle: {error}") from error


def _refuse_foreign(name: str, content: bytes, at: int) -> None:
    """Raises for an operation that plain data does not have; returns where the pickle is only cut there."""
    wanted = _imports(content)
    if wanted:
        raise UnusableInput(
            f"{name} is a pickle that would import {', '.join(wanted)} when loaded: refused, nothing of it "
            f"was run. A Flight Recorder dump is plain data; do not load this file"
        )
    if content[at] in _FIXED and len(content) - at < _OPERAND_BYTES_MAX:
        return
    raise UnusableInput(f"{name} is a pickle with operation {content[at]:#04x}, which no dump has: refused")


def _imports(content: bytes) -> list[str]:
    """What a pickle would import, by reading it only; at most four names."""
    import pickletools

    found: list[str] = []
    words: list[str] = []
    try:
        for operation, value, _ in islice(pickletools.genops(content), _OPERATIONS_NAMED_MAX):
            if operation.name in ("GLOBAL", "INST"):
                found.append(".".join(str(value).split(" ")))
            elif operation.name == "STACK_GLOBAL":
                found.append(".".join(words[-2:]) or "something")
            elif operation.name.startswith(("EXT", "PERSID", "BINPERSID")):
                found.append(f"{operation.name.lower()} {value or ''}".strip())
            elif isinstance(value, str):
                words = [*words[-1:], value]
            if len(found) == 4:
                break
    except Exception:  # noqa: S110 - the rest is no pickle; what was found counts
        pass
    return [text[:200] for text in dict.fromkeys(found)]


def _salvaged(name: str, content: bytes) -> Any:
    """The whole entries of a cut dump: close list and dictionary behind the last entry that ended."""
    at = len(content)
    for _ in range(_SALVAGE_TRIES):
        at = content.rfind(b"u}", 0, at)
        if at < 0:
            break
        try:
            value = _Plain(io.BytesIO(content[: at + 1] + b"eu.")).load()
        except Exception:  # noqa: S112 - closed at the wrong depth: an earlier place may do
            continue
        if isinstance(value, dict) and isinstance(value.get("entries"), list):
            return value
    raise UnusableInput(f"{name} is a pickle cut after {len(content)} bytes, before its first entry ended")
