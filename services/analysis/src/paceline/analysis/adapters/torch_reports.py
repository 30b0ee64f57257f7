"""torch's own explanations: fingerprint mismatches, desync reports, monitored barriers.

They name who noticed. The mismatch's first rank is the one that raised; the desync report counts in its
own numbers, which are not the watchdog's sequence numbers.
"""

import re
from collections.abc import Iterator
from dataclasses import replace

from paceline.analysis.adapters.functions import function_of
from paceline.analysis.adapters.model import LOOK_CHARS, Block, base_of
from paceline.analysis.adapters.torch_watchdog import group_of, speaker_of
from paceline.analysis.facts import (
    BarrierReport,
    DesyncReport,
    Fact,
    Group,
    Line,
    OperationMismatch,
    Side,
    Work,
)

RANKS_LISTED_MAX = 1 << 20
_SIDES = re.compile(
    r"Rank (?P<a>\d{1,18}) is running (?:collective: |inconsistent collective: )?(?P<first>.+?),? ?but Rank "
    r"(?P<b>\d{1,18}) is running (?:collective: |inconsistent collective: )?(?P<second>.+)",
    re.DOTALL,
)
_PRINT = re.compile(r"CollectiveFingerPrint\((?P<fields>.*)", re.DOTALL)
_FIELD = re.compile(
    r"(SequenceNumber|OpType|TensorShape|TensorDtypes)=(\[[^\]]{0,4000}\]|\d{1,18}(?=OpType)|\w{1,80})"
)
_CALL = re.compile(r"^(?P<name>[\w:]+)(?:\((?P<fields>[^)]*)\))?")
_ASPECTS = re.compile(
    r"(Sequence number|Op type|Tensor(?: Tensor)? (?:shapes|dtypes|devices|device types|layouts))\s*:"
)
_RANKS = r"\[(?P<ranks>[\d, ]{1,2000})\]"
_LAGGING = re.compile(
    _RANKS + r" finished collective #(?P<done>\d{1,12}), but didn't join collective #\d{1,12}"
)
_JOINED = re.compile(_RANKS + r" joined but didn't finish collective #(?P<number>\d{1,12})")
_NEVER = re.compile(r"never joined any collective|didn't join any collective")
_LISTED = re.compile(r"\[(?P<ranks>[\d, -]{1,2000})\]")
_LATEST = re.compile(r"^\s*#(?P<number>\d{1,12}) (?P<what>started|finished) ranks:")
_STANDS = re.compile(r"^\s*" + _LISTED.pattern + r" started (?P<name>\w{1,40})")
_SIDES_MAX = 64  # reports made of one snapshot
_MISSING = (
    re.compile(r"[Rr]anks? (?P<ranks>\d{1,9}) timed out in monitoredBarrier"),
    re.compile(r"[Rr]anks? \[?(?P<ranks>\d[\d, -]{0,2000})\]? failed to (?:pass|reach|respond)"),
    re.compile(r"[Mm]issing ranks?:? \[?(?P<ranks>\d[\d, -]{0,2000})"),
)
_STORE_BARRIER = re.compile(
    r"Timed out initializing process group in store based barrier on rank: (?P<rank>\d{1,7}), "
    r"for key: \S{1,80} \(world_size=(?P<expected>\d{1,7}), worker_count=(?P<arrived>\d{1,7})"
)
_COORDINATED = re.compile(
    r"tasks? not at the barrier: (?P<ranks>\d[\d, -]{0,20000})|(?P<arrived>\d{1,9})/(?P<expected>\d{1,9}) "
    r"(?:clients|tasks|workers|nodes) joined"
)


_PARAMETERS = re.compile(
    r"Rank (?P<a>\d{1,9}) has (?P<first>\d{1,9}) params, while rank (?P<b>\d{1,9}) has inconsistent "
    r"(?P<second>\d{1,9})"
)
_SHAPE = re.compile(
    r"\[(?P<a>\d{1,9})\]: params\[(?P<at>\d{1,9})\] in this process with sizes (?P<shape>\[[^\]]{0,200}\]) "
    r"appears not to match (?:sizes|strides) of the same param in process (?P<b>\d{1,9})"
)


