"""One reading of a page, as numpy arrays that are copies: nothing in them changes any more."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from paceline.contracts.codes import OpState
from paceline.contracts.dtypes import EDGE_DTYPE, FRAME_DTYPE, PEER_DTYPE, ROUND_DTYPE, ROUND_TIMES_DTYPE
from paceline.contracts.layout import (
    EDGES_IN_DETAIL,
    EDGES_MAX,
    FRAME,
    KEPT_LEVELS,
    PEERS_IN_DETAIL,
    PEERS_MAX,
    ROUND_TIMES_IN_DETAIL,
    ROUNDS_IN_DETAIL,
    ROUNDS_KEPT_MAX,
    ROUNDS_MAX,
    ROUNDS_NEWEST_MAX,
)
from paceline.probe.errors import PageError

Records = npt.NDArray[np.void]
Index = npt.NDArray[np.intp]

# One communicator as it is copied: its frame and right behind it its detail block.
BLOCK_DTYPE = np.dtype(
    {
        "names": ["frame", "rounds", "times", "edges", "peers"],
        "formats": [
            FRAME_DTYPE,
            (ROUND_DTYPE, ROUNDS_MAX),
            (ROUND_TIMES_DTYPE, ROUNDS_MAX),
            (EDGE_DTYPE, EDGES_MAX),
            (PEER_DTYPE, PEERS_MAX),
        ],
        "offsets": [
            0,
            FRAME.size + ROUNDS_IN_DETAIL,
            FRAME.size + ROUND_TIMES_IN_DETAIL,
            FRAME.size + EDGES_IN_DETAIL,
            FRAME.size + PEERS_IN_DETAIL,
        ],
        "itemsize": FRAME.size + PEERS_IN_DETAIL + PEERS_MAX * PEER_DTYPE.itemsize,
    }
)


@dataclass(frozen=True)
class FrameDetail:
    """Detail block of one communicator; empty arrays where it was not read.

    `rounds` and `times` are parallel, (256,), ROUND_DTYPE and ROUND_TIMES_DTYPE, in the order of the
    ring; entries with state EMPTY were never written. `peers` and `edges` hold used rows only.
    """

    rounds: Records
    times: Records
    peers: Records
    edges: Records
    partial: bool  # copied while written: single rows may be torn

    def newest(self) -> tuple[Records, Records]:
        """The newest operations, oldest first: (rounds, times)."""
        rounds, times = self.rounds[:ROUNDS_NEWEST_MAX], self.times[:ROUNDS_NEWEST_MAX]
        used = np.flatnonzero(rounds["state"] != OpState.EMPTY)
        order = used[np.argsort(rounds["issue"][used], kind="stable")]
        return rounds[order], times[order]

    def open(self) -> tuple[Records, Records]:
        """Operations entered and not completed, oldest first: (rounds, times)."""
        rounds, times = self.newest()
        live = (rounds["state"] == OpState.ENTERED) | (rounds["state"] == OpState.STARTED)
        return rounds[live], times[live]

    def kept(self, level: int) -> tuple[Records, Records]:
        """Rounds kept at `level` (0, 4, 8 or 12), in order of round: (rounds, times)."""
        start = ROUNDS_NEWEST_MAX + KEPT_LEVELS.index(level) * ROUNDS_KEPT_MAX
        rounds, times = (table[start : start + ROUNDS_KEPT_MAX] for table in (self.rounds, self.times))
        used = np.flatnonzero(rounds["round"])
        order = used[np.argsort(rounds["round"][used], kind="stable")]
        return rounds[order], times[order]


@dataclass(frozen=True)
class PageDetail:
    """Detail blocks of all communicators of a page side by side; n frames, 0 rounds where none were read.

    `edge_frames` and `peer_frames` say which frame a row belongs to.
    """

    rounds: Records  # (n, 256), ROUND_DTYPE
    times: Records  # (n, 256), ROUND_TIMES_DTYPE
    edges: Records  # used rows only
    edge_frames: Index
    peers: Records  # used rows only
    peer_frames: Index

    @classmethod
    def of(cls, table: Records) -> PageDetail:
        """Of a table (n,) of BLOCK_DTYPE whose unused rows the reader has made so."""
        edges, peers = table["edges"], table["peers"]
        used_edges, used_peers = edges["peer"] >= 0, (peers["posted"] != 0).any(axis=2)
        return cls(
            rounds=table["rounds"],
            times=table["times"],
            edges=edges[used_edges],
            edge_frames=np.nonzero(used_edges)[0],
            peers=peers[used_peers],
            peer_frames=np.nonzero(used_peers)[0],
        )

    @classmethod
    def none(cls, frames: int) -> PageDetail:
        """Of a page whose frames alone were read."""
        nobody = np.zeros(0, np.intp)
        return cls(
            rounds=np.zeros((frames, 0), ROUND_DTYPE),
            times=np.zeros((frames, 0), ROUND_TIMES_DTYPE),
            edges=np.zeros(0, EDGE_DTYPE),
            edge_frames=nobody,
            peers=np.zeros(0, PEER_DTYPE),
            peer_frames=nobody,
        )


@dataclass(frozen=True)
class PageSnapshot:
    """All that a page said at one time.

    `process` is one record of PROCESS_DTYPE; `frames` has FRAME_DTYPE and shape (n,), one per communicator
    in order of slot, closed ones included (FrameFlag.CLOSED); `details[i]` belongs to `frames[i]`.
    Codes outside their vocabulary read as 0. A frame copied while it was written, or whose counters
    contradict each other, carries FrameFlag.PARTIAL.
    """

    process: np.void
    blocks: bytearray  # n of BLOCK_DTYPE, or of FRAME_DTYPE where no detail was read
    torn: bytes  # n: 1 where the detail was copied while written
    process_partial: bool
    faults: tuple[PageError, ...]  # frames that were refused, at most one per slot
    has_detail: bool = True

    @cached_property
    def frames(self) -> Records:
        if not self.has_detail:
            return np.frombuffer(self.blocks, FRAME_DTYPE)
        frames: Records = np.frombuffer(self.blocks, BLOCK_DTYPE)["frame"]
        return frames

    @cached_property
    def detail(self) -> PageDetail:
        if not self.has_detail:
            return PageDetail.none(len(self.torn))
        return PageDetail.of(np.frombuffer(self.blocks, BLOCK_DTYPE))

    @property
    def details(self) -> tuple[FrameDetail, ...]:
        """The detail block of each frame by itself."""
        all_ = self.detail
        return tuple(
            FrameDetail(
                all_.rounds[at],
                all_.times[at],
                all_.peers[all_.peer_frames == at],
                all_.edges[all_.edge_frames == at],
                bool(torn),
            )
            for at, torn in enumerate(self.torn)
        )

    def text(self, field: str) -> str:
        """A string of the process header: job, attempt, framework, phase_name, host_wait_name."""
        return bytes(self.process[field]).partition(b"\0")[0].decode("utf-8", "replace")
