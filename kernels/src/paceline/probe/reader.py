"""Reads the page of another process. The page is hostile: its writer may be mad, killed in the
middle of a write, or somebody who wants to hurt the agent.

No offset, length or index is taken from the page; each copy is bounded in time; what is out of
range is refused by name or read as unknown. Memory per reading is bounded by PAGE_BYTES.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from paceline.contracts import codes
from paceline.contracts.codes import FrameFlag
from paceline.contracts.dtypes import EDGE_DTYPE, FRAME_DTYPE, PEER_DTYPE, PROCESS_DTYPE, ROUND_DTYPE
from paceline.contracts.dtypes import ROUND_TIMES_DTYPE as TIMES_DTYPE
from paceline.contracts.layout import (
    COMMUNICATORS_MAX,
    DETAIL_OFFSET,
    DETAIL_STRIDE,
    EDGES_IN_DETAIL,
    EDGES_MAX,
    FRAME,
    FRAME_MAGIC,
    FRAME_STRIDE,
    FRAMES_OFFSET,
    LAYOUT_VERSION,
    PAGE_BYTES,
    PAGE_MAGIC,
    PEERS_IN_DETAIL,
    PEERS_MAX,
    PROCESS,
    ROUND_TIMES_IN_DETAIL,
    ROUNDS_IN_DETAIL,
    ROUNDS_MAX,
)
from paceline.probe._native import Mapping
from paceline.probe.control import ControlPage, check_descriptor
from paceline.probe.errors import PageError
from paceline.probe.snapshot import PageDetail, PageSnapshot, Records

TRIES_MAX = 64  # 32 spins of about 1 us, then 32 sleeps of 50 us: about 2 ms
TORN_BLOCKS_MAX = 4  # per reading; later blocks get TRIES_HURRIED, so a reading stays below 20 ms
TRIES_HURRIED = 2
NRANKS_MAX = 1 << 24
ANY_SOURCE = -2

# The largest code of each vocabulary: to ask an enum takes longer than to look through a column.
_CODES_MAX: dict[str, int] = {
    "function": max(codes.Function),
    "dtype": max(codes.DType),
    "reduce_op": max(codes.ReduceOp),
    "algorithm": max(codes.Algorithm),
    "protocol": max(codes.Protocol),
    "state": max(codes.OpState),
    "kind": max(codes.OpKind),
}
_PROCESS_CODES_MAX: dict[str, int] = {"phase": max(codes.Phase), "host_wait": max(codes.HostWait)}
_DETAIL_BYTES = PEERS_IN_DETAIL + PEERS_MAX * PEER_DTYPE.itemsize
# A frame and right behind it its detail, as they are copied.
_BLOCK_DTYPE = np.dtype(
    {
        "names": ["frame", "rounds", "times", "edges", "peers"],
        "formats": [
            FRAME_DTYPE,
            (ROUND_DTYPE, ROUNDS_MAX),
            (TIMES_DTYPE, ROUNDS_MAX),
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
        "itemsize": FRAME.size + _DETAIL_BYTES,
    }
)


def _clear_unknown(rows: Records, largest: dict[str, int]) -> None:
    for name, code_max in largest.items():
        column = rows[name]
        column[column > code_max] = 0


def _check(field: str, value: object, expected: object) -> None:
    if value != expected:
        raise PageError(field, value, expected)


class PageReader:
    """Maps one page read-only. Does not own the descriptors; `close` unmaps.

    `control` is the writable control page, None where no `control_fd` was given. Raises PageError,
    naming field, value and what was expected, where a descriptor is not a page of this version.
    """

    def __init__(self, page_fd: int, control_fd: int | None = None) -> None:
        check_descriptor("page", page_fd, PAGE_BYTES)
        try:
            self._mapping = Mapping(page_fd, PAGE_BYTES, False)
        except OSError as error:
            raise PageError("page descriptor", error.strerror, "a readable memfd") from None
        self.control: ControlPage | None = None
        try:
            self.read_process()
            if control_fd is not None:
                self.control = ControlPage(control_fd)
        except PageError:
            self._mapping.close()
            raise

    def close(self) -> None:
        """Unmap both pages; reading raises ValueError afterwards."""
        self._mapping.close()
        if self.control is not None:
            self.control.close()

    def read_process(self) -> tuple[np.void, bool]:
        """The process header, one record of PROCESS_DTYPE, and whether it was torn."""
        data, consistent = self._mapping.copy(PROCESS.field("lock").offset, 0, PROCESS.size, 0, 0, TRIES_MAX)
        table = np.frombuffer(bytearray(data), PROCESS_DTYPE)
        process: np.void = table[0]
        _check("page magic", int(process["magic"]), PAGE_MAGIC)
        _check("page version", int(process["version"]), LAYOUT_VERSION)
        _check("page header_bytes", int(process["header_bytes"]), PROCESS.size)
        _check("page page_bytes", int(process["page_bytes"]), PAGE_BYTES)
        _clear_unknown(table, _PROCESS_CODES_MAX)
        return process, not consistent

    def read(self, *, detail: bool = True) -> PageSnapshot:
        """All frames, with their detail blocks unless `detail` is false. Bounded in time.

        Raises PageError where the header has become something else.
        """
        process, process_partial = self.read_process()
        blocks = bytearray()
        frames_whole: list[bool] = []
        details_whole: list[bool] = []
        faults: list[PageError] = []
        for slot in range(COMMUNICATORS_MAX):
            tries = TRIES_HURRIED if details_whole.count(False) >= TORN_BLOCKS_MAX else TRIES_MAX
            found = self._copy_slot(slot, detail, tries)
            if found is None:
                continue
            data, frame_whole, detail_whole = found
            try:
                _check_frame(np.frombuffer(data, FRAME_DTYPE, 1)[0], slot)
            except PageError as error:
                faults.append(error)
                continue
            blocks += data
            frames_whole.append(frame_whole)
            details_whole.append(detail_whole)
        if not detail:
            frames = np.frombuffer(blocks, FRAME_DTYPE)
            found_detail = PageDetail.none(len(frames))
        else:
            table = np.frombuffer(blocks, _BLOCK_DTYPE)
            frames = table["frame"]
            found_detail = _clean_detail(table, ~np.array(details_whole, bool))
        _clean_frames(frames, ~np.array(frames_whole, bool))
        return PageSnapshot(process, frames, found_detail, process_partial, tuple(faults))

    def _copy_slot(self, slot: int, detail: bool, tries: int) -> tuple[bytes, bool, bool] | None:
        """Bytes of the frame and its detail, and whether each is whole; None where there is no frame."""
        offset = FRAMES_OFFSET + slot * FRAME_STRIDE
        lock = offset + FRAME.field("lock").offset
        peek, _ = self._mapping.copy(lock, offset, 8, 0, 0, 1)
        if peek == bytes(8):
            return None  # never opened
        block = DETAIL_OFFSET + slot * DETAIL_STRIDE
        length = _DETAIL_BYTES if detail else 0
        data, whole = self._mapping.copy(lock, offset, FRAME.size, block, length, tries)
        if whole or not detail:
            return data, whole, whole
        # A busy writer tears the 45 kB long before it tears the frame.
        frame, frame_whole = self._mapping.copy(lock, offset, FRAME.size, 0, 0, tries)
        return frame + data[FRAME.size :], frame_whole, False


def _check_frame(row: np.void, slot: int) -> None:
    """PageError where it is no frame of this slot."""
    _check(f"frame {slot} magic", int(row["magic"]), FRAME_MAGIC)
    _check(f"frame {slot} version", int(row["version"]), LAYOUT_VERSION)
    _check(f"frame {slot} frame_bytes", int(row["frame_bytes"]), FRAME.size)
    _check(f"frame {slot} slot", int(row["slot"]), slot)
    if not 0 < row["nranks"] <= NRANKS_MAX:
        raise PageError(f"frame {slot} nranks", int(row["nranks"]), f"1 to {NRANKS_MAX}")
    if row["comm_rank"] >= row["nranks"]:
        raise PageError(f"frame {slot} comm_rank", int(row["comm_rank"]), f"below {row['nranks']}")
    if row["comm"] == 0:
        raise PageError(f"frame {slot} comm", 0, "a communicator id")


def _clean_frames(frames: Records, partial: npt.NDArray[np.bool_]) -> None:
    """Bring `frames` (n,) within their ranges, and say which contradict themselves or are `partial`."""
    _clear_unknown(frames, _CODES_MAX)
    contradicts = (frames["completed"] > frames["enqueued"]) | (frames["enqueued"] > frames["started"])
    contradicts |= frames["head_round"] > frames["round"]
    frames["flags"][partial | contradicts] |= np.uint32(FrameFlag.PARTIAL)
    peers = frames["peer"]
    peers[(peers < ANY_SOURCE) | (peers >= frames["nranks"])] = -1


def _clean_detail(table: Records, partial: npt.NDArray[np.bool_]) -> PageDetail:
    """The details of `table` (n,) of _BLOCK_DTYPE, brought within their ranges."""
    rounds, edges, peers = table["rounds"], table["edges"], table["peers"]
    nranks = table["frame"]["nranks"][:, None]
    _clear_unknown(rounds, _CODES_MAX)
    round_peers = rounds["peer"]
    round_peers[(round_peers < ANY_SOURCE) | (round_peers >= nranks)] = -1
    used_peers = (peers["posted"] != 0).any(axis=2)
    used_peers &= (peers["peer"] == ANY_SOURCE) | ((peers["peer"] >= 0) & (peers["peer"] < nranks))
    used_edges = (edges["peer"] >= 0) & (edges["peer"] < nranks)
    used_edges &= (edges["group"] <= 2) & (edges["direction"] <= 1)
    return PageDetail(
        rounds=rounds,
        times=table["times"],
        edges=edges[used_edges],
        edge_frames=np.nonzero(used_edges)[0],
        peers=peers[used_peers],
        peer_frames=np.nonzero(used_peers)[0],
        partial=partial,
    )
