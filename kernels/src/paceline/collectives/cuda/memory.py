"""What the kernels and the host share, laid out in one block of memory that all ranks' GPUs can reach.

Addresses in it are the GPU's: `base` is where the GPU sees the first byte of the block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from paceline.contracts.layout import (
    DETAIL_OFFSET,
    DETAIL_STRIDE,
    EDGE,
    EDGES_IN_DETAIL,
    FRAME_STRIDE,
    FRAMES_OFFSET,
    MARK_ROUND_BITS,
)

LINK = np.dtype([("posted", "u8"), ("pad0", "u8", 7), ("taken", "u8"), ("pad1", "u8", 7)])
RANK = np.dtype(
    [
        (name, "u8")
        for name in ("data", "out", "in", "out_slices", "in_slices", "frame", "out_edge", "in_edge", "mark")
    ]
)
WORK = np.dtype(
    [
        ("ranks", "u8"), ("count", "u8"), ("still_ns", "u8"), ("stop", "u8"), ("size", "u4"), ("slice", "u4"),
        ("window", "u4"), ("first", "u4"), ("root", "u4"), ("spare", "u4"),
    ]
)  # fmt: skip
RANKS_MAX, WINDOW_MAX, SLICE_ELEMENTS_MAX = 1024, 64, 1 << 22
STILL_NS = 1_000_000_000
_ALIGN = 128


def mark_of(tag: int, round_number: int) -> int:
    """What the GPU writes into its trailer; `tag` 1 to 65535 tells communicators of one slot apart."""
    if not 0 < tag < 1 << 16:
        raise ValueError(f"tag is {tag}, expected 1 to 65535")
    return tag << MARK_ROUND_BITS | round_number & (1 << MARK_ROUND_BITS) - 1


@dataclass(frozen=True)
class Member:
    """One rank: its array and its page as its GPU sees them, and its slot of the page."""

    data: int
    page: int
    slot: int

    @property
    def frame(self) -> int:
        return self.page + FRAMES_OFFSET + self.slot * FRAME_STRIDE

    def edge(self, row: int) -> int:
        """Address of a row of the edge table."""
        return self.page + DETAIL_OFFSET + self.slot * DETAIL_STRIDE + EDGES_IN_DETAIL + row * EDGE.size


@dataclass(frozen=True)
class Shape:
    """`size` ranks in ring order, `window` slices of `slice_elements` float32 on each link."""

    size: int
    slice_elements: int
    window: int = 4

    def __post_init__(self) -> None:
        for name, value, most in (
            ("size", self.size, RANKS_MAX),
            ("slice_elements", self.slice_elements, SLICE_ELEMENTS_MAX),
            ("window", self.window, WINDOW_MAX),
        ):
            if not 1 <= value <= most:
                raise ValueError(f"{name} is {value}, expected 1 to {most}")

    @property
    def slices_bytes(self) -> int:
        return -(-self.window * self.slice_elements * 4 // _ALIGN) * _ALIGN

    @property
    def works_at(self) -> int:
        return self.size * (LINK.itemsize + self.slices_bytes)

    @property
    def ranks_at(self) -> int:
        return self.works_at + -(-self.size * WORK.itemsize // _ALIGN) * _ALIGN

    @property
    def stop_at(self) -> int:
        return self.ranks_at + -(-self.size * RANK.itemsize // _ALIGN) * _ALIGN

    @property
    def bytes(self) -> int:
        """Of the whole block."""
        return self.stop_at + _ALIGN


class RingMemory:
    """The block: link k goes from place k to the place behind it."""

    def __init__(self, block: npt.NDArray[np.uint8], base: int, shape: Shape) -> None:
        if block.dtype != np.uint8 or block.shape != (shape.bytes,):
            raise ValueError(
                f"block is {block.dtype} of shape {block.shape}, expected uint8 of ({shape.bytes},)"
            )
        self.shape, self._base = shape, base
        block[:] = 0
        links = shape.size * LINK.itemsize
        self.links = block[:links].view(LINK)
        self.works = block[shape.works_at : shape.works_at + shape.size * WORK.itemsize].view(WORK)
        self.ranks = block[shape.ranks_at : shape.ranks_at + shape.size * RANK.itemsize].view(RANK)
        self._stop = block[shape.stop_at : shape.stop_at + 4].view(np.uint32)

    def work_address(self, first: int = 0) -> int:
        """Argument of a launch whose block 0 stands at place `first`."""
        return self._base + self.shape.works_at + first * WORK.itemsize

    def prepare(
        self,
        members: Sequence[Member],
        count: int,
        mark: int,
        *,
        root: int = 0,
        still_ns: int = STILL_NS,
    ) -> None:
        """The next operation, of `count` float32; `members` in ring order. No kernel may be running."""
        shape = self.shape
        if len(members) != shape.size or not 0 <= root < shape.size or count < 0:
            raise ValueError(f"{len(members)} members, root {root}, count {count} in a ring of {shape.size}")
        slices = self._base + shape.size * LINK.itemsize
        for place, member in enumerate(members):
            before = (place - 1) % shape.size
            self.ranks[place] = (
                member.data,
                self._base + place * LINK.itemsize,
                self._base + before * LINK.itemsize,
                slices + place * shape.slices_bytes,
                slices + before * shape.slices_bytes,
                member.frame,
                member.edge(0),
                member.edge(1),
                mark,
            )
            self.works[place] = (
                self._base + shape.ranks_at, count, still_ns, self._base + shape.stop_at, shape.size,
                shape.slice_elements, shape.window, place, root, 0,
            )  # fmt: skip
        self._stop[0] = 0

    def stop(self) -> None:
        """End every wait: the kernels return with their operation unfinished."""
        self._stop[0] = 1
