"""From the lines of one process's NCCL log to what it knows of each communicator.

The lines of rings and trees belong to the communicator that their own thread is making: from `Init START`,
or the end of the one before, to `Init COMPLETE`. A communicator whose init does not end has no order.
"""

from collections import Counter
from dataclasses import dataclass

from paceline.analysis.adapters.nccl_order import (
    RING_RANKS_MAX,
    InitLine,
    OrderLine,
    ProbeLine,
    RingLine,
    TreeLine,
    WholeRing,
    read_order_line,
)
from paceline.analysis.facts import Line
from paceline.analysis.orders import CHANNELS_MAX, NCCL_LOG, Contradiction, Known

THREADS_MAX = 256  # of a process, that are making a communicator
LINES_MAX = 3 * CHANNELS_MAX  # of one communicator, on one rank
COMMUNICATORS_MAX = 1024  # of a process; as many as the plugin remembers


@dataclass(frozen=True)
class Made:
    """A communicator as the log of one rank tells it."""

    hash: int  # 0 where the log does not say
    communicator: str  # 16 hex digits of the plugin's own line, empty where it wrote none
    size: int
    rank: int
    instance: int  # communicators of this hash and size before it, in this log
    known: Known
    refused: str = ""  # named reason; then nothing is known


class OrderLog:
    """Of one process. Lines come in the order in which they were written."""

    def __init__(self) -> None:
        self.made: list[Made] = []
        self.dropped: Counter[str] = Counter()
        self._threads: dict[int, list[OrderLine]] = {}
        self._host: str | None = None

    def feed(self, line: Line) -> None:
        found = None if line.thread is None else read_order_line(line)
        if found is None or line.thread is None:
            return
        if self._host not in (None, line.speaker.host):
            # One file of several hosts: another host's process of this number cannot be told apart.
            self.made.clear()
            self._threads.clear()
            self.dropped["order_hosts"] += 1
            return
        self._host = line.speaker.host
        lines = self._threads.get(line.thread)
        if lines is None:
            if len(self._threads) >= THREADS_MAX:
                self.dropped["order_threads"] += 1
                return
            lines = self._threads[line.thread] = []
        if isinstance(found, InitLine):
            if found.complete:
                del self._threads[line.thread]
                self._end(found, lines)
            else:
                lines.clear()
        elif len(lines) < LINES_MAX:
            lines.append(found)
        else:
            self.dropped["order_lines"] += 1

    def _end(self, init: InitLine, lines: list[OrderLine]) -> None:
        if len(self.made) >= COMMUNICATORS_MAX:
            self.dropped["order_communicators"] += 1
            return
        instance = sum(one.hash == init.hash and one.size == init.size for one in self.made)
        named = {line.communicator for line in lines if isinstance(line, ProbeLine)}
        name = named.pop() if len(named) == 1 else ""
        try:
            known, refused = knowledge(init, lines), ""
        except Contradiction:
            known, refused = Known(init.size), "order_contradicted"
        if refused or named:
            self.dropped["order_contradicted"] += 1
            refused = "order_contradicted"
        self.made.append(Made(init.hash, name, init.size, init.rank, instance, known, refused))


def knowledge(init: InitLine, lines: list[OrderLine]) -> Known:
    """What the lines of one init say; `Contradiction` where one of them is of somebody else."""
    known = Known(init.size)
    if any(_is_foreign(init, line) for line in lines):
        raise Contradiction("a line of another rank or communicator")
    whole = True
    for line in lines:
        if isinstance(line, RingLine) and init.size > 1:
            known.add_link(line.channel, line.prev, line.rank)
            known.add_link(line.channel, line.rank, line.next)
        elif isinstance(line, WholeRing) and len(line.order) == init.size <= RING_RANKS_MAX and init.size > 1:
            for sender, receiver in zip(line.order, (*line.order[1:], line.order[0]), strict=True):
                known.add_link(line.channel, sender, receiver)
        elif isinstance(line, TreeLine):
            whole &= not line.cut
            for channel, parent, children in line.channels:
                known.add_parent(channel, line.rank, parent)
                for child in children:
                    known.add_parent(channel, child, line.rank)
    if not whole:
        known.trees.clear()  # which channels are of the second tree cannot be said without their number
    if known.rings or known.trees:
        known.sources.add(NCCL_LOG)
    return known


def _is_foreign(init: InitLine, line: OrderLine) -> bool:
    if isinstance(line, (RingLine, TreeLine)):
        return line.rank != init.rank or line.comm not in ("", init.comm)
    if isinstance(line, ProbeLine):
        return (line.rank, line.size) != (init.rank, init.size)
    return isinstance(line, WholeRing) and (init.rank != 0 or line.order[:1] != (0,))
