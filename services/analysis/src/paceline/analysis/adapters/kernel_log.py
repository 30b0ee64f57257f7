"""The kernel's log: NVIDIA Xid and SXid in all their forms, GPUs off the bus, the out-of-memory killer.

The process named in an Xid is the one that used the GPU at that moment; it is seldom the guilty one.
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from paceline.analysis.adapters.model import LOOK_CHARS, Block, base_of
from paceline.analysis.facts import DeviceEvent, Fact, HostKill

OFF_THE_BUS = 79
_PCI = r"(?:PCI:)?(?P<pci>[\da-fA-F]{4,8}:[\da-fA-F]{2}:[\da-fA-F]{2}(?:\.[\da-fA-F])?)"
_XID = re.compile(r"Xid \(" + _PCI + r"(?: GPU-I:\d{1,18})?\): (?P<code>\d{1,4})(?:, (?P<rest>.*))?")
_PROCESS = re.compile(r"pid='?(?P<pid>\d{1,18}|<unknown>)'?(?:, name='?(?P<name>[^,']*)'?)?(?:, )?")
_LINK = re.compile(r"\bLink (?P<link>\d{1,3})\b")
_SEVERITY = re.compile(r"\b(Fatal|Nonfatal)\b")
_RECOVERY = re.compile(
    r"GPU recovery action changed from 0x[\da-fA-F]+ \([^)]*\) to 0x[\da-fA-F]+ \((?P<action>[^)]*)\)"
)
_SWITCH = re.compile(
    r"nvidia-nvswitch(?P<switch>\d{1,18}): SXid \(" + _PCI + r"\): (?P<code>\d{4,6}),? ?(?P<rest>.*)"
)
_OFF = re.compile(
    r"GPU (?:at )?" + _PCI + r".*fallen off the bus|NVIDIA GPU " + _PCI.replace("<pci>", "<other>")
)
_KILLED = re.compile(r"(?:Out of memory: )?Kill(?:ed)? process (?P<pid>\d{1,18})(?:,? ?\((?P<name>[^)]*)\))?")
_OOM_KILL = re.compile(r"oom-kill:.*?task=(?P<name>[^,]+),pid=(?P<pid>\d{1,18})")


class DeviceEvents:
    """Xid, SXid, and `GPU has fallen off the bus` with or without a number."""

    name = "kernel Xid"
    needles = ("Xid (", "fallen off the bus", "NVIDIA GPU ")

    def read(self, block: Block) -> Iterator[Fact]:
        text = block.line.text[:LOOK_CHARS]
        if found := _SWITCH.search(text):
            yield self._switch(block, found)
        elif found := _XID.search(text):
            yield self._xid(block, found)
        elif found := _OFF.search(text):
            words = " ".join([text, *(line.text[:LOOK_CHARS] for line in list(block.after)[:4])])
            if "fallen off the bus" in words:
                pci = normal_pci(found["pci"] or found["other"])
                yield DeviceEvent(**_base(block, pci), code=OFF_THE_BUS, implied=True, text=text[:500])

    def _xid(self, block: Block, found: re.Match[str]) -> DeviceEvent:
        rest = found["rest"] or ""
        process = _PROCESS.search(rest)
        pid = int(process["pid"][:9]) if process and process["pid"].isdecimal() else None
        name = (process["name"] or "") if process else ""
        severity, link, recovery = _SEVERITY.search(rest), _LINK.search(rest), _RECOVERY.search(rest)
        base = _base(block, normal_pci(found["pci"]))
        base["speaker"] = replace(base["speaker"], pid=pid)
        return DeviceEvent(
            **base,
            code=int(found["code"]),
            process="" if name == "<unknown>" else name,
            link=int(link["link"]) if link else None,
            severity=severity[1] if severity else "",
            recovery=recovery["action"] if recovery else "",
            text=rest[:500],
        )

    def _switch(self, block: Block, found: re.Match[str]) -> DeviceEvent:
        rest = found["rest"]
        link = _LINK.search(rest)
        severity = (
            "Nonfatal"
            if re.search(r"non-?fatal", rest, re.IGNORECASE)
            else "Fatal"
            if "Fatal" in rest
            else ""
        )
        base = _base(block, normal_pci(found["pci"]))
        return DeviceEvent(
            **base,
            code=int(found["code"]),
            is_switch=True,
            process=f"nvswitch{found['switch']}",
            link=int(link["link"]) if link else None,
            severity=severity,
            text=rest[:500],
        )


class HostKills:
    """The kernel's out-of-memory killer."""

    name = "kernel memory"
    needles = ("Killed process", "Kill process", "oom-kill:")

    def read(self, block: Block) -> Iterator[Fact]:
        text = block.line.text[:LOOK_CHARS]
        found = _OOM_KILL.search(text) or (_KILLED.search(text) if "emory" in text or "oom" in text else None)
        if found:
            base = _base(block, "")
            base["speaker"] = replace(base["speaker"], pid=int(found["pid"][:9]))
            yield HostKill(**base, name=found["name"] or "", text=text[:500])


def normal_pci(text: str) -> str:
    """`PCI:0000:9b:00`, `00000000:9B:00.0` as `0000:9b:00`."""
    domain, bus, device = text.lower().removeprefix("pci:").split(".")[0].split(":")
    return f"{domain[-4:]:0>4}:{bus}:{device}"


def _base(block: Block, pci: str) -> dict[str, Any]:
    spoken = block.line.speaker
    return base_of(block, replace(spoken, gpu=pci or spoken.gpu, rank=None))
