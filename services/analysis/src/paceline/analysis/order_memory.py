"""Orders that were joined before: a judgement every few seconds parses no record twice."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from paceline.analysis.orders import join_parts
from paceline.contracts.registry import OrderPart

JOINED_MAX = 1024  # communicators of an attempt whose joined order is kept: one of 16,384 ranks takes 1 MB


@dataclass(frozen=True)
class JoinedTexts:
    """What the evidence says of one communicator: registry texts, empty where unknown, and why."""

    ring: str
    tree: str
    reasons: tuple[str, ...]


class JoinedOrders:
    """Joined orders of the communicators of one attempt, so that no record is parsed at every judgement.

    An answer holds as long as members and parts are the same; agents repeat their records, so equal ones
    count as the same. Least recently used first out.
    """

    def __init__(self, kept_max: int = JOINED_MAX) -> None:
        self.parsed = 0  # parts read so far
        self._kept_max = kept_max
        self._kept: OrderedDict[str, tuple[tuple[int, ...], tuple[OrderPart, ...], JoinedTexts]] = (
            OrderedDict()
        )

    def __len__(self) -> int:
        return len(self._kept)

    def find(self, communicator: str, members: Sequence[int], parts: Sequence[OrderPart]) -> JoinedTexts:
        """`members`: global ranks in communicator order."""
        ranks, said = tuple(members), tuple(parts)
        kept = self._kept.get(communicator)
        if kept is not None and kept[0] == ranks and kept[1] == said:
            self._kept.move_to_end(communicator)
            return kept[2]
        order = join_parts(len(ranks), said)
        self.parsed += len(said)
        found = JoinedTexts(order.ring_text(ranks), order.tree_text(), tuple(order.reasons))
        self._kept[communicator] = (ranks, said, found)
        self._kept.move_to_end(communicator)
        while len(self._kept) > self._kept_max:
            self._kept.popitem(last=False)
        return found
