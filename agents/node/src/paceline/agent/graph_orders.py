"""Whose graphs NCCL has dumped: the communicator is not named in the file, and each overwrites the last one.

What is known: the rank that writes (of every communicator), how many ranks and which ones are on this
machine, and when. The plugin opens a frame right after its communicator was dumped, so one that had a frame
already when the file was written did not write it. Where two could be meant, none is (docs/adr/0038).
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

import numpy as np

from paceline.agent.nccl_dumps import Announced, Dump, DumpLook
from paceline.agent.pages import PageView
from paceline.agent.processes import Process
from paceline.analysis.order_graphs import Unfit, known_of_dump
from paceline.analysis.orders import Known
from paceline.contracts.codes import Source
from paceline.contracts.ids import format_communicator

SIGHTS_MAX = 1024  # communicators of one process; as many as the plugin remembers
PENDING_MAX = 64
WAIT_S = 120.0  # for the communicator of a dump to show itself
NEVER_S = 0.0  # when a communicator was seen that may have been there for long
EARLY_S = 60.0  # between a dump and the frame of its communicator: one exchange of all its ranks


@dataclass(frozen=True)
class _Sight:
    """A communicator of a process: it was opened between the two looks."""

    size: int
    rank: int
    nodes: int  # 0 unknown
    before_s: float
    seen_s: float


@dataclass
class _Seen:
    sights: dict[str, _Sight] = field(default_factory=dict)
    known: dict[str, Known] = field(default_factory=dict)
    looked_s: float = 0.0
    overflown: bool = False  # not all of its communicators have a frame


@dataclass
class _Pending:
    dump: Dump
    processes: list[Process]


class GraphOrders:
    """Of all processes of a node. One event loop owns it; times are unix time."""

    def __init__(self, drops: Counter[str]) -> None:
        self._drops = drops
        self._seen: WeakKeyDictionary[Process, _Seen] = WeakKeyDictionary()
        self._pending: list[_Pending] = []

    @property
    def is_waiting(self) -> bool:
        """Whether a dump has not found its communicator yet."""
        return bool(self._pending)

    def wanted(self, processes: Iterable[Process]) -> list[tuple[Process, Announced]]:
        """Processes that say that NCCL dumps its graphs."""
        return [
            (
                process,
                Announced(process.pid, hello.pid_start, process.uid, hello.nccl_graph, hello.nccl_topology),
            )
            for process in processes
            if (hello := process.hello).nccl_graph and process.exit is None and process.view is not None
        ]

    def look(self, processes: Iterable[Process], now_s: float) -> None:
        """Which communicators there are by now."""
        for process in processes:
            if process.view is None:
                continue
            seen = self._seen.get(process)
            since_s = now_s
            if seen is None:
                seen = self._seen[process] = _Seen()
                since_s = NEVER_S if _is_late(process.view) else now_s
            frames = process.view.frames
            for frame in frames[(frames["sources"] & Source.NCCL_PROFILER) != 0]:
                name = format_communicator(int(frame["comm"]))
                if name not in seen.sights and len(seen.sights) < SIGHTS_MAX:
                    seen.sights[name] = _sight(frame, seen.looked_s, since_s)
            dropped = int(process.view.process["communicators_dropped"])
            seen.overflown |= dropped > 0 or len(seen.sights) >= SIGHTS_MAX
            seen.looked_s = now_s

    def take(self, processes: Sequence[Process], look: DumpLook, now_s: float) -> None:
        """Give each dump, those that waited first, to the communicator that wrote it."""
        self._drops.update(look.dropped)
        self._pending += [_Pending(dump, [processes[place] for place in dump.places]) for dump in look.dumps]
        if len(self._pending) > PENDING_MAX:
            self._drops["order_dump_waiting"] += len(self._pending) - PENDING_MAX
            del self._pending[:-PENDING_MAX]
        waiting = []
        for one in self._pending:
            reason = self._settle(one)
            if reason == "order_dump_nobody" and now_s - one.dump.last_s < WAIT_S:
                waiting.append(one)
            elif reason:
                self._drops[reason] += 1
        self._pending = waiting

    def known(self, process: Process, communicator: str) -> Known | None:
        """What the dump of this communicator said, where this process wrote it."""
        seen = self._seen.get(process)
        return seen.known.get(communicator) if seen is not None else None

    def _settle(self, one: _Pending) -> str:
        """Empty where the dump has found its communicator, else a named reason."""
        fits: list[tuple[_Seen, str, Known]] = []
        for process in one.processes:
            seen = self._seen.get(process)
            if seen is None:
                continue
            if seen.overflown:
                return "order_dump_ambiguous"  # one without a frame may have written it
            for name, sight in seen.sights.items():
                known = _fits(one.dump, sight, process.hello.nccl_dump_rank)
                if known is not None:
                    fits.append((seen, name, known))
        if len(fits) != 1:
            return "order_dump_ambiguous" if fits else "order_dump_nobody"
        seen, name, known = fits[0]
        seen.known[name] = known
        return ""


def _is_late(view: PageView) -> bool:
    """Whether this agent came to a process that has been running: communicators may have come and gone."""
    return int(view.process["native_beat_ns"]) - int(view.process["created_ns"]) > EARLY_S * 1e9


def _sight(frame: np.void, before_s: float, seen_s: float) -> _Sight:
    return _Sight(int(frame["nranks"]), int(frame["comm_rank"]), int(frame["nnodes"]), before_s, seen_s)


def _fits(dump: Dump, sight: _Sight, writer: int) -> Known | None:
    """What `dump` says of the communicator, None where it cannot be its."""
    in_time = sight.before_s - EARLY_S <= dump.first_s and dump.last_s <= sight.seen_s
    if sight.rank != writer or sight.size < 2 or not in_time:
        return None
    if sight.nodes and dump.graphs.ring.beyond != (sight.nodes > 1):
        return None
    try:
        return known_of_dump(dump.graphs, dump.ranks, sight.size, writer)
    except Unfit:
        return None
