"""The table that `nvidia-smi` prints: one row of kind `telemetry` for each GPU, from its two lines."""

import re
from collections.abc import Iterator
from dataclasses import replace

from paceline.analysis.adapters.kernel_log import normal_pci
from paceline.analysis.adapters.model import Block, base_of
from paceline.analysis.facts import Fact, SampleRow

_CHARS_MAX = 200
_NAME = re.compile(
    r"^\|\s{1,4}(?P<gpu>\d{1,3})\s{1,4}\S.{0,80}\|\s{1,4}(?P<pci>[\da-fA-F]{8}:[\da-fA-F]{2}:[\da-fA-F]{2}\.\d)"
)
_VALUES = re.compile(
    r"^\|.{0,8}?\s(?P<temp>\d{1,3})C\s{1,6}P\d{1,2}\s{1,20}(?P<power>\d{1,4})W\s?/\s{1,4}(?P<cap>\d{1,4})W\s?\|"
    r"\s{1,8}(?P<used>\d{1,7})MiB\s?/\s{1,6}\d{1,7}MiB\s?\|\s{1,6}(?P<util>\d{1,3})%"
)


class SmiTables:
    """GPUs whose second line follows the first."""

    name = "nvidia-smi table"
    needles = (":00.0 O", ".0 Off", ".0  Off", ".0 On")

    def read(self, block: Block) -> Iterator[Fact]:
        found = _NAME.match(block.line.text[:_CHARS_MAX])
        values = _VALUES.match(block.after[0].text[:_CHARS_MAX]) if found and block.after else None
        if not found or not values:
            return
        base = base_of(block)
        gpu, pci = int(found["gpu"]), normal_pci(found["pci"])
        base["speaker"] = replace(base["speaker"], local_rank=gpu, gpu=pci)
        numbers = {
            "temp_c": float(values["temp"]),
            "power_w": float(values["power"]), "power_cap_w": float(values["cap"]),
            "memory_used": float(values["used"]), "sm_util": float(values["util"]),
        }  # fmt: skip
        yield SampleRow(**base, kind="telemetry", numbers=numbers, words={"gpu": str(gpu)})
