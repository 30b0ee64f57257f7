"""What a dump of NCCL's graphs says of the order of one communicator (docs/adr/0038)."""

from collections.abc import Mapping, Sequence
from itertools import pairwise

from paceline.analysis.adapters.nccl_graph import Graph, GraphDump, local_number
from paceline.analysis.orders import EVERY, GRAPH_DUMP, Contradiction, Known

Chain = tuple[int, ...]


class Unfit(ValueError):
    """The dump cannot be of this communicator, or does not say who is who."""


def known_of_dump(dump: GraphDump, ranks: Mapping[int, int], size: int, writer: int) -> Known:
    """Links and parents of a communicator of `size` ranks whose rank `writer` wrote `dump`.

    `ranks`: of GPUs by number, where the dump itself has none. Unfit where it is of another one.
    """
    rings, trees = (_chains(graph, ranks) for graph in (dump.ring, dump.tree))
    members = set(rings[0]) if rings else set()
    if not rings or any(set(chain) != members for chain in (*rings, *trees)):
        raise Unfit("channels of different ranks")
    if writer not in members or max(members) >= size:
        raise Unfit(f"ranks {sorted(members)[:8]}, expected {writer} among them, of {size}")
    beyond = dump.ring.beyond
    if beyond != (len(members) < size) or (trees and dump.tree.beyond != beyond):
        raise Unfit(f"{len(members)} of {size} ranks, with networks: {beyond}")
    known = Known(size, sources={GRAPH_DUMP})
    try:
        if len(set(rings)) == 1 or not _may_be_exchanged(dump.ring, members):
            _add_rings(known, rings, closed=not beyond)
        _add_trees(known, trees, rooted=not beyond)
    except Contradiction as error:
        raise Unfit(str(error)) from None
    return known


def _chains(graph: Graph, ranks: Mapping[int, int]) -> list[Chain]:
    chains = []
    for channel in graph.channels:
        named = [gpu.rank if gpu.rank is not None else ranks.get(local_number(gpu)) for gpu in channel]
        chain = tuple(rank for rank in named if rank is not None)
        if len(chain) != len(channel) or len(set(chain)) != len(chain):
            raise Unfit("a GPU without a rank, or two of one")
        chains.append(chain)
    return chains


def _may_be_exchanged(ring: Graph, members: set[int]) -> bool:
    """NCCL exchanges the channels in pairs on every other node, and counts nodes from that of rank 0 on."""
    return ring.beyond and ring.crossnic == 2 and len(ring.channels) % 2 == 0 and 0 not in members


def _add_rings(known: Known, rings: Sequence[Chain], closed: bool) -> None:
    """The last GPU sends to the first, unless the ring goes on to other machines.

    NCCL repeats these channels, and may use fewer of them: where all are alike, so are those in use.
    """
    alike = len(set(rings)) == 1
    for channel, chain in enumerate(rings[:1] if alike else rings):
        for sender, receiver in pairwise((*chain, chain[0]) if closed else chain):
            if sender != receiver:
                known.add_link(EVERY if alike else channel, sender, receiver)


def _add_trees(known: Known, trees: Sequence[Chain], rooted: bool) -> None:
    """Within a machine a tree is a chain; what parent its first GPU has elsewhere is not said. Which channels
    are of the second tree is known only where all are alike."""
    if len(set(trees)) != 1:
        return
    chain = trees[0]
    if rooted:
        known.add_parent(EVERY, chain[0], -1)
    for parent, rank in pairwise(chain):
        known.add_parent(EVERY, rank, parent)
