"""From slow links to the root: one link, or what several links of different communicators share."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from paceline.analysis.evidence import JobEvidence
from paceline.analysis.findings import name_ranks
from paceline.analysis.slow_keys import SlowKey
from paceline.contracts.verdicts import Role, Root, RootKind

LINKS_MAX = 64
_COST_MIN = 0.3  # of the worst key: what costs less is not the same trouble
Link = tuple[int, int]  # (sender, receiver), global ranks


@dataclass(frozen=True)
class Path:
    """Where it is slow, in roots and in words."""

    roots: tuple[Root, ...]
    where: str
    shared: bool = False


def path_roots(evidence: JobEvidence, key: SlowKey, keys: Sequence[SlowKey]) -> Path | None:
    """The slow link of `key`, or what it shares with the slow links of the other keys; None if unknown.

    Several links of one node point to its uplink (NODE), several between different nodes to what lies
    between them (DOMAIN). Links inside one node share nothing that we know of but the node.
    """
    if not key.slow.links:
        return None
    links = _links(key, keys)
    if len(links) == 1:
        return _one(evidence, links[0])
    ends = sorted({rank for link in links for rank in link})
    own = tuple(_root(evidence, link, Role.CASCADE) for link in links[:LINKS_MAX])
    node = _common_node(evidence, links)
    if node is not None:
        root = Root(RootKind.NODE, node=node, ranks=tuple(ends))
        return Path((root, *own), f"what {len(links)} links of node {node} share", True)
    nodes = sorted({name for rank in ends if (name := evidence.node(rank)) is not None})
    if len(nodes) < 2:
        return _one(evidence, links[0])
    name = f"between {', '.join(nodes[:8])}" + (" and others" if len(nodes) > 8 else "")
    root = Root(RootKind.DOMAIN, name=name, ranks=tuple(ends))
    return Path((root, *own), f"what {len(links)} links {name} share ({name_ranks(ends)})", True)


def _links(key: SlowKey, keys: Sequence[SlowKey]) -> list[Link]:
    """Links of all keys that lose about as much, those of `key` first, each once."""
    worst = key.worst
    found = dict.fromkeys(key.slow.links)
    for other in keys:
        if other.worst >= _COST_MIN * worst:
            found.update(dict.fromkeys(other.slow.links[:1]))
    return list(found)


def _common_node(evidence: JobEvidence, links: Sequence[Link]) -> str | None:
    """The node that every link leaves, else that every link reaches, else that it touches."""
    senders = [evidence.node(sender) for sender, _ in links]
    receivers = [evidence.node(receiver) for _, receiver in links]
    for names in (senders, receivers):
        if names[0] is not None and all(name == names[0] for name in names):
            return names[0]
    touched = Counter(
        name for pair in zip(senders, receivers, strict=True) for name in set(pair) if name is not None
    )
    name, times = touched.most_common(1)[0] if touched else (None, 0)
    return name if times == len(links) else None


def _one(evidence: JobEvidence, link: Link) -> Path:
    return Path((_root(evidence, link, Role.INITIATING),), f"the link from rank {link[0]} to rank {link[1]}")


def _root(evidence: JobEvidence, link: Link, role: Role) -> Root:
    sender, receiver = link
    return Root(RootKind.LINK, rank=sender, node=evidence.node(sender), peer_rank=receiver, role=role)
