"""Ring and tree order in the lines of NCCL_DEBUG=INFO, of NCCL 2.8 to 2.32 and of RCCL.

`Channel 00/02 : 0 1 2 3` is the whole ring, of rank 0 only; NCCL prints 20 ranks at most, and ranks from 1000
on run into one another. `Ring 00 : 3 -> 0 -> 1` is of every rank. `Trees [0] 1/-1/-1->0->-1` lists children,
rank and parent for each channel, cut at 1023 characters. None of them names its communicator (RCCL's do):
they belong to the init of the same thread. Releases before 2.8 write trees the other way round; these lines
do not match.
"""

import re
from dataclasses import dataclass

from paceline.analysis.adapters.nccl_log import find_init
from paceline.analysis.facts import Line

_LINE = re.compile(
    r"NCCL INFO (?:Channel (?P<channel>\d{1,3})/\d{1,3} :(?P<ring>(?: +\d{1,6})+)\s*$"
    r"|Ring (?P<of>\d{1,3}) : (?P<prev>\d{1,7}) -> (?P<rank>\d{1,7}) -> (?P<next>\d{1,7})(?P<ring_tail>.*)$"
    r"|Trees(?P<trees>(?: \[\d{1,3}\] \S{1,64})+)(?P<tree_tail>(?: comm .*)?)$"
    r"|.*Paceline communicator (?P<id>[\da-f]{16}) rank (?P<own>\d{1,7}) of (?P<size>\d{1,7})\b)"
)
_TREE = re.compile(r"\[(\d{1,3})\] (-?\d{1,7})/(-?\d{1,7})/(-?\d{1,7})->(\d{1,7})->(-?\d{1,7})(?= \[|$)")
_COMM = re.compile(r"\bcomm (0x[\da-fA-F]{1,16})\b")
TREE_CHARS = 1015  # of a line that is cut at 1023: what stands behind may be half a number
RING_RANKS_MAX = 20  # MAXWIDTH of NCCL's own line


@dataclass(frozen=True)
class InitLine:
    """A communicator is being made, or is made; `hash` is 0 where the line has none (splits)."""

    comm: str
    rank: int
    size: int
    hash: int
    complete: bool


@dataclass(frozen=True)
class ProbeLine:
    """The profiler plugin's own line, written while the communicator is made."""

    communicator: str
    rank: int
    size: int


@dataclass(frozen=True)
class WholeRing:
    channel: int
    order: tuple[int, ...]


@dataclass(frozen=True)
class RingLine:
    channel: int
    prev: int
    rank: int
    next: int
    comm: str = ""


@dataclass(frozen=True)
class TreeLine:
    """`channels`: (channel, parent, children), -1 where there is none."""

    rank: int
    channels: tuple[tuple[int, int, tuple[int, ...]], ...]
    cut: bool = False
    comm: str = ""


OrderLine = InitLine | ProbeLine | WholeRing | RingLine | TreeLine


def read_order_line(line: Line) -> OrderLine | None:
    """What `line`, without its prefixes, says of an order; None for all other lines."""
    if "Init " in line.text and (init := find_init(line.text)):
        name = init.groupdict().get("id") or "0"
        return InitLine(
            init["comm"].lower(), int(init["rank"]), int(init["size"]), int(name, 16) % (1 << 64),
            init["stage"] == "COMPLETE",
        )  # fmt: skip
    found = _LINE.search(line.text)
    if found is None:
        return None
    if found["id"]:
        return ProbeLine(found["id"], int(found["own"]), int(found["size"]))
    if found["ring"]:
        return WholeRing(int(found["channel"]), tuple(int(rank) for rank in found["ring"].split()))
    if found["rank"]:
        comm = _comm(found["ring_tail"])
        ends = int(found["prev"]), int(found["rank"]), int(found["next"])
        return RingLine(int(found["of"]), *ends, comm)
    return _trees(found["trees"], _comm(found["tree_tail"]))


def _comm(tail: str) -> str:
    found = _COMM.search(tail)
    return found[1].lower() if found else ""


def _trees(text: str, comm: str) -> TreeLine | None:
    found = list(_TREE.finditer(text))
    if not found or len({one[5] for one in found}) != 1:
        return None
    whole = sum(len(one[0]) + 1 for one in found) == len(text)
    channels = tuple(
        (int(one[1]), int(one[6]), tuple(int(one[at]) for at in (2, 3, 4) if one[at] != "-1"))
        for one in found
    )
    return TreeLine(int(found[0][5]), channels, not whole or len(text) >= TREE_CHARS, comm)
