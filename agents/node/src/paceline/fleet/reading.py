"""One reading of all pages of a job: sample times, tables in rank order, suspicion."""

import numpy as np

from paceline.contracts.batch import BatchFlag, RowKind, Rows
from paceline.contracts.codes import OpState
from paceline.fleet.detail import edge_rows, find_suspects, frame_rows
from paceline.fleet.engine import Engine
from paceline.fleet.faults import FaultKind
from paceline.fleet.history import F64, Ints
from paceline.fleet.instant import Instant, read_instant
from paceline.fleet.layout import CommKind
from paceline.fleet.pairs import open_pair_rounds, peer_rows
from paceline.fleet.processes import process_rows
from paceline.fleet.rounds import evidence_rounds, kept_rounds, round_rows
from paceline.fleet.rows import state_rows

PHASE_S = 0.5  # agents sample at different times within a second
JITTER_S = 0.01
# defaults of `paceline.agent.rows.RowPolicy`
SUSPECT_MS = 3_000
OPEN_ROUNDS_MAX = 64
RECENT_ROUNDS_MAX = 16


class Reader:
    """Keeps what an agent remembers between samples: the last sample time, full frames already sent."""

    def __init__(
        self,
        engine: Engine,
        random: np.random.Generator,
        pids: Ints,
        pid_starts: Ints,
        full_frames: bool,
        recent_rounds_max: int,
    ) -> None:
        topology = engine.topology
        self.engine = engine
        self.has_completed = False
        self.sampled_s: F64 = np.full(topology.nodes, -1.0)
        self._random, self._pids, self._pid_starts = random, pids, pid_starts
        self._full_frames, self._recent_rounds_max = full_frames, recent_rounds_max
        self._phase_s = random.uniform(0.0, PHASE_S, topology.nodes)
        self._boot_ns = (random.uniform(1e4, 1e7, topology.nodes) * 1e9).astype(np.int64)
        self._before: F64 = np.full(engine.shape, -1.0)
        self._framed = np.zeros((topology.ranks, len(topology.kinds), 2), np.uint64)
        self._suspect_node = np.zeros(topology.nodes, np.bool_)
        self._last_node = np.zeros(topology.nodes, np.bool_)
        self._instant: Instant | None = None

    def flags(self, node: int) -> BatchFlag:
        flags = BatchFlag.SUSPECT if self._suspect_node[node] else BatchFlag.NONE
        return flags | (BatchFlag.LAST if self._last_node[node] else BatchFlag.NONE)

    def read(self, second: int) -> dict[RowKind, Rows]:
        """Tables of all ranks, each at the sample time of its node."""
        engine, topology = self.engine, self.engine.topology
        jitter = self._random.uniform(-JITTER_S, JITTER_S, topology.nodes)
        before_nodes = self.sampled_s
        self.sampled_s = np.maximum(second + self._phase_s + jitter, before_nodes + 1e-3)
        now = self.sampled_s[topology.node_of].reshape(engine.shape)
        engine.advance(float(self.sampled_s.max()))
        at = self._last_words(now)
        instant = self._instant = read_instant(engine, at, self._before)
        tables = self._tables(instant, now)
        self._before = at
        engine.settle(float(at.min()) if not self._dead() else float(now.min()))
        return tables

    def _dead(self) -> list[tuple[int, float]]:
        return [
            (fault.rank, fault.at_s)
            for fault in self.engine.injector.faults
            if fault.kind is FaultKind.DEAD_PROCESS
        ]

    def _last_words(self, now: F64) -> F64:
        """The page of a dead process stays as it was when it died."""
        dead = self._dead()
        self._last_node[:] = False
        if not dead:
            return now
        at = now.copy()
        for rank, died_s in dead:
            node = int(self.engine.topology.node_of[rank])
            if at.reshape(-1)[rank] > died_s:
                self._last_node[node] = self._before.reshape(-1)[rank] < died_s
                at.reshape(-1)[rank] = died_s
        return at

    def _tables(self, instant: Instant, now: F64) -> dict[RowKind, Rows]:
        engine, topology = self.engine, self.engine.topology
        state = state_rows(engine, instant)
        processes = process_rows(engine, instant, now, self._pids, self._pid_starts)
        if any(fault.kind is FaultKind.BOOTSTRAP for fault in engine.injector.faults):
            return {RowKind.PROCESS: processes, RowKind.STATE: state.reshape(-1)[:0]}
        completed = state["completed"] if engine.profile.completion else state["entered"]
        self.has_completed |= bool((completed[: topology.ranks_per_node] > 0).any())
        suspects = find_suspects(instant, state, processes, SUSPECT_MS)
        self._suspect_node[:] = False
        self._suspect_node[topology.node_of[suspects]] = True
        wanted = self._suspect_node[topology.node_of]
        rounds = [self._rounds(instant, kind, wanted) for kind in topology.kinds if kind is not CommKind.PP]
        tables = {RowKind.PROCESS: processes, RowKind.STATE: state.reshape(-1)}
        if wanted.any():
            tables.update(self._detail(instant, state, wanted))
            rounds.append(tables.pop(RowKind.ROUND))
        tables[RowKind.ROUND] = _by_rank(rounds)
        return tables

    def _rounds(
        self, instant: Instant, kind: CommKind, wanted: np.ndarray[tuple[int], np.dtype[np.bool_]]
    ) -> Rows:
        engine = self.engine
        picks = kept_rounds(engine, instant, kind) if engine.profile.completion else []
        kept = round_rows(engine, instant, kind, picks)
        if not wanted.any():
            return kept
        suspect = wanted.reshape(engine.shape)
        more = evidence_rounds(instant, kind, suspect, self._recent_rounds_max, OPEN_ROUNDS_MAX)
        evidence = round_rows(engine, instant, kind, more)
        return np.concatenate([kept, _without(evidence, kept)])

    def _detail(
        self, instant: Instant, state: Rows, wanted: np.ndarray[tuple[int], np.dtype[np.bool_]]
    ) -> dict[RowKind, Rows]:
        engine, topology = self.engine, self.engine.topology
        kinds = [kind for kind in topology.kinds if kind is not CommKind.PP]
        found = {RowKind.EDGE: _by_rank([edge_rows(engine, instant, kind, wanted) for kind in kinds])}
        found[RowKind.ROUND] = np.zeros(0, round_rows(engine, instant, kinds[0], []).dtype)
        if instant.pairs is not None:
            groups, shaped = topology.groups[CommKind.PP], wanted.reshape(engine.shape)
            found[RowKind.PEER] = _by_rank([peer_rows(instant.pairs, groups, instant.at, shaped)])
            found[RowKind.ROUND] = open_pair_rounds(instant.pairs, groups, instant.at, shaped)
        if self._full_frames:
            fresh = self._fresh(state, wanted)
            clock_ns = self._boot_ns[topology.node_of] + (instant.at.reshape(-1) * 1e9).astype(np.int64)
            found[RowKind.FRAME] = frame_rows(engine, instant, state, fresh, clock_ns)
        return found

    def _fresh(
        self, state: Rows, wanted: np.ndarray[tuple[int], np.dtype[np.bool_]]
    ) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
        """Frames that stand still and were not yet sent in full for this head and newest round."""
        still = np.maximum(state["head_age_ms"], state["idle_ms"]) >= SUSPECT_MS
        still &= wanted[:, None] & (state["state"] != OpState.EMPTY)
        key = np.stack([state["head_round"], state["entered"]], axis=2).astype(np.uint64)
        fresh: np.ndarray[tuple[int, ...], np.dtype[np.bool_]] = still & (key != self._framed).any(axis=2)
        self._framed[fresh] = key[fresh]
        return fresh

    def waiting(self, guilty: frozenset[int]) -> Ints:
        """Ranks that stand in an operation which never completes."""
        if self._instant is None:
            return np.zeros(0, np.int64)
        held = np.zeros(self.engine.shape, np.bool_)
        for view in self._instant.views.values():
            for op in view.ops:
                held[op.stages] |= (op.enter <= self._instant.at[op.stages]) & np.isinf(op.complete)
        if self._instant.pairs is not None:
            for pair in self._instant.pairs.ops:
                if not pair.sends:
                    held[pair.stage] |= np.isinf(pair.complete) & np.isfinite(pair.enter)
        ranks = np.flatnonzero(held.reshape(-1))
        waiting: Ints = ranks[~np.isin(ranks, sorted(guilty))]
        return waiting


def _by_rank(tables: list[Rows]) -> Rows:
    dtype = tables[0].dtype
    # As plain bytes: numpy joins and gathers structured rows field by field.
    rows = np.concatenate([np.ascontiguousarray(table).view(f"V{dtype.itemsize}") for table in tables])
    ranks = np.concatenate([table["rank"] for table in tables])
    ordered: Rows = rows[np.argsort(ranks, kind="stable")].view(dtype)
    return ordered


def _without(rows: Rows, kept: Rows) -> Rows:
    """`rows` without operations that `kept` has: an operation is reported once, at its kept level."""
    if len(rows) == 0 or len(kept) == 0:
        return rows
    fields = ["comm", "rank", "round"]
    wanted: Rows = rows[~np.isin(_pack(rows, fields), _pack(kept, fields))]
    return wanted


def _pack(rows: Rows, fields: list[str]) -> np.ndarray[tuple[int], np.dtype[np.void]]:
    packed = np.zeros(len(rows), [(name, rows.dtype[name]) for name in fields])
    for name in fields:
        packed[name] = rows[name]
    return packed.view(f"V{packed.dtype.itemsize}")
