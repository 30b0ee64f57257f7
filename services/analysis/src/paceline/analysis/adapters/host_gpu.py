"""`nvidia-smi -q` and its sections: why clocks are low, ECC, remapped rows, recovery action; device queues.

Settings are named `clock_event_reason`, `ecc_uncorrectable`, `remap_pending`, `remap_failed` and
`gpu_recovery_action`; only what is active or not zero is a fact. `speaker.gpu` is the GPU of the section,
empty in an excerpt without its heading.
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from paceline.analysis.adapters.kernel_log import normal_pci
from paceline.analysis.adapters.model import LOOK_CHARS, Block, base_of
from paceline.analysis.facts import Fact, SampleRow, SettingSeen

_CLOCK = "clock_event_reason"
_GPU = re.compile(r"^\s{0,4}GPU (?P<pci>[\da-fA-F]{4,8}:[\da-fA-F]{2}:[\da-fA-F]{2}(?:\.[\da-fA-F])?)\s*$")
_PAIR = re.compile(r"^\s{0,40}(?P<name>[A-Za-z][^:]{0,60}?)\s{0,60}: (?P<value>.{1,200})$")
_REASONS = (
    "Idle", "Applications Clocks Setting", "SW Power Cap", "HW Slowdown", "HW Thermal Slowdown",
    "HW Power Brake Slowdown", "Sync Boost", "SW Thermal Slowdown", "Display Clock Setting",
    "SW Power Capping", "HW Power Braking",
)  # fmt: skip
_UNCORRECTABLE = re.compile(
    r"(?:SRAM|DRAM) Uncorrectable(?: (?:Parity|SEC-DED))?|Double Bit ECC|Uncorrectable Error|"
    r"Aggregate Uncorrectable"
)
_QUEUE = re.compile(r"^gpu (?P<gpu>\d{1,4}): (?P<words>.{1,1000})")
_QUEUE_NAME = re.compile(r"\b(?P<name>\w{0,40}queue)\[(?P<index>\d{1,4})\]")
_KEY = re.compile(r"\b(?P<key>[a-z_]{1,40})[= ](?P<value>-?\d{1,18}(?:\.\d{1,9})?)%?(?=[ ,;]|$)")
_WORD = re.compile(r"\b(?P<key>[a-z_]{1,40})=(?P<value>[A-Za-z][\w.-]{0,80})")


class SmiSections:
    """Lines `name : value` of nvidia-smi, for the GPU whose section they stand in."""

    name = "nvidia-smi"
    needles = ("GPU 0", " : ", "Volatile", "Aggregate", "Link Width")

    def __init__(self) -> None:
        self._file, self._line, self._gpu = "", 0, ""
        self._lifetime = False
        self._width = ""  # of the slot, while its lines follow

    def read(self, block: Block) -> Iterator[Fact]:
        origin, text = block.line.origin, block.line.text[:LOOK_CHARS]
        if origin.file != self._file or origin.line < self._line:
            self._file, self._gpu, self._lifetime = origin.file, "", False
        self._line = origin.line
        if found := _GPU.match(text):
            self._gpu, self._lifetime = normal_pci(found["pci"]), False
        elif text.strip() == "Link Width":
            self._width = "?"
        elif text.strip() in ("Volatile", "Aggregate"):
            self._lifetime = text.strip() == "Aggregate"
        elif found := _PAIR.match(text):
            name, value = found["name"].strip(), found["value"].strip()
            if self._width and name in ("Max", "Current"):
                yield from self._link_width(block, name, value)
                return
            self._width = ""
            if setting := self._setting(name, value):
                base = base_of(block)
                base["speaker"] = replace(base["speaker"], gpu=self._gpu or base["speaker"].gpu)
                yield SettingSeen(
                    **base, name=setting, value=value if setting != _CLOCK else name, text=text.strip()
                )

    def _link_width(self, block: Block, name: str, value: str) -> Iterator[Fact]:
        """`Max : 16x`, then `Current : 4x`."""
        digits = value.rstrip("x")
        if name == "Max":
            self._width = digits
        elif digits.isdecimal() and self._width.isdecimal() and int(digits) < int(self._width):
            base = base_of(block)
            base["speaker"] = replace(base["speaker"], gpu=self._gpu or base["speaker"].gpu)
            words = f"PCIe link x{digits} of x{self._width}"
            yield SettingSeen(**base, name="pcie_width", value=words, text=words)

    def _setting(self, name: str, value: str) -> str:
        if name in _REASONS:
            return _CLOCK if value == "Active" else ""
        if _UNCORRECTABLE.fullmatch(name) and value.isdecimal() and int(value[:18]) > 0:
            return "ecc_uncorrectable_lifetime" if self._lifetime else "ecc_uncorrectable"
        if name == "Pending" and value == "Yes":
            return "remap_pending"
        if name == "Remapping Failure Occurred" and value == "Yes":
            return "remap_failed"
        if name in ("GPU Recovery Action", "Recovery Action") and value not in ("None", "N/A"):
            return "gpu_recovery_action"
        return ""


class DeviceQueues:
    """`gpu 1: hsa_queue[1] write_ptr=2210 read_ptr=2173 pending=37`: work that waits on a device."""

    name = "device queues"
    needles = ("gpu ",)

    def read(self, block: Block) -> Iterator[Fact]:
        found = _QUEUE.match(block.line.text[:LOOK_CHARS])
        if not found or "=" not in found["words"]:
            return
        numbers: dict[str, float] = {"gpu": float(found["gpu"])}
        words: dict[str, str] = {}
        if queue := _QUEUE_NAME.search(found["words"]):
            numbers["queue"] = float(queue["index"])
            words["queue"] = queue["name"]
        numbers.update((pair["key"], float(pair["value"])) for pair in _KEY.finditer(found["words"]))
        words.update((pair["key"], pair["value"]) for pair in _WORD.finditer(found["words"]))
        base: dict[str, Any] = base_of(block)
        base["speaker"] = replace(base["speaker"], local_rank=int(found["gpu"]))
        yield SampleRow(**base, kind="queues", numbers=numbers, words=words)
