"""Parts of a step that a log line gives: `step 12 | data 0.01s | fwd 0.23s`, `time: 0.2 data: 0.1`.

A line with the number of a step and at least two different times is a row of kind `steps`, as one of
`adapters.rows`; names and units are those of `row_fields`. Who measured it is the line's speaker.
"""

import re
from collections.abc import Iterator
from typing import Any

from paceline.analysis.adapters.model import Block
from paceline.analysis.adapters.progress import step_number
from paceline.analysis.adapters.row_fields import TIMES, bare_name, bare_time, number_of
from paceline.analysis.adapters.rows import row_facts
from paceline.analysis.facts import Fact

_LOOK_CHARS = 1000
PAIRS_MAX = 40
_PAIR = re.compile(
    r"(?<![\w.])(?P<name>[A-Za-z][A-Za-z_./-]{1,40}?(?:[ _](?:time|wait|load|loading|sync))?)"
    r"(?: ?\((?P<before>ms|s|sec|us)\))?\s{0,4}[:=]?\s{0,8}"
    r"(?P<value>\d{1,12}\.\d{1,12}|\d{1,12})\s?(?P<unit>ms|us|secs?|s)?(?![\w.:%/])"
)
_PARTS = ("own_s", "forward_s", "backward_s", "optimizer_s", "collective_s", "wait_s", "data_s", "step_s")
_WHOLE = ("time", "itime", "batch_time")  # of the step, where it stands among others
_DATA = ("rtime", "dataloadingtime", "data_loading_time", "load_data_time")


class StepLines:
    """At most one row for each line."""

    name = "step lines"
    needles = ("ime", "data", "Data", "fwd", "forward", "comm", "bwd", "backward", "compute")

    def read(self, block: Block) -> Iterator[Fact]:
        text = block.line.text[:_LOOK_CHARS]
        if text.lstrip()[:1] in ("{", "<") or 'File "' in text or "WorkNCCL" in text:
            return
        times = _times(text)
        if len(times) < 2:
            return
        step = step_number(text)
        if step is not None:
            yield from row_facts({"step": step, **times}, block.line)


def _times(text: str) -> dict[str, Any]:
    """Seconds by the names of `row_fields`, the first of each."""
    found: dict[str, Any] = {}
    for count, pair in enumerate(_PAIR.finditer(text)):
        if count >= PAIRS_MAX:
            break
        known = _known(bare_name(pair["name"]))
        if known is None or known in found:
            continue
        unit = pair["before"] or pair["unit"] or "s"
        found[known] = float(pair["value"]) * {"m": 1e-3, "u": 1e-6}.get(unit[0], 1.0)
    return found


def _known(name: str) -> str | None:
    if name in _WHOLE:
        return "step_s"
    if name in _DATA:
        return "data_s"
    known = bare_time(name) or number_of(f"{name}_s", 0.0)[0]
    return known if known in _PARTS and known in TIMES and name not in ("step", "iter", "iteration") else None
