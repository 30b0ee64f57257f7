"""Horovod's stall inspector: tensors that a part of the ranks submitted, and who is missing for each.

Forms: `Stalled ops: NAME [missing ranks: 0, 3]`, `NAME [ready ranks: 2, 0, 1]`, and `Missing ranks:`
followed by `5: [NAME, NAME, ...]`. Each is a `BarrierReport` with the operation in its text.
"""

import re
from collections.abc import Iterator

from paceline.analysis.adapters.model import LOOK_CHARS, Block, base_of
from paceline.analysis.facts import BarrierReport, Fact

TENSORS_MAX = 256
_TENSOR = re.compile(
    r"(?P<name>[\w./:+-]{1,300}) \[(?P<how>missing|ready) ranks: (?P<ranks>\d{1,7}(?:, ?\d{1,7}){0,4095})\]"
)
_BY_RANK = re.compile(r"^\s{0,4}(?:(?P<rank>\d{1,7}): )?\[(?P<names>[\w./:+, -]{1,8000})")
_LISTED = re.compile(r"(?:Missing|Stalled) ranks:")
_OPERATION = re.compile(r"all_?reduce|all_?gather|broadcast|reduce_?scatter|all_?to_?all", re.IGNORECASE)


class HorovodStalls:
    """One fact for each tensor, or for each missing rank."""

    name = "horovod"
    needles = (" ranks: ", "issing ranks:", "talled ranks:")

    def read(self, block: Block) -> Iterator[Fact]:
        text = block.line.text[:LOOK_CHARS]
        tensors = list(_TENSOR.finditer(text))[:TENSORS_MAX]
        for found in tensors:
            ranks = tuple(sorted({int(rank) for rank in found["ranks"].split(",")}))
            missing, ready = (ranks, ()) if found["how"] == "missing" else ((), ranks)
            yield BarrierReport(**base_of(block), missing=missing, ready=ready, text=_words(found["name"]))
        if not tensors and _LISTED.search(text):
            for line in list(block.after)[:TENSORS_MAX]:
                by_rank = _BY_RANK.match(line.text[:LOOK_CHARS])
                rank = int(by_rank["rank"]) if by_rank and by_rank["rank"] else line.speaker.rank
                if not by_rank or rank is None:  # the rank may have been taken off as a launcher's label
                    break
                base = {**base_of(block), "origin": line.origin}
                yield BarrierReport(**base, missing=(rank,), text=_words(by_rank["names"]))


def _words(names: str) -> str:
    """`allreduce allreduce.fc.bias`: the operation in front of the first tensor's name."""
    name = names.split(",")[0].strip()
    found = _OPERATION.search(name)
    return f"{found[0].lower() if found else 'collective'} {name}"[:300]
