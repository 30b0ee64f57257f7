"""One reading of a page, as numpy arrays that are copies: nothing in them changes any more."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from paceline.contracts.codes import OpState
from paceline.contracts.dtypes import EDGE_DTYPE, PEER_DTYPE, ROUND_DTYPE, ROUND_TIMES_DTYPE
from paceline.contracts.layout import KEPT_LEVELS, ROUNDS_KEPT_MAX, ROUNDS_NEWEST_MAX
from paceline.probe.errors import PageError

Records = npt.NDArray[np.void]
Index = npt.NDArray[np.intp]


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
    partial: npt.NDArray[np.bool_]  # (n,)

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
            partial=np.zeros(frames, bool),
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
    frames: Records
    detail: PageDetail
    process_partial: bool
    faults: tuple[PageError, ...]  # frames that were refused, at most one per slot

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
                bool(all_.partial[at]),
            )
            for at in range(len(self.frames))
        )

    def text(self, field: str) -> str:
        """A string of the process header: job, attempt, framework, phase_name, host_wait_name."""
        return bytes(self.process[field]).partition(b"\0")[0].decode("utf-8", "replace")
