"""Which nodes are asked to ship what they show: those of the causes, and a few of those who wait."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from paceline.contracts.verdicts import Verdict


class Wanted(str, Enum):
    ROOT = "root"
    WITNESS = "witness"


@dataclass(frozen=True)
class ShippingPolicy:
    """Bounds of what one incident may ask for."""

    nodes_max: int = 8  # at once
    witnesses_min: int = 2  # of them, where there are so many: what waits tells where the cause stands
    requests_max: int = 24  # of one incident, over all its revisions and openings
    deadline_s: float = 90.0  # until nobody waits for it any more
    collect_s: float = 45.0  # what the collector may take on the node
    archive_bytes_max: int = 8 << 20
    incident_bytes_max: int = 64 << 20


@dataclass(frozen=True)
class NodeWanted:
    node: str
    reason: Wanted


def ranks_wanted(verdict: Verdict) -> tuple[list[int], list[int]]:
    """(ranks of the causes, ranks that wait), in the order of the verdict, each once."""
    causes: list[int] = []
    for root in verdict.roots:
        causes += [rank for rank in (root.rank, root.peer_rank, *root.ranks) if rank is not None]
    named = set(causes)
    return list(dict.fromkeys(causes)), [rank for rank in verdict.victims if rank not in named]


def choose_nodes(
    verdict: Verdict,
    places: Sequence[tuple[int, str]],
    asked: Iterable[str],
    requests: int,
    policy: ShippingPolicy,
) -> list[NodeWanted]:
    """Nodes to ask now. `places` are (rank, node) of the ranks of `ranks_wanted` as the registry has them,
    `asked` the nodes that were asked since the incident (re)opened, `requests` all that it ever asked."""
    node_of = dict(places)
    cause_ranks, waiting_ranks = ranks_wanted(verdict)
    causes = [root.node for root in verdict.roots if root.node]
    causes += [node_of[rank] for rank in cause_ranks if rank in node_of]
    causes = list(dict.fromkeys(causes))
    waiting = list(dict.fromkeys(node_of[rank] for rank in waiting_ranks if rank in node_of))
    already = set(asked)
    new_causes = [node for node in causes if node not in already]
    witnesses = [node for node in waiting if node not in already and node not in causes]
    if already:  # a better verdict: the witnesses of the first one have spoken
        witnesses = []
    room = max(0, min(policy.nodes_max, policy.requests_max - requests))
    kept = min(len(witnesses), policy.witnesses_min)
    first = new_causes[: max(room - kept, min(room, 1))]
    rest = _spread(witnesses, room - len(first))
    return [NodeWanted(node, Wanted.ROOT) for node in first] + [
        NodeWanted(node, Wanted.WITNESS) for node in rest
    ]


def _spread(nodes: Sequence[str], count: int) -> list[str]:
    """`count` of `nodes`, evenly spaced: neighbours often share a switch and a fate."""
    if count <= 0:
        return []
    if len(nodes) <= count:
        return list(nodes)
    return [nodes[index * len(nodes) // count] for index in range(count)]
