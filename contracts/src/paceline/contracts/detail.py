"""What a SET_DETAIL command says, and what an agent answers to it.

The level holds until the command expires, at most DETAIL_S_MAX from its arrival; the next command for the
same attempt replaces it. Standard library only.
"""

import re
from dataclasses import dataclass

from paceline.contracts.codes import DetailLevel

DETAIL_S_MAX = 900.0
LEVELS = {level.name.lower(): level for level in DetailLevel}
KERNEL_EVENTS = 1 << 6  # of `nccl_events` in the process header
STEP_EVENTS = 1 << 4
_REPORT = re.compile(
    r"(\d{1,9}) processes at (\w{1,20}); before: (\d{1,9}) at (\w{1,20}), NCCL plugin in (\d{1,9}) "
    r"\(tier (\d{1,9}) or more, kernels in (\d{1,9}), steps in (\d{1,9}), lowered (\d{1,9}), "
    r"own (\d{1,18}) us\)"
)


def read_level(arguments: dict[str, str]) -> DetailLevel:
    """The level that a command asks for; ValueError names what was expected."""
    word = arguments.get("level", "")
    if word not in LEVELS:
        raise ValueError(f"level is {word[:40]!r}, expected one of {', '.join(LEVELS)}")
    return LEVELS[word]


@dataclass(frozen=True)
class DetailReport:
    """What was in force on the processes of one node, as their pages said, when a command came."""

    processes: int  # that are asked now
    level: DetailLevel  # that is asked now
    before_processes: int  # whose page was asked for `before`
    before: DetailLevel
    plugin: int  # processes with an NCCL plugin
    tier: int  # the least tier in force among these
    kernels: int  # of these, with kernel events
    steps: int  # of these, with proxy steps
    lowered: int  # times that budgets have lowered detail, all processes
    own_us: int  # time in callbacks, all processes

    def text(self) -> str:
        return (
            f"{self.processes} processes at {self.level.name.lower()}; before: {self.before_processes} at "
            f"{self.before.name.lower()}, NCCL plugin in {self.plugin} (tier {self.tier} or more, kernels in "
            f"{self.kernels}, steps in {self.steps}, lowered {self.lowered}, own {self.own_us} us)"
        )

    @classmethod
    def parse(cls, text: str) -> "DetailReport | None":
        """None for any other text."""
        found = _REPORT.match(text)
        if found is None or found[2] not in LEVELS or found[4] not in LEVELS:
            return None
        counts = [int(found[place]) for place in (5, 6, 7, 8, 9, 10)]
        return cls(int(found[1]), LEVELS[found[2]], int(found[3]), LEVELS[found[4]], *counts)
