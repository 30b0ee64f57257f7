"""Reports of straggler detectors inside frameworks: who computes slowest, by their own measure.

Read are Megatron's (`MnEtpt/Rnk: 271.30TF/12 | MxEtpt/Rnk: ...`, `Bottom 4 Ranks with lowest Etpt(TF):
271.30/12, ...`) and those of the resiliency extension (`Rank=9 Node=dgx-1 Score=0.69`,
`StragglerId(rank=9, node='..')`). Each value is a `SampleRow` of kind `scores`: `score` is more where the
rank is faster; `flagged` where the tool itself calls the rank a straggler.
"""

import re
from collections.abc import Iterator
from dataclasses import replace

from paceline.analysis.adapters.model import LOOK_CHARS, Block, base_of
from paceline.analysis.facts import Fact, SampleRow

PAIRS_MAX = 256
_LIST = re.compile(r"Ranks with (?:lowest|highest)\s{1,4}(?P<what>\w{1,20})[^:]{0,20}:(?P<list>.{1,8000})")
_VALUE = re.compile(r"(?P<value>\d{1,12}(?:\.\d{1,9})?)(?:[A-Za-z]{1,8})?/(?P<rank>\d{1,7})\b")
_EXTREME = re.compile(
    r"M[nx](?P<what>Etpt|Clk|Pwr)/Rnk:\s{0,4}(?P<value>\d{1,12}(?:\.\d{1,9})?)[A-Za-z]{0,4}/(?P<rank>\d{1,7})"
)
_SCORE = re.compile(
    r"\b[Rr]ank[=: ]{1,2}(?P<rank>\d{1,7}),? [Nn]ode[=: ]{1,2}(?P<node>[\w.-]{1,128}),? "
    r"[Ss]core[=: ]{1,2}(?P<value>\d{1,9}(?:\.\d{1,9})?)"
)
_FLAGGED = re.compile(r"StragglerId\(rank=(?P<rank>\d{1,7}), node=['\"]?(?P<node>[\w.-]{0,128})")
_MEASURES = ("etpt",)  # of Megatron's: estimated throughput; clock and power only go with it


class StragglerReports:
    """One fact for each rank and measure that a line names."""

    name = "straggler reports"
    needles = ("/Rnk:", "Ranks with ", "core=", "StragglerId", "core:")

    def read(self, block: Block) -> Iterator[Fact]:
        text = block.line.text[:LOOK_CHARS]
        if found := _LIST.search(text):
            for pair in list(_VALUE.finditer(found["list"]))[:PAIRS_MAX]:
                yield _row(block, found["what"].lower(), float(pair["value"]), int(pair["rank"]))
        elif "/Rnk:" in text:
            for pair in _EXTREME.finditer(text):
                yield _row(block, pair["what"].lower(), float(pair["value"]), int(pair["rank"]))
        elif "StragglerId" in text:
            for one in list(_FLAGGED.finditer(text))[:PAIRS_MAX]:
                yield _row(block, "flagged", 1.0, int(one["rank"]), one["node"])
        elif found := _SCORE.search(text):
            yield _row(block, "score", float(found["value"]), int(found["rank"]), found["node"])


def _row(block: Block, what: str, value: float, rank: int, node: str = "") -> SampleRow:
    base = base_of(block)
    base["speaker"] = replace(base["speaker"], rank=rank, host=node, pid=None, local_rank=None, gpu="")
    name = "score" if what in _MEASURES else what
    return SampleRow(**base, kind="scores", numbers={name: value}, words={"measure": what})
