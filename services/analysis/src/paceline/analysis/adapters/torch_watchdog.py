"""ProcessGroupNCCL's watchdog, in all its generations (torch 1.10 to 2.11).

Sequence numbers are those of the group. `[Rank 3]` and `[PG ID 1 PG GUID 2 Rank 3]` are ranks inside the
group, `[rank3]:` in front of the line is the global one.
"""

import re
from collections.abc import Iterator
from dataclasses import replace

from paceline.analysis.adapters.functions import function_of
from paceline.analysis.adapters.model import LOOK_CHARS, Block, base_of
from paceline.analysis.facts import (
    Clock,
    Fact,
    Group,
    GroupStatus,
    Line,
    Speaker,
    WatchdogStuck,
    Work,
    WorkTimeout,
)

_WORK = re.compile(r"WorkNCCL\((?P<fields>(?:[^()\[\]]|\[[^\]]*\]|\([a-z]+\))*)\)")
_RAN = re.compile(r"ran for (\d{1,18}) milliseconds")
_GROUP = re.compile(
    r"\[PG(?: ID)? (?P<id>\d{1,18})(?: PG GUID (?P<guid>[\w:./-]+?))?\s*(?:\((?P<description>[^()]*)\))?\s*"
    r"Rank (?P<rank>\d{1,18})\]"
)
_RANK = re.compile(r"\[Rank (\d{1,18})\]")
_AT_WORK = re.compile(r"(?:at work(?: sequence id)?|Timeout at NCCL work): ?(\d{1,18})")
_STATUS = re.compile(
    r"last enqueued (?:NCCL )?work: ?(-?\d{1,18})(?:, last started (?:NCCL )?work: ?(-?\d{1,18}))?"
    r", last completed (?:NCCL )?work: ?(-?\d{1,18})",
    re.IGNORECASE,
)
_ASKED = re.compile(r"dump signal due to a collective timeout from\s+(?:rank (\d{1,18})|(this local rank))")
_STUCK = re.compile(r"watchdog (?:got stuck for|hang for|is stuck for) (\d{1,18}) seconds", re.IGNORECASE)
_LEFT = re.compile(r"workMetaList_\.size\(\)=(\d{1,18})")
_NUMBER = re.compile(r"-?\d{1,18}")
_WRAPPED_MAX = 8  # lines of one message that a narrow terminal has cut
_STARTS = re.compile(r"\[Rank \d|\[PG |^\[rank|Watchdog caught|Traceback \(most")


class WatchdogTimeouts:
    """`Watchdog caught collective operation timeout: WorkNCCL(...)` and its blocking-wait form."""

    name = "torch watchdog"
    needles = ("WorkNCCL(", "Watchdog caught collective operation timeout")

    def read(self, block: Block) -> Iterator[Fact]:
        text = block.line.text[:LOOK_CHARS]
        if "thread terminated with exception" in text:  # says again what an earlier line has said
            return
        if "timeout" not in text and "timed out" not in text:
            return
        found, ran = _WORK.search(text), _RAN.search(text)
        if not found or not ran:
            whole = _unwrapped(block, apart="WorkNCCL(" not in text)
            found, ran = found or _WORK.search(whole), ran or _RAN.search(whole)
        if not found:
            return
        work, timeout_ms = read_work(found["fields"])
        yield WorkTimeout(
            **base_of(block, speaker_of(block.line)),
            group=group_of(text),
            work=work,
            ran_ms=int(ran[1]) if ran else None,
            timeout_ms=timeout_ms,
        )


class GroupStatuses:
    """`last enqueued work: 79, last completed work: 77`, in status lines and answers to dump signals."""

    name = "torch group status"
    needles = ("last enqueued", "Last enqueued", "detected by watchdog at", "a dump signal due to")

    def read(self, block: Block) -> Iterator[Fact]:
        text = block.line.text[:LOOK_CHARS]
        found = _STATUS.search(text)
        if not found:
            text = _unwrapped(block)
            found = _STATUS.search(text)
        if not found:
            return
        failed, asked = _AT_WORK.search(text), _ASKED.search(text)
        yield GroupStatus(
            **base_of(block, speaker_of(block.line)),
            group=group_of(text),
            enqueued=int(found[1]),
            started=int(found[2]) if found[2] else None,
            completed=int(found[3]),
            failed=int(failed[1]) if failed else None,
            asked_by=int(asked[1]) if asked and asked[1] else None,
        )


class WatchdogsStuck:
    """The heartbeat monitor: `watchdog got stuck for 480 seconds without making progress`."""

    name = "torch heartbeat"
    needles = ("seconds without making progress", "watchdog got stuck", "watchdog hang")

    def read(self, block: Block) -> Iterator[Fact]:
        found = _STUCK.search(block.line.text[:LOOK_CHARS])
        if not found:
            return
        left = _LEFT.search(block.line.text[:LOOK_CHARS])
        yield WatchdogStuck(
            **base_of(block, speaker_of(block.line)),
            group=group_of(block.line.text[:LOOK_CHARS]),
            stuck_s=int(found[1]),
            works_left=int(left[1]) if left else None,
        )


def _unwrapped(block: Block, apart: bool = False) -> str:
    """The message with the lines into which a terminal has cut it; `apart`: they were lines of their own.

    A line with a header of its own ends it.
    """
    parts = [block.line.text[:LOOK_CHARS]]
    for count, line in enumerate(list(block.after)[:_WRAPPED_MAX]):
        begins = line.clock is not Clock.NONE or _STARTS.search(line.text[:200])
        if begins and not (apart and count == 0):
            break
        parts.append(line.text[:LOOK_CHARS])
    return (" " if apart else "").join(parts)[:LOOK_CHARS]


def group_of(text: str) -> Group:
    """The process group of a message; torch 2.1 and older do not name it."""
    found = _GROUP.search(text)
    if not found:
        return Group()
    return Group(name=found["guid"] or found["id"], description=found["description"] or "")


def speaker_of(line: Line) -> Speaker:
    """The speaker with the rank inside the group that the message gives."""
    found = _GROUP.search(line.text[:LOOK_CHARS])
    rank = found["rank"] if found else (other[1] if (other := _RANK.search(line.text[:LOOK_CHARS])) else None)
    return line.speaker if rank is None else replace(line.speaker, group_rank=int(rank))


def read_work(fields: str) -> tuple[Work, int | None]:
    """(operation, timeout in ms) of the inside of `WorkNCCL(...)`."""
    values: dict[str, str] = {}
    for part in re.split(r", (?=[A-Z][\w()]*=)", fields):
        key, _, value = part.partition("=")
        values[key.strip()] = value.strip()
    work = Work(
        function=function_of(values.get("OpType", "")),
        sequence=_integer(values.get("SeqNum")),
        count_in=_integer(values.get("NumelIn")),
        count_out=_integer(values.get("NumelOut")),
        shapes=values.get("TensorShape", ""),
    )
    return work, _integer(values.get("Timeout(ms)"))


def _integer(text: str | None) -> int | None:
    found = _NUMBER.fullmatch(text or "")
    return int(text or 0) if found and len(text or "") <= 18 else None
