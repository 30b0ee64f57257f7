"""Rates of pairs as lines: `h1 <-> h2 : 391.2 Gb/s`, `h1 -> h2 24.1 GB/s`, `rank 0 to rank 3: 180 GB/s`."""

import re
from collections.abc import Iterator

from paceline.analysis.adapters.model import Block
from paceline.analysis.adapters.rows import row_facts
from paceline.analysis.facts import Fact

_CHARS_MAX = 300
_PAIR = re.compile(
    r"^\W{0,8}(?P<a>(?:rank |gpu )?[\w.-]{1,64}) ?(?:<-{1,2}>|<=>|-{1,2}>|=>|\bto\b|\bvs\.?) ?"
    r"(?P<b>(?:rank |gpu )?[\w.-]{1,64})\s{0,8}[:=|,]?\s{1,8}(?:\w{2,12}[ =:]{1,3})?"
    r"(?P<value>\d{1,9}(?:\.\d{1,6})?) ?(?P<unit>[GM](?:b|B|i?B|bit)(?:ps|/s|/sec))\b"
)


class PairLines:
    """One row of kind `pairs` for each line."""

    name = "pair lines"
    needles = ("->", "<=>", "=>", " to ", " vs")

    def read(self, block: Block) -> Iterator[Fact]:
        found = _PAIR.match(block.line.text[:_CHARS_MAX])
        if found and found["a"] != found["b"]:
            scale = 1e9 if found["unit"][0] == "G" else 1e6
            row = {"src": found["a"], "dst": found["b"], "bandwidth": float(found["value"]) * scale}
            yield from row_facts(row, block.line)
