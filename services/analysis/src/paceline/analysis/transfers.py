"""What moved over each link of one operation: the table behind every statement on progress.

A link is one direction between two neighbours of a ring or tree. Its sender says how many slices it
has sent, its receiver how many it has received; nothing else is compared, and nothing by time. The
counts are cumulative: a link carries the same number at both ends once a round is over.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from paceline.analysis.arrays import without
from paceline.analysis.evidence import Ints, JobEvidence, Mask
from paceline.contracts.batch import Rows
from paceline.contracts.codes import FrameFlag, TransferState
from paceline.contracts.ids import parse_ranks

UNSEEN = -1
RING, FIRST_TREE, SECOND_TREE = 0, 1, 2  # channel groups of the edge table
SEND, RECEIVE = 0, 1
TEXTS_KEPT = 32  # orders that were parsed: one of a million ranks takes 8 MB
# A wait that takes most of an interval between two samples is what the rank does.
WAITING_SHARE = 0.25
_SENDER_WAITS = (TransferState.PEER_WAIT, TransferState.SEND_WAIT, TransferState.SEND_PEER_WAIT)
_RECEIVER_WAITS = (TransferState.PEER_WAIT, TransferState.RECV_WAIT)


@dataclass(frozen=True, eq=False)
class Transfers:
    """Links of one group of channels; ranks are ranks of the communicator.

    `sender_waits` and `receiver_waits` are 1 where that end was seen waiting on this link, 0 where it
    was seen not to, `UNSEEN` where nobody can say. Counts are `UNSEEN` where that end did not report.
    """

    tail: Ints  # the sender
    head: Ints  # the receiver
    sent: Ints
    received: Ints
    sender_waits: Ints
    receiver_waits: Ints

    def __len__(self) -> int:
        return len(self.tail)

    @property
    def known(self) -> Mask:
        """Links whose two ends were both seen."""
        mask: Mask = (self.sent >= 0) & (self.received >= 0)
        return mask

    @property
    def in_flight(self) -> Ints:
        """Sent and not received; 0 where an end is unseen."""
        return np.where(self.known, self.sent - self.received, 0)

    @staticmethod
    def join(parts: list["Transfers"]) -> "Transfers":
        """All links of several groups of channels."""
        names = Transfers.__dataclass_fields__
        return Transfers(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


def counts_visible(evidence: JobEvidence, op: int) -> Mask:
    """Members of communicator `op` whose source sees slices."""
    part = slice(int(evidence.offsets[op]), int(evidence.offsets[op + 1]))
    rows = evidence.state[part]
    mask: Mask = evidence.seen[part] & ((rows["flags"] & FrameFlag.COUNTS_UNOBSERVABLE) == 0)
    return mask


def ring_transfers(evidence: JobEvidence, op: int, visible: Mask) -> Transfers | None:
    """Links of the ring of communicator `op`, None where neither its edges nor its order are known.

    Edges are those that a source sees: of NCCL the links over the network. The order closes the ring.
    """
    edges = edge_transfers(evidence, op, RING, visible)
    order = ring_order(evidence, op)
    if edges is not None:
        return edges if order is None else _closed(edges, order)
    if order is None:
        return None
    part = slice(int(evidence.offsets[op]), int(evidence.offsets[op + 1]))
    rows = evidence.state[part]
    sent = np.where(visible, rows["send_count"].astype(np.int64), UNSEEN)
    received = np.where(visible, rows["recv_count"].astype(np.int64), UNSEEN)
    head = np.roll(order, -1)
    nobody = np.full(len(order), UNSEEN, np.int64)
    return Transfers(order, head, sent[order], received[head], nobody, nobody)


def _closed(edges: Transfers, order: Ints) -> Transfers:
    """`edges` and, unseen, the other links of the ring; as they are where one of them is not of it."""
    size = len(order)
    head_of = np.zeros(size, np.int64)
    head_of[order] = np.roll(order, -1)
    if not bool((head_of[edges.tail] == edges.head).all()):
        return edges
    rest = without(order, edges.tail)
    if len(rest) == 0:
        return edges
    nobody = np.full(len(rest), UNSEEN, np.int64)
    return Transfers.join([edges, Transfers(rest, head_of[rest], nobody, nobody, nobody, nobody)])


def edge_transfers(evidence: JobEvidence, op: int, group: int, visible: Mask) -> Transfers | None:
    """Links of one channel group from the edge rows of both ends, None where there are none."""
    rows = evidence.edges
    size = int(evidence.offsets[op + 1] - evidence.offsets[op])
    rows = rows[(rows["comm"] == evidence.comm_ids[op]) & (rows["group"] == group)]
    peer, mine = rows["peer"].astype(np.int64), _local(evidence, op, rows)
    usable = (peer >= 0) & (peer < size) & (mine >= 0) & (mine != peer) & (rows["direction"] <= RECEIVE)
    rows, peer, mine = rows[usable], peer[usable], mine[usable]
    seen = visible[mine]
    rows, peer, mine = rows[seen], peer[seen], mine[seen]
    if len(rows) == 0:
        return None
    is_send = rows["direction"] == SEND
    key = np.where(is_send, mine * size + peer, peer * size + mine)
    links, at = np.unique(key, return_inverse=True)
    columns = {name: np.full(len(links), UNSEEN, np.int64) for name in ("sent", "got", "by_tail", "by_head")}
    waits = waiting(rows, is_send)
    columns["sent"][at[is_send]] = rows["count"][is_send].astype(np.int64)
    columns["got"][at[~is_send]] = rows["count"][~is_send].astype(np.int64)
    columns["by_tail"][at[is_send]] = waits[is_send]
    columns["by_head"][at[~is_send]] = waits[~is_send]
    return Transfers(
        links // size, links % size, columns["sent"], columns["got"], columns["by_tail"], columns["by_head"]
    )


def waiting(rows: Rows, is_send: Mask) -> Ints:
    """Whether the reporter of each edge row waits on it: 1, 0, or UNSEEN.

    Best is a wait that grew in the newest interval between two samples: a process that froze while
    it waited still says that it waits, but nothing grows. Where nobody's wait grows the source adds
    waits only when they end, and what the channels say of themselves stands instead.
    """
    measured = rows["recent_us"] > 0
    grown = measured & (rows["recent_wait_us"] >= WAITING_SHARE * rows["recent_us"])
    if grown.any():
        return np.where(grown, 1, np.where(measured, 0, UNSEEN)).astype(np.int64)
    state = rows["state"]
    says = np.where(is_send, np.isin(state, _SENDER_WAITS), np.isin(state, _RECEIVER_WAITS))
    return says.astype(np.int64) if says.any() else np.full(len(rows), UNSEEN, np.int64)


def _local(evidence: JobEvidence, op: int, rows: Rows) -> Ints:
    """Communicator rank of each row's reporter by the registry, -1 for strangers."""
    members = evidence.members(op)
    order = np.argsort(members, kind="stable")
    at = np.minimum(np.searchsorted(members[order], rows["rank"]), max(len(members) - 1, 0))
    place = order[at] if len(members) else at
    return np.where(members[place] == rows["rank"], place, -1) if len(members) else place


