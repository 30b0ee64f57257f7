"""torch's own explanations: fingerprint mismatches, desync reports, monitored barriers.

They name who noticed. The mismatch's first rank is the one that raised; the desync report counts in its
own numbers, which are not the watchdog's sequence numbers.
"""

import re
from collections.abc import Iterator
from typing import Any

from paceline.analysis.adapters.functions import function_of
from paceline.analysis.adapters.model import Block
from paceline.analysis.adapters.torch_watchdog import group_of, speaker_of
from paceline.analysis.facts import BarrierReport, DesyncReport, Fact, Group, OperationMismatch, Side, Work

RANKS_LISTED_MAX = 1 << 20
_SIDES = re.compile(
    r"Rank (?P<a>\d+) is running (?:collective: |inconsistent collective: )?(?P<first>.+?),? ?but Rank "
    r"(?P<b>\d+) is running (?:collective: |inconsistent collective: )?(?P<second>.+)",
    re.DOTALL,
)
_PRINT = re.compile(r"CollectiveFingerPrint\((?P<fields>.*)", re.DOTALL)
_FIELD = re.compile(r"(SequenceNumber|OpType|TensorShape|TensorDtypes)=(\[[^\]]*\]|[\w]+)")
_CALL = re.compile(r"^(?P<name>[\w:]+)(?:\((?P<fields>[^)]*)\))?")
_ASPECTS = re.compile(r"(Sequence number|Op type|Tensor(?: Tensor)? (?:shapes|dtypes|devices|device types|layouts))\s*:")
_STUCK = re.compile(r"\[([\d, ]+)\] (?:joined but didn't finish|started) .*?#(\d+)")
_LAGGING = re.compile(r"\[([\d, ]+)\] finished collective #(\d+), but didn't join collective #(\d+)")
_JOINED = re.compile(r"\[([\d, ]+)\] joined but didn't finish collective #(\d+)")
_NEVER = re.compile(r"\[([\d, ]+)\].*(?:never joined any collective|didn't join any collective)|never joined any.*?\[([\d, ]+)\]")
_MISSING = re.compile(
    r"[Rr]anks? \[?(?P<ranks>\d[\d, ]*)\]? failed to (?:pass|reach|respond)|[Mm]issing ranks?:? \[?(?P<more>\d[\d, ]*)"
)
_COORDINATED = re.compile(r"tasks? not at the barrier: (?P<ranks>[\d, -]+)|(?P<arrived>\d+)/(?P<expected>\d+) (?:clients|tasks) joined")


class Mismatches:
    """`Detected mismatch between collectives on ranks.` (TORCH_DISTRIBUTED_DEBUG=DETAIL)."""

    name = "torch fingerprint mismatch"
    needles = ("Detected mismatch between collectives on ranks",)

    def read(self, block: Block) -> Iterator[Fact]:
        text = " ".join([block.line.text, *(line.text for line in list(block.after)[:6])])
        text = text[text.index("Detected mismatch") :]
        if (again := text.find("Detected mismatch", 20)) > 0:
            text = text[:again]
        found = _SIDES.search(text)
        if not found:
            return
        sides = (Side(int(found["a"]), _work(found["first"])), Side(int(found["b"]), _work(found["second"])))
        aspects = {name.lower().replace("tensor tensor", "tensor") for name in _ASPECTS.findall(text)}
        yield OperationMismatch(
            **_base(block),
            group=group_of(block.line.text),
            sides=sides,
            aspects=tuple(sorted(aspects)),
            text=text[:2000],
        )


class DesyncReports:
    """`the lagging/dead/mismatched ranks that caused the desync are:` and what follows."""

    name = "torch desync report"
    needles = ("caused the desync", "joined but didn't finish", "They never joined any collectives")

    def read(self, block: Block) -> Iterator[Fact]:
        if "caused the desync" not in block.line.text:
            return
        lagging: list[int] = []
        stuck: list[int] = []
        never: list[int] = []
        finished = None
        for line in [block.line, *block.after]:
            if "Snapshot of ranks" in line.text:
                break
            if found := _LAGGING.search(line.text):
                lagging += ranks_of(found[1])
                finished = int(found[2]) if finished is None else min(finished, int(found[2]))
            elif found := _JOINED.search(line.text):
                stuck += ranks_of(found[1])
            elif found := _NEVER.search(line.text):
                never += ranks_of(found[1] or found[2])
        yield DesyncReport(
            **_base(block),
            group=Group(),
            lagging=tuple(lagging),
            finished=finished,
            stuck=tuple(stuck),
            never_joined=tuple(never),
            text=block.line.text[:2000],
        )


class Barriers:
    """Barriers that list who is missing. Those of coordinators list healthy tasks as well."""

    name = "barrier report"
    needles = ("onitoredBarrier", "not at the barrier", "clients joined", "tasks joined")

    def read(self, block: Block) -> Iterator[Fact]:
        text = block.line.text
        missing: tuple[int, ...] = ()
        arrived = expected = None
        if found := _COORDINATED.search(text):
            missing = tuple(ranks_of(found["ranks"] or ""))
            arrived = int(found["arrived"]) if found["arrived"] else None
            expected = int(found["expected"]) if found["expected"] else None
        elif found := _MISSING.search(text):
            missing = tuple(ranks_of(found["ranks"] or found["more"]))
        if missing or arrived is not None:
            yield BarrierReport(
                **_base(block), missing=missing, arrived=arrived, expected=expected, text=text[:2000]
            )


def ranks_of(text: str) -> list[int]:
    """`0-2, 7` as numbers, bounded; what is no number is left out."""
    ranks: list[int] = []
    for part in text.replace(" ", "").split(","):
        low, _, high = part.partition("-")
        if low.isdigit() and len(low) < 8 and (not high or (high.isdigit() and len(high) < 8)):
            ranks += range(int(low), min(int(high or low), int(low) + RANKS_LISTED_MAX) + 1)
        if len(ranks) > RANKS_LISTED_MAX:
            break
    return ranks[:RANKS_LISTED_MAX]


def _work(text: str) -> Work:
    if found := _PRINT.search(text):
        fields = dict(_FIELD.findall(found["fields"]))
        return Work(
            function=function_of(fields.get("OpType", "")),
            sequence=int(fields["SequenceNumber"]) if fields.get("SequenceNumber", "").isdigit() else None,
            shapes=fields.get("TensorShape", ""),
            dtype=fields.get("TensorDtypes", "").lower(),
        )
    call = _CALL.match(text.strip())
    fields = dict(_FIELD.findall(call["fields"] or "")) if call else {}
    return Work(function=function_of(call["name"]) if call else "", shapes=fields.get("TensorShape", ""))


def _base(block: Block) -> dict[str, Any]:
    line = block.line
    return {
        "origin": line.origin,
        "speaker": speaker_of(line),
        "time_s": line.time_s,
        "clock": line.clock,
        "attempt": line.attempt,
    }
