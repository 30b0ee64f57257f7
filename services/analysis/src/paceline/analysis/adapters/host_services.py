"""Services of a node without which its GPUs do not reach each other: fabric manager, IMEX.

Settings: `fabric_service` ("fabric manager failed") and `imex_node` (address and state of a member of the
domain that is not ready).
"""

import re
from collections.abc import Iterator

from paceline.analysis.adapters.model import LOOK_CHARS, Block, base_of
from paceline.analysis.facts import Fact, SettingSeen

_SERVICE = re.compile(
    r"nvidia-(?P<name>fabricmanager|imex)(?:\.service)?(?:\[\d+\])?: "
    r"(?:Main process exited|Failed with result|Control process exited.{0,40}FAILURE|Start request repeated)|"
    r"Failed to start .{0,40}(?P<other>[Ff]abric ?[Mm]anager|IMEX)"
)
_ACTIVE = re.compile(r"^\s*Active: (?P<state>failed|inactive)")
_UNIT = re.compile(r"nvidia-(?P<name>fabricmanager|imex)\.service - ")
_MEMBER = re.compile(
    r"^\s*Node #(?P<index>\d{1,4})\s*\*?\s*- (?P<address>[\w.:-]{2,64})\s*\*?\s*- "
    r"(?P<state>[A-Z_ ]{2,30}?)\s*-"
)


class FabricServices:
    """systemd's journal and status, and `nvidia-imex-ctl -N`."""

    name = "fabric services"
    needles = ("nvidia-fabricmanager", "nvidia-imex", "Node #", "abric Manager", "Active: ")

    def __init__(self) -> None:
        self._unit: tuple[str, int, str] = ("", 0, "")

    def read(self, block: Block) -> Iterator[Fact]:
        text, origin = block.line.text[:LOOK_CHARS], block.line.origin
        if found := _MEMBER.match(text):
            if found["state"].strip() != "READY":
                value = f"{found['address']} {found['state'].strip()}"
                yield SettingSeen(**base_of(block), name="imex_node", value=value, text=text.strip()[:300])
        elif found := _UNIT.search(text):
            self._unit = (origin.file, origin.line, found["name"])
        elif found := _ACTIVE.match(text):
            file, line, unit = self._unit
            if unit and file == origin.file and 0 < origin.line - line <= 6:
                yield self._failed(block, unit, text)
        elif found := _SERVICE.search(text):
            yield self._failed(block, found["name"] or found["other"] or "", text)

    def _failed(self, block: Block, unit: str, text: str) -> Fact:
        name = "IMEX" if unit.lower() == "imex" else "fabric manager"
        return SettingSeen(
            **base_of(block), name="fabric_service", value=f"{name} failed", text=text.strip()[:300]
        )
