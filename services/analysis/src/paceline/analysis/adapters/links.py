"""Network links of a host that went down, from its kernel log, as settings `link_down` (the interface)."""

import re
from collections.abc import Iterator

from paceline.analysis.adapters.model import LOOK_CHARS, Block, base_of
from paceline.analysis.facts import Fact, SettingSeen

_DOWN = re.compile(
    r"(?:mlx5_core|mlx4_en|bnxt_en|ice|i40e|ixgbe|ena|irdma|hfi1)\b[^:]{0,40}\s?[\da-f.:]{0,16}\s?"
    r"(?P<driver>[a-z][\w-]{1,15})(?::|\s\w{3,6}:)? (?:NIC )?[Ll]ink (?:is )?[Dd]own"
    r"|bond\w{0,12}: (?:\(slave |link status definitely down for (?:active )?interface )"
    r"(?P<bond>[a-z][\w-]{1,15})"
    r"(?=\): link status definitely down|,)"
    r"|mlx5_core [\da-f.:]{7,16}:? ?.{0,40}(?P<module>Port module event).{0,60}(?:unplugged|[Ee]rror)"
)


class LinkStates:
    """One fact for each link that a line reports as down."""

    name = "links"
    needles = ("ink down", "ink Down", "ink is Down", "definitely down", "Port module event")

    def read(self, block: Block) -> Iterator[Fact]:
        text = block.line.text[:LOOK_CHARS]
        if found := _DOWN.search(text):
            value = found["driver"] or found["bond"] or "port module"
            yield SettingSeen(**base_of(block), name="link_down", value=value, text=text.strip()[:300])
