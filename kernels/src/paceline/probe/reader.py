"""Reads the page of another process. The page is hostile: its writer may be mad, killed in the
middle of a write, or somebody who wants to hurt the agent.

No offset, length or index is taken from the page; each copy is bounded in time; what is out of
range is refused by name or read as unknown. Memory per reading is bounded by PAGE_BYTES.
"""

from __future__ import annotations

import numpy as np

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
from paceline.probe.snapshot import FrameDetail, PageSnapshot, Records

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
        frames: list[Records] = []
        details: list[FrameDetail] = []
        faults: list[PageError] = []
        torn = 0
        for slot in range(COMMUNICATORS_MAX):
            try:
                found = self._read_slot(slot, detail, TRIES_HURRIED if torn >= TORN_BLOCKS_MAX else TRIES_MAX)
            except PageError as error:
                faults.append(error)
                continue
            if found is None:
                continue
            frames.append(found[0])
            details.append(found[1])
            torn += bool(found[0]["flags"][0] & FrameFlag.PARTIAL) or found[1].partial
        # Without `dtype` the fields of all tables are compared one by one, at each of them anew.
        table = np.concatenate(frames, dtype=FRAME_DTYPE) if frames else np.zeros(0, FRAME_DTYPE)
        return PageSnapshot(process, table, tuple(details), process_partial, tuple(faults))

    def _read_slot(self, slot: int, detail: bool, tries: int) -> tuple[Records, FrameDetail] | None:
        offset = FRAMES_OFFSET + slot * FRAME_STRIDE
        lock = offset + FRAME.field("lock").offset
        peek, _ = self._mapping.copy(lock, offset, 8, 0, 0, 1)
        if peek == bytes(8):
            return None  # never opened
        block = DETAIL_OFFSET + slot * DETAIL_STRIDE
        length = _DETAIL_BYTES if detail else 0
        data, consistent = self._mapping.copy(lock, offset, FRAME.size, block, length, tries)
        frame_data, detail_data = data[: FRAME.size], data[FRAME.size :]
        frame_consistent = consistent
        if not consistent and detail:
            # A busy writer tears the 45 kB long before it tears the frame.
            frame_data, frame_consistent = self._mapping.copy(lock, offset, FRAME.size, 0, 0, tries)
        frame = _clean_frame(np.frombuffer(bytearray(frame_data), FRAME_DTYPE), slot, frame_consistent)
        nranks = int(frame["nranks"][0])
        return frame, _clean_detail(bytearray(detail_data), nranks, not consistent and detail)


def _clean_frame(frame: Records, slot: int, consistent: bool) -> Records:
    """`frame` (1,) within its ranges; PageError where it is no frame of this slot."""
    row = frame[0]
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
    _clear_unknown(frame, _CODES_MAX)
    contradicts = (
        not row["completed"] <= row["enqueued"] <= row["started"] or row["head_round"] > row["round"]
    )
    if not consistent or contradicts:
        frame["flags"] |= np.uint32(FrameFlag.PARTIAL)
    if not ANY_SOURCE <= row["peer"] < row["nranks"]:
        frame["peer"] = -1
    return frame


def _clean_detail(data: bytearray, nranks: int, partial: bool) -> FrameDetail:
    if not data:
        nothing = (np.zeros(0, dtype) for dtype in (ROUND_DTYPE, TIMES_DTYPE, PEER_DTYPE, EDGE_DTYPE))
        return FrameDetail(next(nothing), next(nothing), next(nothing), next(nothing), False)
    rounds = np.frombuffer(data, ROUND_DTYPE, ROUNDS_MAX, ROUNDS_IN_DETAIL)
    times = np.frombuffer(data, TIMES_DTYPE, ROUNDS_MAX, ROUND_TIMES_IN_DETAIL)
    edges = np.frombuffer(data, EDGE_DTYPE, EDGES_MAX, EDGES_IN_DETAIL)
    peers = np.frombuffer(data, PEER_DTYPE, PEERS_MAX, PEERS_IN_DETAIL)
    _clear_unknown(rounds, _CODES_MAX)
    outside = (rounds["peer"] < ANY_SOURCE) | (rounds["peer"] >= nranks)
    rounds["peer"][outside] = -1
    used_peers = (peers["posted"] != 0).any(axis=1)
    used_peers &= (peers["peer"] == ANY_SOURCE) | ((peers["peer"] >= 0) & (peers["peer"] < nranks))
    used_edges = (edges["peer"] >= 0) & (edges["peer"] < nranks)
    used_edges &= (edges["group"] <= 2) & (edges["direction"] <= 1)
    return FrameDetail(rounds, times, peers[used_peers], edges[used_edges], partial)
