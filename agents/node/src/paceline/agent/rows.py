"""From one snapshot of a probe page to rows of a batch: pure, the page's content is hostile.

Ages are durations on this machine's CLOCK_MONOTONIC at the instant of the sample. The rank is the
one that was admitted over the socket, whatever the page says. The rows themselves are made by
kernels/native/reduction.cc, in one call for each process (docs/adr/0007-native-binding.md).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from paceline.agent.pages import PageView
from paceline.contracts.batch import (
    EDGE_ROW,
    FRAME_ROW,
    PEER_ROW,
    PROCESS_ROW,
    ROUND_ROW,
    STATE_ROW,
    RowKind,
    Rows,
)
from paceline.contracts.codes import ExitKind, FrameFlag, ProcessState
from paceline.probe import _native

U32_MAX = 0xFFFFFFFF
NS_PER_MS = 1_000_000
FrameKey = tuple[int, int, int]  # communicator, head round, newest round
EDGE_PERIOD_NS = 5_000_000_000  # waits per neighbour also in good times, so that a slow link has a base

_NO_EDGES, _WAITING_EDGES, _ALL_EDGES = 0, 1, 2


@dataclass(frozen=True)
class Facts:
    """What the agent knows about a process without its page."""

    rank: int
    pid: int
    pid_start: int
    state: ProcessState = ProcessState.UNKNOWN
    cpu_ms: int = 0
    context_switches: int = 0
    exit_kind: ExitKind = ExitKind.NONE
    exit_code: int = 0


@dataclass(frozen=True)
class RowPolicy:
    """Bounds and limits of a sample."""

    suspect_ms: int = 3_000
    kept_rounds_max: int = 32  # per communicator and sample
    open_rounds_max: int = 64  # per communicator and sample, while suspect
    recent_rounds_max: int = 16  # per communicator that stands still and sample, while suspect


class Suspicion(str, Enum):
    """Why a process is looked at closely."""

    NONE = "none"
    HEAD_OLD = "head_old"
    PEER_HEAD_OLD = "peer_head_old"
    NATIVE_BEAT_STALE = "native_beat_stale"
    PYTHON_BEAT_STALE = "python_beat_stale"
    STOPPED = "stopped"
    GONE = "gone"


@dataclass(frozen=True)
class RowMemory:
    """What the last sample of this process leaves to the next one."""

    sampled_ns: int = 0
    framed: frozenset[FrameKey] = frozenset()


@dataclass(frozen=True)
class Reduction:
    """The rows of one process and the memory for its next sample."""

    rows: Mapping[RowKind, Rows]
    memory: RowMemory = field(default_factory=RowMemory)


def find_suspicion(view: PageView, facts: Facts, now_ns: int, policy: RowPolicy) -> Suspicion:
    """The first reason to look closely at this process, NONE where there is none."""
    if facts.state in (ProcessState.GONE, ProcessState.ZOMBIE):
        return Suspicion.GONE
    if facts.state is ProcessState.STOPPED:
        return Suspicion.STOPPED
    since_ns = now_ns - policy.suspect_ms * NS_PER_MS
    heads, page = view.heads, view.process
    if 0 < heads.round_ns <= since_ns:
        return Suspicion.HEAD_OLD
    if 0 < heads.message_ns <= since_ns:
        return Suspicion.PEER_HEAD_OLD
    if page["finished"]:
        return Suspicion.NONE
    if 0 < int(page["native_beat_ns"]) <= since_ns:
        return Suspicion.NATIVE_BEAT_STALE
    return Suspicion.PYTHON_BEAT_STALE if 0 < int(page["python_beat_ns"]) <= since_ns else Suspicion.NONE


def reduce_page(
    view: PageView, facts: Facts, memory: RowMemory, now_ns: int, policy: RowPolicy, *, detail: bool
) -> Reduction:
    """Rows of one process at `now_ns`; with `detail` also open rounds, edges, peers and full frames."""
    gone = facts.state in (ProcessState.GONE, ProcessState.ZOMBIE)
    in_time = now_ns // EDGE_PERIOD_NS == memory.sampled_ns // EDGE_PERIOD_NS
    edges = _ALL_EDGES if detail else _NO_EDGES if in_time else _WAITING_EDGES
    process, states, rounds, edge_rows, peer_rows = _native.reduce_page(
        view.process.tobytes(), view.blocks,
        facts.rank, facts.pid, facts.pid_start, facts.cpu_ms, facts.context_switches, facts.state,
        facts.exit_kind, facts.exit_code, FrameFlag.PARTIAL if view.partial else 0,
        now_ns, memory.sampled_ns, policy.suspect_ms,
        policy.kept_rounds_max, policy.open_rounds_max, policy.recent_rounds_max, gone, detail, edges,
    )  # fmt: skip
    rows: dict[RowKind, Rows] = {
        RowKind.PROCESS: np.frombuffer(process, PROCESS_ROW),
        RowKind.STATE: np.frombuffer(states, STATE_ROW),
        RowKind.ROUND: np.frombuffer(rounds, ROUND_ROW),
    }
    if edges != _NO_EDGES:
        rows[RowKind.EDGE] = np.frombuffer(edge_rows, EDGE_ROW)
    framed = memory.framed
    if detail:
        rows[RowKind.PEER] = np.frombuffer(peer_rows, PEER_ROW)
        rows[RowKind.FRAME], framed = _full_frames(view, rows[RowKind.STATE], framed, policy, gone=gone)
    return Reduction(rows, RowMemory(now_ns, framed))


def pageless_row(facts: Facts) -> Rows:
    """The process row of a process whose page the agent does not have (any more)."""
    row = np.zeros(1, PROCESS_ROW)
    row["rank"], row["pid"], row["pid_start"] = facts.rank, facts.pid, facts.pid_start
    row["cpu_ms"] = facts.cpu_ms
    row["context_switches"] = facts.context_switches & U32_MAX
    row["process_state"], row["exit_kind"], row["exit_code"] = facts.state, facts.exit_kind, facts.exit_code
    row["host_wait_rank"] = -1
    row["flags"] = FrameFlag.PARTIAL
    return row


def _full_frames(
    view: PageView, states: Rows, framed: frozenset[FrameKey], policy: RowPolicy, *, gone: bool
) -> tuple[Rows, frozenset[FrameKey]]:
    """The frames that stand still and were not sent for this round before, and those sent by now."""
    keys = [(int(frame["comm"]), int(frame["head_round"]), int(frame["round"])) for frame in view.frames]
    still = (np.maximum(states["head_age_ms"], states["idle_ms"]) >= policy.suspect_ms) | gone
    fresh = np.array([key not in framed for key in keys], bool) & still
    # Only frames in use are remembered, so the memory is bounded like the page.
    remembered = frozenset(key for key, is_still in zip(keys, still, strict=True) if is_still)
    return view.frames[fresh].view(FRAME_ROW), remembered
