"""What torch's own Flight Recorder analyser prints, where the dumps themselves are not at hand.

Its "missing ranks" are members without an entry. Its "culprits" are all that differ from the rank it read
first: where they are the majority, the other ones are odd.
"""

import re
from collections.abc import Iterator

from paceline.analysis.adapters.flight_dump import parse_ranks
from paceline.analysis.adapters.functions import function_of
from paceline.analysis.adapters.model import LOOK_CHARS, Block, base_of
from paceline.analysis.facts import (
    Fact,
    Group,
    GroupStatus,
    OperationMismatch,
    Side,
    Speaker,
    Work,
    WorkTimeout,
)

RANKS_MAX = 4096
_HEAD = re.compile(
    r"Not all ranks joining collective,? sequence number: (?P<missing>\d{1,18})|"
    r"Collective (?P<differs>\d{1,18}) at entry \d{1,18} errors|"
    r"Collective sequence number: (?P<number>\d{1,18}) has errors"
)
_FIELD = re.compile(r"(group info|collective|missing ranks|input sizes|expected ranks|error msg)\s?: ?(.*)")
_CULPRIT = re.compile(
    r"Culprit rank (?P<rank>\d{1,7}); Error type: \w{1,64}"
    r"(?:, Expected [\w ]{1,40}: '(?P<expected>[^']{0,400})' does not match found [\w ]{1,40}: "
    r"'(?P<found>[^']{0,400})')?"
)


class FlightAnalyses:
    """Blocks that begin with a sequence number; fields below it, one on each line."""

    name = "flight recorder analysis"
    needles = ("ranks joining collective", "at entry", "has errors")

    def read(self, block: Block) -> Iterator[Fact]:
        head = _HEAD.search(block.line.text[:LOOK_CHARS])
        if not head:
            return
        sequence = int(head["missing"] or head["differs"] or head["number"])
        fields: dict[str, str] = {}
        for line in list(block.after)[:16]:
            text = line.text[:LOOK_CHARS]
            if _HEAD.search(text):
                break
            if found := _FIELD.search(text):
                fields.setdefault(found[1], found[2])
        expected = parse_ranks(fields.get("expected ranks", "").replace("{", "[").replace("}", "]"))[
            :RANKS_MAX
        ]
        missing = set(parse_ranks(fields.get("missing ranks", "").replace("{", "[").replace("}", "]")))
        name, _, description = fields.get("group info", "").partition(":")
        group = Group(name.strip()[:200], description.strip()[:200], len(expected), expected)
        function = function_of(fields.get("collective", ""))
        if missing and expected:
            yield from _absent(block, group, Work(function, sequence), missing)
        if culprits := list(_CULPRIT.finditer(fields.get("error msg", "")))[:RANKS_MAX]:
            works = {
                int(found["rank"]): Work(function, sequence, shapes=found["found"] or "other")
                for found in culprits
            }
            usual = Work(function=function, sequence=sequence, shapes=culprits[0]["expected"] or "expected")
            yield from _differing(block, works, [rank for rank in expected if rank not in works], usual)


def _ranks(text: str) -> tuple[int, ...]:
    """`{0, 1, 4}` as numbers."""
    return parse_ranks(f"[{text.strip().strip('{}[]')}]")[:RANKS_MAX]


def _absent(block: Block, group: Group, work: Work, missing: set[int]) -> Iterator[Fact]:
    """The standing of each member: those without an entry have come as far as the call before."""
    before = (work.sequence or 0) - 1
    for rank in group.ranks:
        base = base_of(block, Speaker(rank=rank))
        if rank in missing:
            yield GroupStatus(**base, group=group, enqueued=before, completed=before)
        else:
            yield WorkTimeout(**base, group=group, work=work)


def _differing(block: Block, works: dict[int, Work], others: list[int], usual: Work) -> Iterator[Fact]:
    if not others:
        return
    first = min(works)
    pairs = [(Side(rank, work), Side(others[0], usual)) for rank, work in sorted(works.items())]
    pairs += [(Side(rank, usual), Side(first, works[first])) for rank in others[1:]]
    for sides in pairs:
        yield OperationMismatch(**base_of(block), group=Group(), sides=sides, aspects=("tensor shapes",))
