"""What this node knows of the order of communicators, from NCCL's logs, its dumps and the plugin's proxies.

A frame finds its communicator in the log by the plugin's own line, else by NCCL's hash, the size and how
many of both came before; frames of other sources have no such hash and find none (docs/adr/0038).
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from weakref import WeakKeyDictionary

import numpy as np

from paceline.agent.graph_orders import GraphOrders
from paceline.agent.nccl_logs import Look, Wanted
from paceline.agent.pages import PageView
from paceline.agent.processes import Process
from paceline.agent.registry import LocalJob
from paceline.analysis.order_log import Made, OrderLog
from paceline.analysis.orders import PROXIES, Contradiction, Known, join_parts, part_of
from paceline.contracts.codes import Algorithm, OpKind, Source
from paceline.contracts.ids import format_communicator, parse_ranks
from paceline.contracts.registry import OrderPart

PARTS_MAX = 512  # of one node's record
PART_CHARS_MAX = 32_768
PARTS_CHARS_MAX = 262_144  # a record stays far below a megabyte
LOCAL_MEMBERS_MAX = 4096  # of a communicator that is whole on one node
_RING, _SEND = 0, 0


@dataclass
class _Reader:
    log: OrderLog = field(default_factory=OrderLog)
    told: Counter[str] = field(default_factory=Counter)


class Orders:
    """Of all processes of a node. One event loop owns it."""

    def __init__(self, drops: Counter[str]) -> None:
        self._drops = drops
        self._readers: WeakKeyDictionary[Process, _Reader] = WeakKeyDictionary()
        self._told: set[tuple[str, str]] = set()
        self.graphs = GraphOrders(drops)

    def wanted(self, processes: Iterable[Process]) -> list[tuple[Process, Wanted]]:
        """Processes in which NCCL runs, and where it may write."""
        return [
            (process, Wanted(process.pid, process.uid, process.hello.nccl_log))
            for process in processes
            if process.exit is None and process.view is not None and len(_frames(process.view))
        ]

    def take(self, processes: list[Process], look: Look) -> None:
        """Lines that were read for `processes`; those of another pid belong to another process."""
        self._drops.update(look.dropped)
        for place, line in look.lines:
            process = processes[place]
            if line.speaker.pid == process.hello.pid:
                self._readers.setdefault(process, _Reader()).log.feed(line)
        for process in processes:
            reader = self._readers.get(process)
            if reader is not None:
                self._drops.update(reader.log.dropped - reader.told)
                reader.told = reader.log.dropped.copy()

    def refresh(self, job: LocalJob, processes: Iterable[Process]) -> None:
        """Orders of the communicators of `job` as they are known now, into its book."""
        known: dict[str, Known | None] = {}
        for process in processes:
            if process.view is None or process.exit is not None:
                continue
            reader = self._readers.get(process)
            made = reader.log.made if reader is not None else []
            for at in _frames(process.view):
                dumped = self.graphs.known(process, _name(process.view, int(at)))
                _add_frame(known, process.view, int(at), made, dumped)
        parts: dict[str, OrderPart] = {}
        left = PARTS_CHARS_MAX
        for name, one in sorted(known.items()):
            part = OrderPart(name, 0, refused="order_contradicted") if one is None else part_of(name, one)
            left -= (chars := _chars(part))
            if chars > PART_CHARS_MAX or left < 0 or len(parts) >= PARTS_MAX:
                self._tell(job, name, "order_too_large")
            elif part.rings or part.trees or part.links or part.refused:
                parts[name] = part
                if part.refused:
                    self._tell(job, name, part.refused)
        # An order that ended with its communicator stays where it was told; the record says closed.
        job.orders = {name: part for name, part in parts.items() if not self._settle(job, part)}

    def _settle(self, job: LocalJob, part: OrderPart) -> bool:
        """Whether the communicator is whole on this node: then its own record says its order."""
        record = job.communicators.get(part.communicator)
        if record is None:
            return False
        members = parse_ranks(record.ranks)
        if len(members) > LOCAL_MEMBERS_MAX or not job.hellos.keys() >= set(members):
            return False
        order = join_parts(len(members), [part])
        ring, tree = order.ring_text(members), order.tree_text()
        sources = part.sources if ring or tree else ()
        if (record.ring, record.tree, record.order_sources) != (ring, tree, sources):
            told = replace(record, ring=ring, tree=tree, order_sources=sources)
            job.communicators[part.communicator] = told
        for reason in order.reasons:
            self._tell(job, part.communicator, reason)
        return True

    def _tell(self, job: LocalJob, communicator: str, reason: str) -> None:
        """Count a reason once for each communicator."""
        key = (f"{job.job}:{job.attempt}:{communicator}", reason)
        if key not in self._told and len(self._told) < 65_536:
            self._told.add(key)
            self._drops[reason] += 1


def find_made(made: list[Made], communicator: str, context: int, size: int, instance: int) -> Made | None:
    """What the log says of the communicator of a frame; `context` is NCCL's hash of it."""
    by_name = [one for one in made if one.communicator == communicator]
    if by_name:
        return by_name[0] if len(by_name) == 1 else None
    for one in made:
        if context and (one.hash, one.size, one.instance) == (context, size, instance):
            return one if not one.communicator else None
    return None


def _add_frame(
    known: dict[str, Known | None], view: PageView, at: int, made: list[Made], dumped: Known | None
) -> None:
    frame = view.frames[at]
    name, size = _name(view, at), int(frame["nranks"])
    mine = known.setdefault(name, Known(size))
    if mine is None or size < 2:
        return
    found = find_made(made, name, int(frame["context"]), size, int(frame["instance"]))
    try:
        if found is not None:
            if found.refused or found.rank != int(frame["comm_rank"]):
                raise Contradiction(found.refused or "rank")
            mine.merge(found.known)
        if dumped is not None:
            mine.merge(dumped)
        for sender, receiver in proxy_links(view, at):
            mine.add_link(-1, sender, receiver)
            mine.sources.add(PROXIES)
    except Contradiction:
        known[name] = None


def proxy_links(view: PageView, at: int) -> list[tuple[int, int]]:
    """Ring links that the proxies of frame `at` were seen to carry.

    The edge table does not know messages, or algorithms other than trees, from rings: it is believed where
    the frame ran nothing but rings, and names one peer in each direction.
    """
    frame = view.frames[at]
    rounds = view.rounds[at]
    rounds = rounds[(rounds["entered_ns"] > 0) & (rounds["algorithm"] > 0)]
    collective = (rounds["kind"] == OpKind.COLLECTIVE) & (rounds["algorithm"] == Algorithm.RING)
    if int(frame["p2p_started"]) or len(rounds) == 0 or not bool(collective.all()):
        return []
    edges = view.edges[(view.edge_frames == at) & (view.edges["group"] == _RING) & (view.edges["peer"] >= 0)]
    own, links = int(frame["comm_rank"]), []
    for is_send in (True, False):
        peers = np.unique(edges["peer"][(edges["direction"] == _SEND) == is_send])
        if len(peers) == 1:
            peer = int(peers[0])
            links.append((own, peer) if is_send else (peer, own))
    return links


def _name(view: PageView, at: int) -> str:
    return format_communicator(int(view.frames[at]["comm"]))


def _frames(view: PageView) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
    return np.flatnonzero((view.frames["sources"] & Source.NCCL_PROFILER) != 0)


def _chars(part: OrderPart) -> int:
    texts = (*part.rings, *part.rings.values(), *part.trees, *part.trees.values(), part.links)
    return sum(map(len, texts)) + 100