def ring_order(evidence: JobEvidence, op: int) -> Ints | None:
    """Communicator ranks in ring order by the registry; None where unknown or more than one order."""
    text, members = evidence.ring_of(op), evidence.members(op)
    if not text or len(members) < 2:
        return None
    order = _ring_of_text(text, len(members))
    if len(order) != len(members):
        return None
    where = {int(rank): index for index, rank in enumerate(members)}
    local = np.array([where.get(rank, -1) for rank in order], np.int64)
    return local if len(np.unique(local)) == len(members) and int(local.min()) >= 0 else None


def tree_parents(evidence: JobEvidence, op: int) -> list[Ints]:
    """Parent of every member (communicator ranks, -1 the root) for each tree that the registry names."""
    return list(_trees_of_text(evidence.tree_of(op), len(evidence.members(op))))


@lru_cache(TEXTS_KEPT)
def _ring_of_text(text: str, size: int) -> tuple[int, ...]:
    """Global ranks in ring order; empty where the text names several rings or none."""
    try:
        return tuple(parse_ranks(text, size + 1))
    except ValueError:
        return ()


@lru_cache(TEXTS_KEPT)
def _trees_of_text(text: str, size: int) -> tuple[Ints, ...]:
    """At most two, read-only: they are shared between judgements."""
    found: list[Ints] = []
    for part in filter(None, text.split(";")):
        try:
            parents = np.array([int(value) for value in part.split(",")], np.int64)
        except ValueError:
            continue
        valid = len(parents) == size and int(parents.min()) >= -1 and int(parents.max()) < size
        if valid and int(np.count_nonzero(parents == -1)) == 1 and _has_no_circle(parents):
            parents.flags.writeable = False
            found.append(parents)
    return tuple(found[:2])


def _has_no_circle(parents: Ints) -> bool:
    """Whether every member leads to the root; pointer doubling, log2(size) passes."""
    at = np.where(parents < 0, np.arange(len(parents)), parents)
    for _ in range(max(len(parents).bit_length(), 1)):
        at = at[at]
    return bool((parents[at] < 0).all())