class Mismatches:
    """`Detected mismatch between collectives on ranks.` (TORCH_DISTRIBUTED_DEBUG=DETAIL)."""

    name = "torch fingerprint mismatch"
    needles = ("Detected mismatch between collectives on ranks",)

    def read(self, block: Block) -> Iterator[Fact]:
        text = " ".join(
            [block.line.text[:LOOK_CHARS], *(line.text[:LOOK_CHARS] for line in list(block.after)[:6])]
        )
        text = text[max(0, text.find("Detected mismatch")) :]
        if (again := text.find("Detected mismatch", 20)) > 0:
            text = text[:again]
        found = _SIDES.search(text)
        if not found:
            return
        sides = (Side(int(found["a"]), _work(found["first"])), Side(int(found["b"]), _work(found["second"])))
        aspects = {name.lower().replace("tensor tensor", "tensor") for name in _ASPECTS.findall(text)}
        yield OperationMismatch(
            **base_of(block, speaker_of(block.line)),
            group=group_of(block.line.text[:LOOK_CHARS]),
            sides=sides,
            aspects=tuple(sorted(aspects)),
            text=text[:2000],
        )


class ModelMismatches:
    """DistributedDataParallel compares models first: `Rank 3 has 150 params, while rank 0 ...`."""

    name = "torch model mismatch"
    needles = ("params, while rank", "of the same param in process")

    def read(self, block: Block) -> Iterator[Fact]:
        text = block.line.text[:LOOK_CHARS]
        if found := _PARAMETERS.search(text):
            words, aspect = (f"[{found['first']} parameters]", f"[{found['second']} parameters]"), "count"
        elif found := _SHAPE.search(text):
            words, aspect = (found["shape"], f"[another shape of parameter {found['at']}]"), "tensor shapes"
        else:
            return
        name = "ddp_parameters"
        sides = (
            Side(int(found["a"]), Work(function=name, shapes=words[0])),
            Side(int(found["b"]), Work(function=name, shapes=words[1])),
        )
        yield OperationMismatch(
            **base_of(block), group=Group(), sides=sides, aspects=(aspect,), text=text[:2000]
        )


class DesyncReports:
    """`the lagging/dead/mismatched ranks that caused the desync are:` and what follows."""

    name = "torch desync report"
    needles = ("caused the desync", "joined but didn't finish", "They never joined any collectives")

    def read(self, block: Block) -> Iterator[Fact]:
        text = block.line.text[:LOOK_CHARS]
        if "caused the desync" not in text and "that caused this timeout" not in text:
            return
        yield from _different_calls(block)
        lagging: list[int] = []
        stuck: list[int] = []
        never: list[int] = []
        finished = joined = None
        ahead: set[int] = set()
        for at, line in enumerate([block.line, *block.after]):
            if "Snapshot of ranks" in line.text[:LOOK_CHARS]:
                ahead = _ranks_after(list(block.after)[at:], joined)
                break
            if found := _LAGGING.search(line.text[:LOOK_CHARS]):
                lagging += ranks_of(found["ranks"])
                finished = min(int(found["done"]), int(found["done"]) if finished is None else finished)
            elif found := _JOINED.search(line.text[:LOOK_CHARS]):
                stuck += ranks_of(found["ranks"])
                joined = int(found["number"])
            elif _NEVER.search(line.text[:LOOK_CHARS]) and (found := _LISTED.search(line.text[:LOOK_CHARS])):
                never += ranks_of(found["ranks"])
        yield DesyncReport(
            **base_of(block, speaker_of(block.line)),
            group=Group(),
            lagging=tuple(lagging),
            finished=finished,
            stuck=tuple(stuck),
            never_joined=tuple(never),
            ahead=tuple(sorted(ahead - {*lagging, *stuck})),
            text=block.line.text[:LOOK_CHARS],
        )


def _ranks_after(lines: list[Line], number: int | None) -> set[int]:
    """Ranks that the snapshot shows in a later collective."""
    ranks: set[int] = set()
    at = 0
    for line in lines:
        if found := _LATEST.match(line.text[:LOOK_CHARS]):
            at = int(found["number"])
        elif number is not None and at > number and (found := _STANDS.match(line.text[:LOOK_CHARS])):
            ranks.update(ranks_of(found["ranks"]))
    return ranks


