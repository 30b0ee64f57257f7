"""Metrics of dcgm-exporter in Prometheus' text: the last Xid of each GPU, memory that could not be repaired.

The last Xid is an event without a time, perhaps of another job: those that programs make say nothing here.
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from paceline.analysis.adapters.kernel_log import normal_pci
from paceline.analysis.adapters.model import LOOK_CHARS, Block, base_of
from paceline.analysis.facts import DeviceEvent, Fact, SettingSeen

_LINE = re.compile(
    r"^(?P<name>DCGM_FI_DEV_[A-Z0-9_]{3,60})\{(?P<labels>[^}]{0,1500})\} (?P<value>\d{1,18}(?:\.\d{1,9})?)\b"
)
_LABEL = re.compile(r'(?P<key>\w{1,40})="(?P<value>[^"]{0,200})"')
_PCI = re.compile(r"[\da-fA-F]{4,8}:[\da-fA-F]{2}:[\da-fA-F]{2}(?:\.[\da-fA-F])?")
_OF_PROGRAMS = frozenset({8, 13, 31, 32, 38, 43, 45, 63, 68, 69, 92, 109})
_STATES = {
    "DCGM_FI_DEV_ROW_REMAP_FAILURE": "remap_failed",
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": "ecc_uncorrectable",
    "DCGM_FI_DEV_ROW_REMAP_PENDING": "remap_pending",
}


class DcgmMetrics:
    """`DCGM_FI_DEV_XID_ERRORS{gpu="3",...,Hostname="n2"} 79`."""

    name = "dcgm metrics"
    needles = ("DCGM_FI_DEV_",)

    def read(self, block: Block) -> Iterator[Fact]:
        text = block.line.text[:LOOK_CHARS]
        found = _LINE.match(text)
        value = int(float(found["value"])) if found else 0
        if not found or value == 0:
            return
        labels = {one["key"].lower(): one["value"] for one in _LABEL.finditer(found["labels"])}
        base = _base(block, labels)
        if found["name"] == "DCGM_FI_DEV_XID_ERRORS":
            if value in _OF_PROGRAMS:
                return
            yield DeviceEvent(**base, code=value, text=labels.get("err_msg", "last Xid of DCGM")[:300])
        elif name := _STATES.get(found["name"]):
            yield SettingSeen(**base, name=name, value=str(value), text=text[:200])


def _base(block: Block, labels: dict[str, str]) -> dict[str, Any]:
    base = base_of(block)
    speaker = base["speaker"]
    pci, gpu = labels.get("pci_bus_id", ""), labels.get("gpu", "")
    base["speaker"] = replace(
        speaker,
        rank=None,
        host=labels.get("hostname") or speaker.host,
        gpu=normal_pci(pci) if _PCI.fullmatch(pci) else speaker.gpu,
        local_rank=int(gpu) if gpu.isdecimal() and len(gpu) < 4 else speaker.local_rank,
    )
    return base
