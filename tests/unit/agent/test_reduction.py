"""The native reduction says of any page what the plain one says."""

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paceline.agent.detail import is_standing
from paceline.agent.pages import PageView
from paceline.agent.rows import Facts, RowMemory, RowPolicy, find_suspicion, reduce_page
from paceline.contracts.codes import ExitKind, ProcessState, Source
from paceline.contracts.dtypes import PEER_DTYPE, PROCESS_DTYPE
from paceline.probe import _native
from paceline.probe.snapshot import BLOCK_DTYPE
from tests.unit.agent.plain_rows import plain_reduction, plain_standing, plain_suspicion

S = 1_000_000_000
NOW = 1_000 * S
STATES = (ProcessState.SLEEPING, ProcessState.STOPPED, ProcessState.ZOMBIE, ProcessState.UNKNOWN)


class Chance:
    """Pages whose values are close enough to each other for every rule to apply to some of them."""

    def __init__(self, seed: int) -> None:
        self._source = np.random.default_rng(seed)

    def some(self, low: int, high: int, shape: Any) -> Any:
        return self._source.integers(low, high, shape, np.int64)

    def stamps(self, shape: Any) -> Any:
        """Within 8 s around now, a third never."""
        stamps = self.some(NOW - 8 * S, NOW + S // 4, shape)
        return np.where(self.some(0, 3, shape) == 0, 0, stamps)

    def view(self, count: int) -> PageView:
        table, header = np.zeros(count, BLOCK_DTYPE), np.zeros(1, PROCESS_DTYPE)
        for name in ("native_beat_ns", "python_beat_ns", "phase_entered_ns", "host_wait_entered_ns"):
            header[name] = self.stamps(1)
        header["host_wait"], header["finished"], header["step"] = self.some(0, 3, 1), self.some(0, 2, 1), 7
        header["host_wait_rank"], header["paced_ns"], header["errors"] = 5, 3 * S, self.some(0, 9, 1)
        header["created_ns"], header["phase"] = NOW - 9 * S, 2
        self._fill_frames(table["frame"])
        self._fill_rounds(table["rounds"], table["times"])
        edges, peers = table["edges"], table["peers"]
        edges["peer"], edges["group"] = self.some(-1, 4, edges.shape), self.some(0, 3, edges.shape)
        edges["direction"] = self.some(0, 2, edges.shape)
        for name in ("count", "bytes", "wait_ns"):
            edges[name] = self.some(0, 2, edges.shape)
        peers["peer"], peers["total_ns"] = self.some(0, 4, peers.shape), self.some(0, S, (*peers.shape, 2))
        for name in ("posted", "completed", "head_seq", "head_signature", "head_issue"):
            peers[name] = self.some(0, 2, (*peers.shape, 2))
        peers["head_entered_ns"] = self.stamps((*peers.shape, 2))
        table["frame"]["p2p_started"] = self.some(0, 2, count)
        peers[table["frame"]["p2p_started"] == 0] = np.zeros(1, PEER_DTYPE)[0]
        return PageView(header[0], bytearray(table.tobytes()), bool(self.some(0, 2, 1)[0]))

    def _fill_frames(self, frames: Any) -> None:
        shape = frames.shape
        frames["comm"], frames["nranks"], frames["comm_rank"] = self.some(1, 4, shape), 4, 2
        frames["flags"], frames["sources"] = self.some(0, 1 << 17, shape), 2
        for name in ("progress_ns", "head_entered_ns", "entered_ns"):
            frames[name] = self.stamps(shape)
        for name in (
            "round",
            "completed",
            "head_round",
            "send_count",
            "function",
            "state",
            "kernels_started",
        ):
            frames[name] = self.some(0, 9, shape)
        frames["open_ops"], frames["peer"] = self.some(0, 1 << 20, shape), self.some(-2, 4, shape)
        for name in ("send_state", "recv_state"):
            frames["channel"][name] = self.some(0, 21, (*shape, 64))

    def _fill_rounds(self, rounds: Any, times: Any) -> None:
        """Some operations are in the newest rounds and in a kept level, as in a real ring."""
        shape = rounds.shape
        rounds["round"], rounds["issue"] = self.some(0, 90, shape), self.some(0, 200, shape)
        for name in ("signature", "count", "function", "dtype", "reduce_op", "pair_seq"):
            rounds[name] = self.some(0, 9, shape)
        for name, bound in (("kind", 3), ("state", 5), ("algorithm", 6), ("protocol", 4)):
            rounds[name] = self.some(0, bound, shape)
        rounds["peer"], rounds["entered_ns"] = self.some(-2, 4, shape), self.stamps(shape)
        rounds["completed_ns"], times["started_ns"] = self.stamps(shape), self.stamps(shape)
        for name in ("send_wait_ns", "recv_wait_ns", "total_ns"):
            times[name] = self.some(0, 9 * S, shape)
        times["step"], times["flags"] = self.some(0, 99, shape), self.some(0, 1 << 10, shape)

    def noise(self, count: int) -> PageView:
        """Every byte is anything."""
        header = np.frombuffer(bytearray(self._source.bytes(PROCESS_DTYPE.itemsize)), PROCESS_DTYPE)
        header["phase"], header["host_wait"] = header["phase"] % 8, header["host_wait"] % 6  # as it is read
        return PageView(header[0], bytearray(self._source.bytes(count * BLOCK_DTYPE.itemsize)))


def assert_same(view: PageView, facts: Facts, now_ns: int, policy: RowPolicy, since_ns: int) -> None:
    memory = RowMemory(since_ns, frozenset({(1, 1, 1), (2, 3, 4)}))
    for detail in (False, True):
        mine = reduce_page(view, facts, memory, now_ns, policy, detail=detail)
        plain = plain_reduction(view, facts, memory, now_ns, policy, detail=detail)
        assert mine.memory == plain.memory
        assert mine.rows.keys() == plain.rows.keys()
        for kind, rows in mine.rows.items():
            other = plain.rows[kind]
            assert rows.dtype == other.dtype
            wrong = [name for name in rows.dtype.names or () if not np.array_equal(rows[name], other[name])]
            assert (kind, wrong, rows.tobytes()) == (kind, [], other.tobytes())
    assert find_suspicion(view, facts, now_ns, policy) is plain_suspicion(view, facts, now_ns, policy)
    limit_ns = policy.suspect_ms * 1_000_000
    assert is_standing(view, now_ns, limit_ns) is plain_standing(view, now_ns, limit_ns)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    seed=st.integers(0, 2**32),
    count=st.integers(0, 5),
    state=st.sampled_from(STATES),
    bounds=st.tuples(st.integers(1, 40), st.integers(1, 40), st.integers(1, 40)),
    suspect_ms=st.integers(1, 9000),
    since_ns=st.sampled_from([0, NOW - 7 * S, NOW - S, NOW]),
)
def test_rows_of_plausible_pages(
    seed: int, count: int, state: ProcessState, bounds: tuple[int, int, int], suspect_ms: int, since_ns: int
) -> None:
    facts = Facts(9, 4321, 77, state, 2**40, 2**33 + 5, ExitKind.SIGNAL, -9)
    assert_same(Chance(seed).view(count), facts, NOW, RowPolicy(suspect_ms, *bounds), since_ns)


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32), count=st.integers(1, 3), now=st.integers(0, 2**63))
def test_rows_of_noise(seed: int, count: int, now: int) -> None:
    assert_same(Chance(seed).noise(count), Facts(9, 1, 7), now, RowPolicy(), now // 2)


def test_a_view_without_details_has_frames_and_heads() -> None:
    view = Chance(3).view(4)
    table = np.frombuffer(view.blocks, BLOCK_DTYPE).copy()
    table["frame"]["sources"] = Source.TORCH_HOOK
    view = PageView(view.process, bytearray(table.tobytes()), partial=True, faults=2)
    light = view.without_details()
    assert (len(light), light.partial, light.faults, light.heads) == (4, True, 2, view.heads)
    assert np.array_equal(light.frames, view.frames)
    assert len(light.blocks) * 20 < len(view.blocks)
    table["frame"]["sources"][2] |= Source.NCCL_PROFILER  # whose order is read from its rounds later
    view = PageView(view.process, bytearray(table.tobytes()))
    assert view.without_details() is view


def test_bytes_that_are_no_blocks_are_refused() -> None:
    for call in (_native.find_heads, _native.has_marks):
        for wrong in (bytearray(BLOCK_DTYPE.itemsize + 8), bytes(BLOCK_DTYPE.itemsize), None):
            with pytest.raises(TypeError, match="bytearray of blocks"):
                call(wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="takes a header"):
        _native.reduce_page(b"", bytearray())
    with pytest.raises(TypeError, match="18 integers"):
        _native.reduce_page(bytes(PROCESS_DTYPE.itemsize), bytearray(), 1)
