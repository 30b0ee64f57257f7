"""The mapped page of one process, and its snapshot in the shape the reduction works on."""

import os
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from paceline.agent.marks import apply_marks
from paceline.contracts.codes import DetailLevel, Source
from paceline.contracts.dtypes import FRAME_DTYPE
from paceline.probe import _native
from paceline.probe.errors import PageError
from paceline.probe.reader import PageReader
from paceline.probe.snapshot import BLOCK_DTYPE, PageDetail, PageSnapshot

Array = npt.NDArray[np.void]
Index = npt.NDArray[np.intp]


class PageFault(Exception):
    """The page is not one, or cannot be read any more; it is given up."""


class Heads(NamedTuple):
    """When the oldest open operations of a process were entered, CLOCK_MONOTONIC ns; 0 = nothing open.

    Closed communicators have no open rounds.
    """

    round_ns: int
    observed_round_ns: int  # of those whose completion would be seen
    message_ns: int
    entered_ns: int  # the newest operation of all, open or not


@dataclass(frozen=True)
class PageView:
    """A copy of everything in use, n communicators; arrays of it are made when they are asked for.

    `edge_frames` and `peer_frames` index into the frames.
    """

    process: np.void  # one record of PROCESS_DTYPE
    blocks: bytearray  # n of BLOCK_DTYPE, of FRAME_DTYPE once the details were given up
    partial: bool = False  # the header was torn
    faults: int = 0  # frames that were refused
    has_details: bool = True

    def __len__(self) -> int:
        return len(self.blocks) // (BLOCK_DTYPE.itemsize if self.has_details else FRAME_DTYPE.itemsize)

    def without_details(self) -> "PageView":
        """Header, heads and frames alone, where nobody needs more of it behind its sample: of the others the
        plugin's frames say the order of their communicators later.

        What is freed, 42 kB for each communicator, takes the next page while it is still in the caches.
        """
        frames = b"".join(
            self.blocks[at : at + FRAME_DTYPE.itemsize]
            for at in range(0, len(self.blocks), BLOCK_DTYPE.itemsize)
        )
        light = PageView(self.process, bytearray(frames), self.partial, self.faults, has_details=False)
        if (light.frames["sources"] & Source.NCCL_PROFILER).any():
            return self
        light.__dict__["heads"] = self.heads  # found in the blocks
        return light

    @cached_property
    def heads(self) -> Heads:
        return Heads(*_native.find_heads(self.blocks))

    @cached_property
    def frames(self) -> Array:  # (n,)
        if not self.has_details:
            return np.frombuffer(self.blocks, FRAME_DTYPE)
        frames: Array = np.frombuffer(self.blocks, BLOCK_DTYPE)["frame"]
        return frames

    @property
    def rounds(self) -> Array:  # (n, 256)
        return self._detail.rounds

    @property
    def round_times(self) -> Array:  # (n, 256)
        return self._detail.times

    @property
    def edges(self) -> Array:
        return self._detail.edges

    @property
    def edge_frames(self) -> Index:
        return self._detail.edge_frames

    @property
    def peers(self) -> Array:
        return self._detail.peers

    @property
    def peer_frames(self) -> Index:
        return self._detail.peer_frames

    @cached_property
    def _detail(self) -> PageDetail:
        if not self.has_details:
            return PageDetail.none(len(self))
        return PageDetail.of(np.frombuffer(self.blocks, BLOCK_DTYPE))


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
    blocks = snapshot.blocks
    if _native.has_marks(blocks):
        blocks = apply_marks(blocks)
    return PageView(snapshot.process, blocks, snapshot.process_partial, len(snapshot.faults))
