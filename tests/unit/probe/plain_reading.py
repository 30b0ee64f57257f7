"""What kernels/native/page_read.cc makes of the bytes of a page, in numpy as plainly as it can be said."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from paceline.contracts import codes
from paceline.contracts.codes import FrameFlag
from paceline.contracts.dtypes import PEER_DTYPE
from paceline.contracts.layout import (
    COMMUNICATORS_MAX,
    DETAIL_OFFSET,
    DETAIL_STRIDE,
    FRAME,
    FRAME_STRIDE,
    FRAMES_OFFSET,
)
from paceline.probe.snapshot import BLOCK_DTYPE, Records

CODES_MAX: dict[str, int] = {
    "function": max(codes.Function),
    "dtype": max(codes.DType),
    "reduce_op": max(codes.ReduceOp),
    "algorithm": max(codes.Algorithm),
    "protocol": max(codes.Protocol),
    "state": max(codes.OpState),
    "kind": max(codes.OpKind),
}


def plain_blocks(page: bytes) -> Records:
    """Blocks (n,) of BLOCK_DTYPE of a page whose frames in use are good and that nobody writes."""
    parts = []
    for slot in range(COMMUNICATORS_MAX):
        frame, detail = FRAMES_OFFSET + slot * FRAME_STRIDE, DETAIL_OFFSET + slot * DETAIL_STRIDE
        if page[frame : frame + 8] != bytes(8):
            length = BLOCK_DTYPE.itemsize - FRAME.size
            parts.append(page[frame : frame + FRAME.size] + page[detail : detail + length])
    table: Records = np.frombuffer(bytearray(b"".join(parts)), BLOCK_DTYPE)
    frames, rounds, edges, peers = (table[name] for name in ("frame", "rounds", "edges", "peers"))
    nranks = frames["nranks"][:, None]
    contradicts = (frames["completed"] > frames["enqueued"]) | (frames["enqueued"] > frames["started"])
    contradicts |= frames["head_round"] > frames["round"]
    frames["flags"][contradicts] |= np.uint32(FrameFlag.PARTIAL)
    _clean(frames, frames["nranks"])
    _clean(rounds, nranks)
    unusable = (edges["peer"] >= nranks) | (edges["group"] > 2) | (edges["direction"] > 1)
    edges["peer"][unusable] = -1
    usable = (peers["peer"] == -2) | ((peers["peer"] >= 0) & (peers["peer"] < nranks))
    peers["posted"][~usable] = 0
    peers[frames["p2p_started"] == 0] = np.zeros(1, PEER_DTYPE)[0]
    return table


def _clean(rows: Records, nranks: npt.NDArray[np.uint32]) -> None:
    for name, code_max in CODES_MAX.items():
        column = rows[name]
        column[column > code_max] = 0
    column = rows["peer"]
    column[(column < -2) | (column >= nranks)] = -1
