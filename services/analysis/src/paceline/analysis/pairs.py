"""Open point-to-point operations, matched by (communicator, pair, direction, sequence)."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.analysis.evidence import Ints, JobEvidence, Mask, take_columns
from paceline.analysis.processes import Processes

_COLUMNS = ("comm", "rank", "peer", "posted", "completed", "head_issue", "head_age_ms")


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


def reported(evidence: JobEvidence, lost: Mask) -> Mask:
    """M: members with a report that is not history."""
    return evidence.seen & ~lost[evidence.member_rank] if lost.any() else evidence.seen


def complete_pages(evidence: JobEvidence, lost: Mask) -> Mask:
    """Ranks of which every frame was reported, as their process row counts them."""
    whole = evidence.frames_seen >= evidence.processes["communicators"]
    mask: Mask = evidence.process_seen & ~lost & whole
    return mask


def read_pairs(evidence: JobEvidence, processes: Processes) -> PairWaits:
    columns = take_columns(evidence.peers, _COLUMNS)
    comm, rank = evidence.index_of_runs(columns["comm"]), columns["rank"].astype(np.int64)
    local = columns["peer"].astype(np.int64)
    usable = (comm >= 0) & (~processes.lost[rank] if len(rank) else True)
    if len(rank) and evidence.communicators:
        usable &= (local == -2) | ((local >= 0) & (local < np.diff(evidence.offsets)[comm]))
    if not bool(np.all(usable)):
        columns = {name: column[usable] for name, column in columns.items()}
        comm, rank, local = comm[usable], rank[usable], local[usable]
    peer = np.full(len(rank), -1, np.int64)
    named = local >= 0
    peer[named] = evidence.member_rank[evidence.offsets[comm[named]] + local[named]]
    found, other = _other_ends(evidence.world_size, comm, rank, peer)
    reporting = np.zeros(evidence.world_size, np.bool_)
    reporting[rank] = True
    reporting |= _quiet_pages(evidence, processes)
    done, issue = _done(evidence, columns, comm, rank, found, other)
    posted, ages = columns["posted"], columns["head_age_ms"]
    parts = []
    for direction in (0, 1):
        at = np.flatnonzero(posted[:, direction] > done[:, direction])
        far, is_found, peers = other[at], found[at], peer[at]
        sequence = done[at, direction] + np.uint64(1)
        there = is_found & (posted[far, 1 - direction] >= sequence)
        same = there & (done[far, 1 - direction] + np.uint64(1) == sequence)
        parts.append(
            PairWaits(
                comm[at],
                rank[at],
                peers,
                np.full(len(at), direction == 0),
                sequence,
                there,
                named[at] & (is_found | reporting[peers]) & ~processes.lost[peers],
                issue[at, direction],
                ages[at, direction].astype(np.int64),
                np.where(same, issue[far, 1 - direction], np.uint64(0)),
            )
        )
    names = PairWaits.__dataclass_fields__
    return PairWaits(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


def _other_ends(world: int, comm: Ints, rank: Ints, peer: Ints) -> tuple[Mask, Ints]:
    """Of each row whether the row of its peer about it is there, and which."""
    if len(rank) == 0:
        return np.zeros(0, np.bool_), np.zeros(0, np.int64)
    keys = (comm * world + rank) * world + peer
    mirror = (comm * world + peer) * world + rank
    order = None
    if bool((keys[1:] < keys[:-1]).any()):
        order = np.argsort(keys, kind="stable")
        keys = keys[order]
    at = np.minimum(np.searchsorted(keys, mirror), len(keys) - 1)
    return keys[at] == mirror, at if order is None else order[at]


def _done(
    evidence: JobEvidence,
    columns: dict[str, npt.NDArray[Any]],
    comm: Ints,
    rank: Ints,
    found: Mask,
    other: Ints,
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
    """Operations of each row and direction that are not known to be open, and the issue of the first
    that is (0 unknown).

    Where completion is not seen, what both ends have posted may be over: only what is ahead waits.
    """
    done, issue = columns["completed"], columns["head_issue"]
    members = evidence.hidden_completion
    if len(rank) == 0 or not members.any():
        return done, issue
    met = np.minimum(columns["posted"], columns["posted"][other][:, ::-1])
    ahead = met > done
    at = np.flatnonzero(found & (ahead[:, 0] | ahead[:, 1]))
    slot = evidence.slots_of(comm[at], rank[at])
    at = at[(slot >= 0) & members[slot]]
    changed = np.zeros(ahead.shape, np.bool_)
    changed[at] = ahead[at]
    done, issue = np.where(changed, met, done), np.where(changed, np.uint64(0), issue)
    return done, issue


def _quiet_pages(evidence: JobEvidence, processes: Processes) -> Mask:
    """Ranks whose frames were all reported and have nothing open: they post no peer rows."""
    is_open = evidence.seen & (evidence.column("open_ops") > 0)
    mask = complete_pages(evidence, processes.lost)
    mask[evidence.member_rank[is_open]] = False
    return mask
