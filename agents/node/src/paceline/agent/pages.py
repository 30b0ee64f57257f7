"""The mapped page of one process, and its snapshot in the shape the reduction works on."""

import os
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from paceline.agent.marks import apply_marks
from paceline.contracts.codes import DetailLevel
from paceline.probe.errors import PageError
from paceline.probe.reader import PageReader
from paceline.probe.snapshot import PageSnapshot

Array = npt.NDArray[np.void]
Index = npt.NDArray[np.intp]


class PageFault(Exception):
    """The page is not one, or cannot be read any more; it is given up."""


@dataclass(frozen=True)
class PageView:
    """Copies of everything in use. n frames; `edge_frames` and `peer_frames` index into them."""

    process: np.void  # one record of PROCESS_DTYPE
    frames: Array  # (n,)
    rounds: Array  # (n, 256)
    round_times: Array  # (n, 256)
    edges: Array
    edge_frames: Index
    peers: Array
    peer_frames: Index
    partial: bool  # the header was torn
    faults: int = 0  # frames that were refused


class MappedPage:
    """Owns the mapping. `read` raises PageFault and nothing else."""

    def __init__(self, reader: PageReader) -> None:
        self._reader = reader

    def read(self) -> PageView:
        try:
            return view_of(self._reader.read())
        except ValueError as error:
            raise PageFault(str(error)) from error

    def beat(self) -> None:
        """Tell the process, through the control page, that its agent is alive."""
        if self._reader.control is not None:
            self._reader.control.beat()

    def request_detail(self, level: DetailLevel) -> None:
        """Ask the probe for a level, through the control page."""
        if self._reader.control is not None:
            self._reader.control.write(level)

    def close(self) -> None:
        self._reader.close()


def open_page(page_fd: int, control_fd: int) -> MappedPage:
    """Map both pages and close both descriptors; PageFault names what is wrong with them."""
    try:
        return MappedPage(PageReader(page_fd, control_fd))
    except PageError as error:
        raise PageFault(str(error)) from error
    finally:
        os.close(page_fd)
        os.close(control_fd)


def view_of(snapshot: PageSnapshot) -> PageView:
    """The snapshot, as far as the GPUs themselves say."""
    detail = snapshot.detail
    frames, rounds = apply_marks(snapshot.frames, detail.rounds)
    return PageView(
        process=snapshot.process,
        frames=frames,
        rounds=rounds,
        round_times=detail.times,
        edges=detail.edges,
        edge_frames=detail.edge_frames,
        peers=detail.peers,
        peer_frames=detail.peer_frames,
        partial=snapshot.process_partial,
        faults=len(snapshot.faults),
    )
