"""Metrics in the text format of Prometheus: `name{rank="3",host="a"} 0.51 1749722400000`.

A sample is a row of one value with its labels as words; what kind it is follows as in `adapters.rows`.
"""

import re
from collections.abc import Iterator
from typing import Any

from paceline.analysis.adapters.model import Block
from paceline.analysis.adapters.row_fields import is_measure
from paceline.analysis.adapters.rows import row_facts
from paceline.analysis.facts import Fact

_CHARS_MAX = 2000
_SAMPLE = re.compile(
    r"^(?P<name>[A-Za-z_:][\w:]{1,120})\{(?P<labels>[^{}]{1,1500})\} "
    r"(?P<value>-?\d{1,18}(?:\.\d{1,12})?(?:[eE][+-]?\d{1,3})?)(?: (?P<when>\d{10,13}))?\s*$"
)
_LABEL = re.compile(r'(?P<key>[A-Za-z_]\w{0,60})="(?P<value>[^"]{0,200})"')
_KEPT = {
    "rank": "rank", "global_rank": "rank", "host": "node", "hostname": "node", "node": "node",
    "instance": "node", "gpu": "gpu", "pci_bus_id": "pci_bus_id", "step": "step",
    "local_rank": "local_rank", "op": "op", "device": "device",
}  # fmt: skip


class MetricsText:
    """One row for each sample whose name is that of a known measure."""

    name = "metrics"
    needles = ("} ",)

    def read(self, block: Block) -> Iterator[Fact]:
        found = _SAMPLE.match(block.line.text[:_CHARS_MAX])
        if not found:
            return
        name = found["name"].lower().replace(":", "_")
        if not is_measure(name):
            return
        row: dict[str, Any] = {}
        for label in _LABEL.finditer(found["labels"]):
            key = _KEPT.get(label["key"].lower())
            if key is not None:
                whole = label["value"].isdecimal() and key in ("rank", "step", "local_rank")
                row.setdefault(key, int(label["value"]) if whole else label["value"])
        if found["when"]:
            row["timestamp"] = int(found["when"])
        row[name] = float(found["value"])
        yield from row_facts(row, block.line)