def _different_calls(block: Block) -> Iterator[OperationMismatch]:
    """The snapshot at the end of a report, where ranks stand in different calls under one number."""
    standing: dict[int, dict[str, list[int]]] = {}
    number = None
    for line in block.after:
        if found := _LATEST.match(line.text[:LOOK_CHARS]):
            number = int(found["number"]) if found["what"] == "started" else None
        elif number is not None and (found := _STANDS.match(line.text[:LOOK_CHARS])):
            calls = standing.setdefault(number, {})
            calls.setdefault(function_of(found["name"]), []).extend(ranks_of(found["ranks"]))
    number = min((at for at, calls in standing.items() if len(calls) > 1), default=None)
    if number is None:
        return
    (name, ranks), *others = standing[number].items()
    ones = [Side(rank, Work(function=name, sequence=number)) for rank in ranks]
    rest = [Side(rank, Work(function=name, sequence=number)) for name, ranks in others for rank in ranks]
    if not ones or not rest:
        return
    pairs = [(ones[0], side) for side in rest] + [(side, rest[0]) for side in ones[1:]]
    for pair in pairs[:_SIDES_MAX]:
        yield OperationMismatch(
            **base_of(block, speaker_of(block.line)), group=Group(), sides=pair, aspects=("op type",)
        )


class Barriers:
    """Barriers that list who is missing. Those of coordinators list healthy tasks as well."""

    name = "barrier report"
    needles = (
        "onitoredBarrier",
        "not at the barrier",
        "clients joined",
        "tasks joined",
        "store based barrier",
    )

    def read(self, block: Block) -> Iterator[Fact]:
        text = block.line.text[:LOOK_CHARS]
        if "successfully reached" in text:  # it names rank 0, whose log says who is missing
            return
        missing: tuple[int, ...] = ()
        arrived = expected = None
        if found := _STORE_BARRIER.search(text):
            speaker = replace(block.line.speaker, rank=int(found["rank"]))
            arrived, expected = int(found["arrived"]), int(found["expected"])
            yield BarrierReport(
                **base_of(block, speaker), arrived=arrived, expected=expected, text=text[:2000]
            )
            return
        if found := _COORDINATED.search(text):
            missing = tuple(ranks_of(found["ranks"] or ""))
            arrived = int(found["arrived"]) if found["arrived"] else None
            expected = int(found["expected"]) if found["expected"] else None
        elif found := next((hit for pattern in _MISSING if (hit := pattern.search(text))), None):
            missing = tuple(ranks_of(found["ranks"]))
        if missing or arrived is not None:
            yield BarrierReport(
                **base_of(block, speaker_of(block.line)),
                missing=missing,
                arrived=arrived,
                expected=expected,
                text=text[:2000],
            )


def ranks_of(text: str) -> list[int]:
    """`0-2, 7` as numbers, bounded; what is no number is left out."""
    ranks: list[int] = []
    for part in text.replace(" ", "").split(","):
        low, _, high = part.partition("-")
        if low.isdecimal() and len(low) < 8 and (not high or (high.isdecimal() and len(high) < 8)):
            ranks += range(int(low), min(int(high or low), int(low) + RANKS_LISTED_MAX) + 1)
        if len(ranks) > RANKS_LISTED_MAX:
            break
    return ranks[:RANKS_LISTED_MAX]


def _work(text: str) -> Work:
    if found := _PRINT.search(text):
        fields = dict(_FIELD.findall(found["fields"]))
        sequence = fields.get("SequenceNumber", "")
        return Work(
            function=function_of(fields.get("OpType", "")),
            sequence=int(sequence) if sequence.isdecimal() and len(sequence) < 19 else None,
            shapes=fields.get("TensorShape", ""),
            dtype=fields.get("TensorDtypes", "").lower(),
        )
    call = _CALL.match(text.strip())
    fields = dict(_FIELD.findall(call["fields"] or "")) if call else {}
    return Work(function=function_of(call["name"]) if call else "", shapes=fields.get("TensorShape", ""))
