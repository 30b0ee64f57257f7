"""Open point-to-point operations, matched by (communicator, pair, direction, sequence)."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from paceline.analysis.evidence import Ints, JobEvidence, Mask
from paceline.analysis.processes import Processes
from paceline.contracts.batch import Rows
from paceline.contracts.codes import FrameFlag


@dataclass(frozen=True, eq=False)
class PairWaits:
    """Open point-to-point operations, one entry each."""

    comm: Ints
    rank: Ints
    peer: Ints  # global, -1 any source
    sends: Mask
    sequence: npt.NDArray[np.uint64]
    posted: Mask  # the peer has posted its side
    known: Mask  # the peer was observed
    issue: npt.NDArray[np.uint64]
    age_ms: Ints
    peer_issue: npt.NDArray[np.uint64]  # of the peer's side where that is open, else 0


def complete_pages(evidence: JobEvidence, seen: Mask, lost: Mask) -> Mask:
    """Ranks of which every frame was reported, as their process row counts them."""
    rows = np.bincount(evidence.member_rank[seen], minlength=evidence.world_size)
    mask: Mask = evidence.process_seen & ~lost & (rows >= evidence.processes["communicators"])
    return mask


def read_pairs(evidence: JobEvidence, processes: Processes) -> PairWaits:
    rows = evidence.peers
    comm = evidence.index_of(rows["comm"])
    rank = rows["rank"].astype(np.int64)
    usable = (comm >= 0) & (~processes.lost[rank] if len(rows) else True)
    if not bool(np.all(usable)):
        rows, comm, rank = rows[usable], comm[usable], rank[usable]
    size = np.diff(evidence.offsets)[comm] if len(rows) else np.zeros(0, np.int64)
    local = rows["peer"].astype(np.int64)
    valid = (local == -2) | ((local >= 0) & (local < size))
    if not valid.all():
        rows, comm, rank, local = rows[valid], comm[valid], rank[valid], local[valid]
    peer = np.full(len(rows), -1, np.int64)
    named = local >= 0
    peer[named] = evidence.member_rank[evidence.offsets[comm[named]] + local[named]]
    keys = (comm * evidence.world_size + rank) * evidence.world_size + peer
    order = np.argsort(keys, kind="stable")
    mirror = (comm * evidence.world_size + peer) * evidence.world_size + rank
    at = np.minimum(np.searchsorted(keys[order], mirror), max(len(keys) - 1, 0))
    found = (keys[order][at] == mirror) if len(keys) else np.zeros(0, np.bool_)
    other = order[at] if len(keys) else np.zeros(0, np.int64)
    reporting = np.zeros(evidence.world_size, np.bool_)
    reporting[rank] = True
    quiet = _quiet_pages(evidence, processes)
    done, issue = _done(evidence, rows, comm, rank, found, other)
    parts = []
    for direction in (0, 1):
        is_open = rows["posted"][:, direction] > done[:, direction]
        sequence = done[:, direction] + np.uint64(1)
        known = named & (found | reporting[peer] | quiet[peer]) & ~processes.lost[peer]
        posted = found & (rows["posted"][other, 1 - direction] >= sequence)
        same = found & (done[other, 1 - direction] + np.uint64(1) == sequence) & posted
        peer_issue = np.where(same, issue[other, 1 - direction], np.uint64(0))
        parts.append(
            PairWaits(
                comm[is_open],
                rank[is_open],
                peer[is_open],
                np.full(int(is_open.sum()), direction == 0),
                sequence[is_open],
                posted[is_open],
                known[is_open],
                issue[is_open, direction],
                rows["head_age_ms"][is_open, direction].astype(np.int64),
                peer_issue[is_open],
            )
        )
    names = PairWaits.__dataclass_fields__
    return PairWaits(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


def _done(
    evidence: JobEvidence, rows: Rows, comm: Ints, rank: Ints, found: Mask, other: Ints
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
    """Operations of each row and direction that are not known to be open, and the issue of the first
    that is (0 unknown).

    Where completion is not seen, what both ends have posted may be over: only what is ahead waits.
    """
    done, issue = rows["completed"].copy(), rows["head_issue"].copy()
    members = hidden_completion(evidence)
    if len(rows) == 0 or not members.any():
        return done, issue
    slot = evidence.slots_of(comm, rank)
    hidden = found & (slot >= 0) & members[slot]
    met = np.minimum(rows["posted"], rows["posted"][other][:, ::-1])
    changed = hidden[:, None] & (met > done)
    done[changed], issue[changed] = met[changed], 0
    return done, issue


def hidden_completion(evidence: JobEvidence) -> Mask:
    """Members whose source does not show when an operation is over."""
    mask: Mask = evidence.seen & ((evidence.column("flags") & FrameFlag.COMPLETION_UNOBSERVABLE) != 0)
    return mask


def _quiet_pages(evidence: JobEvidence, processes: Processes) -> Mask:
    """Ranks whose frames were all reported and have nothing open: they post no peer rows."""
    seen = evidence.seen
    busy = np.bincount(evidence.member_rank[seen], evidence.column("open_ops")[seen], evidence.world_size)
    mask: Mask = complete_pages(evidence, seen, processes.lost) & (busy == 0)
    return mask
