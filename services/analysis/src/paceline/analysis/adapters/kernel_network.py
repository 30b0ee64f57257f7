"""The kernel's log of network adapters: links that go down, firmware that stops, cables and modules.

A link that comes up again is not written: that it went down is what transfers fail by.
"""

import re
from collections.abc import Iterator
from dataclasses import replace

from paceline.analysis.adapters.model import LOOK_CHARS, Block, base_of
from paceline.analysis.facts import Fact, NetworkFailure, NetworkKind

KERNEL = "kernel: "  # begins the text of these facts
_DRIVER = re.compile(
    r"\b(?P<driver>mlx5_core|mlx5_ib|mlx4_core|bnxt_en|bnxt_re|ice|irdma|efa|ena|ionic|hns3)(?: PCI)? "
    r"(?P<pci>[\da-fA-F]{4}:[\da-fA-F]{2}:[\da-fA-F]{2}\.[\da-fA-F])(?: (?P<port>[\w.-]{1,32}))?:? ?:? "
    r"?(?P<text>.{1,600})"
)
_FAILS = re.compile(
    r"[Ll]ink (?:is )?[Dd]own|health compromised|[Ff]atal error|firmware (?:fatal|reset|is not responding)|"
    r"synd 0x[\da-f]+: (?!.*unknown)|internal error|device is in error state|"
    r"Will cause a leak of a command resource|[Cc]able (?:unplugged|error)|Detected insufficient power|"
    r"High Temperature|over(?: |-)?temperature|PCIe Bus Error: severity=Uncorrect|"
    r"lost (?:from|communication)|TX timeout|Failed to process command",
)
_NO_FAILURE = re.compile(r"health recovered|[Ll]ink (?:is )?[Uu]p\b")


class KernelPorts:
    """Adapters that fail, by what their drivers say."""

    name = "kernel network"
    needles = ("mlx5_core", "mlx5_ib", "mlx4_core", "bnxt_", "ice ", "irdma", "efa ", "ionic", "hns3", "ena ")

    def read(self, block: Block) -> Iterator[Fact]:
        text = block.line.text[:LOOK_CHARS]
        found = _DRIVER.search(text)
        if not found or not _FAILS.search(found["text"]) or _NO_FAILURE.search(found["text"]):
            return
        base = base_of(block, replace(block.line.speaker, rank=None))
        device = " ".join(part for part in (found["port"], found["pci"]) if part)
        yield NetworkFailure(
            **base, kind=NetworkKind.PORT, device=device, text=KERNEL + found["text"].strip()[:400]
        )
