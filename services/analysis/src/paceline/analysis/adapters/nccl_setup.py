"""What NCCL says of a process before its first operation: adapters, addresses, and why an init is refused.

Settings: `ib_devices` (names with commas, `none`), `own_address` and `own_interface` (of the bootstrap, as
`eth0:10.0.0.1`), `init_refused` (one of `versions`, `rank_count`, `same_gpu`).
"""

import re
from collections.abc import Iterator

from paceline.analysis.adapters.model import Block
from paceline.analysis.adapters.nccl_log import device_base
from paceline.analysis.facts import Fact, SettingSeen

LOOK_CHARS = 2000
_DEVICES = re.compile(r"NET/IB ?: Using (?P<devices>\[\d{1,3}\][\w.-]{1,64}:.{0,1500}?)(?:\[RO\]|;|$)")
_DEVICE = re.compile(r"\[\d{1,3}\](?P<name>[\w.-]{1,64}):")
_NONE = re.compile(r"NET/IB ?: No (?:IB )?device found|Failed to open libibverbs")
_ADDRESS = re.compile(
    r"(?:Bootstrap ?: Using |OOB )(?:\[\d{1,3}\])?(?P<name>[\w.-]{1,64}):"
    r"(?P<address>[\da-fA-F.:]{3,64}?)(?:%\w+)?<"
)
_REFUSED = (
    ("versions", re.compile(r"Mismatched NCCL version detected")),
    ("rank_count", re.compile(r"mismatch in rank count from procs \d+ : \d+")),
    ("same_gpu", re.compile(r"Duplicate GPU detected : rank \d+ and rank \d+")),
)


class NcclSetup:
    """Adapters in use, the address of the bootstrap, refusals of an init."""

    name = "nccl setup"
    needles = (
        "NET/IB",
        "libibverbs",
        "Bootstrap",
        "Mismatched NCCL",
        "Duplicate GPU",
        "mismatch in rank count",
    )

    def read(self, block: Block) -> Iterator[Fact]:
        text = block.line.text[:LOOK_CHARS]
        if "NCCL" not in text:
            return
        if found := _DEVICES.search(text):
            names = ",".join(sorted({one["name"] for one in _DEVICE.finditer(found["devices"])}))
            yield SettingSeen(**device_base(block), name="ib_devices", value=names)
        elif _NONE.search(text):
            yield SettingSeen(**device_base(block), name="ib_devices", value="none", text=text[:300])
        if found := _ADDRESS.search(text):
            yield SettingSeen(**device_base(block), name="own_address", value=found["address"])
            interface = f"{found['name']}:{found['address']}"
            yield SettingSeen(**device_base(block), name="own_interface", value=interface)
        for value, pattern in _REFUSED:
            if found := pattern.search(text):
                words = text[found.start() :].strip()[:300]
                yield SettingSeen(**device_base(block), name="init_refused", value=value, text=words)
