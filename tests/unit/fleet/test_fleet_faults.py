"""Each fault has the physical consequences that it has in a real job, as far as its profile sees them."""

from typing import Any

import numpy as np
import pytest

from paceline.contracts.batch import BatchFlag, RowKind, Rows
from paceline.contracts.codes import ExitKind, FrameFlag, OpState, ProcessState, TransferState
from paceline.contracts.dtypes import FRAME_DTYPE
from paceline.contracts.registry import HealthEvent
from paceline.contracts.verdicts import RootKind, VerdictClass
from paceline.fleet import (
    CommKind,
    Conditions,
    Fault,
    FaultKind,
    FleetJob,
    Pause,
    Profile,
    Program,
    Topology,
    draw_faults,
)
from paceline.fleet.counters import BUFFER, SLICES
from paceline.fleet.trees import links_of

RING = Topology(tp=1, pp=1, dp=8, ranks_per_node=1)  # every edge leaves its node
SMALL = Topology(tp=2, pp=2, dp=4, ranks_per_node=4)


def make_job(kind: FaultKind, profile: str = "nccl2", topology: Topology = RING, **fault: Any) -> FleetJob:
    options = {"rank": 3, "group": CommKind.DP, "at_s": 3.0, **fault}
    return FleetJob(topology, Profile.named(profile), faults=[Fault(kind, **options)], seed=9)


def last_tables(job: FleetJob, seconds: int = 12) -> dict[RowKind, Rows]:
    tables: dict[RowKind, Rows] = {}
    for second in range(seconds):
        tables = job.tables(second)
    return tables


def stalled_state(job: FleetJob, tables: dict[RowKind, Rows]) -> Rows:
    state = tables[RowKind.STATE]
    (fired,) = job.truth().fired
    stalled: Rows = state[state["comm"] == fired.communicator]
    return stalled


def counts_in_round(job: FleetJob, tables: dict[RowKind, Rows]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Slices sent in the stalled round by place: all members had the same total before it."""
    rows = stalled_state(job, tables)
    done = job.engine.totals[CommKind.DP].sends.reshape(-1)
    sent: np.ndarray[Any, np.dtype[np.int64]] = rows["send_count"].astype(np.int64) - done[rows["rank"]]
    return sent


@pytest.mark.parametrize("kind", [FaultKind.STUCK, FaultKind.LINK_DOWN])
def test_counts_rise_with_the_distance_behind_a_stuck_member(kind: FaultKind) -> None:
    job = make_job(kind, peer=4)
    sent = counts_in_round(job, last_tables(job))
    behind = np.roll(sent, -3)  # place 3 first, then along the ring
    assert (np.diff(behind[:-1]) == SLICES).all()
    assert behind[-1] == behind[0] + BUFFER  # the one before it fills the buffers in between
    assert int(sent.argmin()) == 3


def test_counts_behind_a_missing_member_start_at_nothing_received() -> None:
    job = make_job(FaultKind.MISSING_ENTER)
    rows = stalled_state(job, last_tables(job))
    received = rows["recv_count"].astype(np.int64) - int(rows["recv_count"][3])
    assert np.roll(received, -3).tolist() == [0, 0, 4, 8, 12, 16, 20, 24]


def test_edges_tell_a_stuck_device_from_a_link_that_is_down() -> None:
    found = {}
    for kind in (FaultKind.STUCK, FaultKind.LINK_DOWN):
        job = make_job(kind, peer=4)
        edges = last_tables(job)[RowKind.EDGE]
        mine = edges[(edges["comm"] == job.truth().fired[0].communicator) & (edges["rank"] == 3)]
        found[kind] = [int(mine["state"][mine["direction"] == side][0]) for side in (0, 1)]
    assert found[FaultKind.STUCK] == [TransferState.SEND_GPU_WAIT, TransferState.RECV_GPU_WAIT]
    assert found[FaultKind.LINK_DOWN] == [TransferState.SEND_WAIT, TransferState.RECV_WAIT]


def test_a_tree_compares_only_by_role() -> None:
    topology = Topology(tp=8, pp=1, dp=2, ranks_per_node=1, tree=(CommKind.TP,))
    job = make_job(FaultKind.STUCK, topology=topology, group=CommKind.TP, rank=1, place=0.2)
    tables = last_tables(job)
    rows = stalled_state(job, tables)
    done = job.engine.totals[CommKind.TP].sends.reshape(-1)[rows["rank"]]
    sent = rows["send_count"].astype(np.int64) - done
    by_role = sent / links_of(8)
    assert by_role.argmin() == 1


def test_a_slow_link_slows_everybody_alike_and_its_receiver_starves() -> None:
    job = make_job(FaultKind.SLOW_LINK, peer=4, factor=8.0)
    rounds = last_tables(job, 10)[RowKind.ROUND]
    slow = rounds[(rounds["comm"] == job.truth().fired[0].communicator) & (rounds["duration_ns"] > 0)]
    newest = slow[slow["round"] == slow["round"].max()]
    assert len(newest) == 8
    duration = newest["duration_ns"].astype(float)
    assert duration.max() / duration.min() < 1.5
    wait = newest["recv_wait_us"].astype(float)
    assert int(np.argmax(wait - np.roll(wait, 1))) == 4


def test_a_late_rank_waits_least() -> None:
    job = make_job(FaultKind.LATE_RANK, topology=SMALL, rank=5, profile="gloo", delay_s=0.2)
    rounds = last_tables(job, 10)[RowKind.ROUND]
    groups = job.topology.groups[CommKind.TP]
    mine = rounds[rounds["comm"] == groups.ids[groups.comm_of[5]]]
    duration = {rank: np.median(mine["duration_ns"][mine["rank"] == rank]) for rank in (4, 5)}
    assert duration[4] > 10 * duration[5]


def test_a_mixed_fault_names_the_late_rank_and_the_link() -> None:
    job = make_job(FaultKind.MIXED, peer=4, late=6)
    last_tables(job, 8)
    truth = job.truth()
    assert truth.verdict_class is VerdictClass.S3
    assert [(root.kind, root.rank, root.peer_rank) for root in truth.roots] == [
        (RootKind.RANK, 6, None),
        (RootKind.LINK, 3, 4),
    ]


def test_a_mismatch_shows_in_the_head_of_the_guilty_rank_only() -> None:
    for kind in (FaultKind.OPERATION, FaultKind.SIZE, FaultKind.DTYPE, FaultKind.REDUCE_OP):
        job = make_job(kind, profile="gloo")
        rows = stalled_state(job, last_tables(job))
        assert (rows["head_round"] == job.truth().fired[0].round).all()
        values, counts = np.unique(rows["head_signature"], return_counts=True)
        assert sorted(counts.tolist()) == [1, 7]
        assert rows["rank"][rows["head_signature"] == values[counts.argmin()]].tolist() == [3]


def test_others_leave_a_round_whose_exit_one_rank_misses() -> None:
    job = make_job(FaultKind.MISSING_EXIT, profile="gloo")
    rows = stalled_state(job, last_tables(job))
    number = job.truth().fired[0].round
    assert rows["head_round"].tolist() == [number if rank == 3 else number + 1 for rank in range(8)]


def test_an_inversion_is_visible_in_the_order_of_issue() -> None:
    job = make_job(FaultKind.ORDER_INVERSION, profile="gloo", topology=SMALL, rank=6)
    state = last_tables(job)[RowKind.STATE].reshape(16, 4)
    dp, world = (list(job.topology.kinds).index(kind) for kind in (CommKind.DP, CommKind.WORLD))
    heads = state["head_round"] > 0
    assert heads[6, world]
    assert not heads[6, dp]
    peers = [int(rank) for rank in job.topology.groups[CommKind.DP].members[0] if rank != 6]
    assert heads[peers, dp].all()
    assert not heads[peers, world].any()
    assert len(job.waiting()) == 15


def test_queue_exhaustion_keeps_the_order_of_calls_and_turns_that_of_starts() -> None:
    job = make_job(FaultKind.QUEUE_EXHAUSTION, topology=SMALL, rank=6)
    state = last_tables(job)[RowKind.STATE].reshape(16, 4)
    kinds = list(job.topology.kinds)
    dp, world = state[:, kinds.index(CommKind.DP)], state[:, kinds.index(CommKind.WORLD)]
    assert dp["head_issue"][6] < world["head_issue"][6]
    assert (dp["state"][6], world["state"][6]) == (OpState.ENTERED, OpState.STARTED)
    assert (dp["state"][4], world["state"][4]) == (OpState.STARTED, OpState.ENTERED)


def test_a_dead_process_leaves_its_last_frames_an_exit_and_a_health_event() -> None:
    job = make_job(FaultKind.DEAD_PROCESS, topology=SMALL, rank=6, exit_code=-9, profile="gloo")
    flags, events = [], []
    for second in range(10):
        flags += [batch.flags for _, batch in job.batches(second) if batch.node == "node-00001"]
        events += [event for _, _, event in job.events(second) if isinstance(event, HealthEvent)]
    assert sum(bool(flag & BatchFlag.LAST) for flag in flags) == 1
    row = job.tables(11)[RowKind.PROCESS][6]
    assert (row["exit_kind"], row["exit_code"]) == (ExitKind.SIGNAL, -9)
    assert row["process_state"] == ProcessState.GONE
    assert [(event.rank, event.exit_code) for event in events] == [(6, -9)]


@pytest.mark.parametrize("profile", ["gloo", "nccl2"])
def test_a_frozen_process_issues_nothing_more_and_stops_the_job(profile: str) -> None:
    job = make_job(FaultKind.FROZEN_PROCESS, topology=SMALL, rank=6, profile=profile)
    before = last_tables(job, 8)[RowKind.PROCESS]["issued"].copy()
    after = job.tables(14)[RowKind.PROCESS]
    assert before[6] == after["issued"][6]
    assert after["native_age_ms"][6] > 10_000
    assert np.isinf(job.engine.host).all()
    assert job.truth().verdict_class in (VerdictClass.H1, VerdictClass.H3)


def test_hosts_run_ahead_no_further_than_the_queue_is_long() -> None:
    topology = Topology(tp=2, pp=1, dp=2, ranks_per_node=4)
    job = FleetJob(
        topology,
        Profile.named("nccl1"),
        Program(run_ahead=3, microbatches=8),
        faults=[Fault(FaultKind.STUCK, rank=0, group=CommKind.TP, at_s=4.0)],
        seed=1,
    )
    state = last_tables(job, 10)[RowKind.STATE].reshape(4, 3)
    waiting = (state["entered"].astype(int) - state["completed"].astype(int)).sum(axis=1)
    assert waiting[:2].tolist() == [3, 3]


def test_what_a_profile_cannot_see_is_flagged_and_never_a_count() -> None:
    local = Topology(tp=4, pp=1, dp=2, ranks_per_node=4)
    seen = {}
    for profile in ("gloo", "nccl0", "nccl2", "kernels"):
        job = FleetJob(local, Profile.named(profile), seed=2)
        state = last_tables(job, 5)[RowKind.STATE].reshape(8, 3)
        hidden = (state["flags"] & FrameFlag.COUNTS_UNOBSERVABLE) != 0
        assert not state["send_count"][hidden].any()
        assert (state["send_count"][~hidden] > 0).all()
        seen[profile] = [bool(flag) for flag in hidden.all(axis=0)]  # world, tp, dp
        unseen = (state["flags"] & FrameFlag.COMPLETION_UNOBSERVABLE) != 0
        assert bool(unseen.all()) == (profile == "nccl0")
    assert seen == {
        "gloo": [True, True, True],
        "nccl0": [True, True, True],
        "nccl2": [True, True, False],
        "kernels": [False, False, False],
    }


def test_a_suspicious_rank_brings_full_frames_once_and_rounds_of_its_node() -> None:
    job = make_job(FaultKind.MISSING_ENTER, topology=SMALL, rank=6)
    frames, suspect = [], False
    for second in range(12):
        for _, batch in job.batches(second):
            suspect |= bool(batch.flags & BatchFlag.SUSPECT)
            if RowKind.FRAME in batch.rows:
                frames.append(batch.rows[RowKind.FRAME].view(FRAME_DTYPE))
    assert suspect
    keys = [
        (int(row["global_rank"]), int(row["comm"]), int(row["head_round"]), int(row["round"]))
        for table in frames
        for row in table
    ]
    assert len(keys) == len(set(keys)) > 16


def test_declared_pauses_show_their_phase_and_nobody_is_at_fault() -> None:
    conditions = Conditions(pauses=(Pause(3.0, 6.0),), gc_per_s=0.05)
    job = FleetJob(SMALL, Profile.named("gloo"), conditions=conditions, seed=3)
    phases = [set(job.tables(second)[RowKind.PROCESS]["phase"].tolist()) for second in range(14)]
    assert {4} in phases  # everybody in the checkpoint
    assert phases[2] == phases[13] == {2}
    assert job.truth().verdict_class is VerdictClass.NONE


def test_faults_are_drawn_where_the_topology_has_room_for_them() -> None:
    pair = draw_faults("h1", SMALL, seed=4, group=CommKind.TP, count=2)
    groups = SMALL.groups[CommKind.TP]
    assert groups.comm_of[pair[0].rank] != groups.comm_of[pair[1].rank]
    shared = draw_faults("s2-shared", Topology(tp=2, pp=1, dp=8, ranks_per_node=4), seed=4)
    job = FleetJob(
        Topology(tp=2, pp=1, dp=8, ranks_per_node=4), Profile.named("nccl2"), faults=shared, seed=4
    )
    last_tables(job, 24)
    roots = [(root.kind, root.rank, root.peer_rank) for root in job.truth().roots]
    node = job.topology.node_of[shared[0].rank]
    links = [(RootKind.LINK, 4 * node + 2 + i, (4 * node + 4 + i) % 16) for i in (0, 1)]
    assert roots == [(RootKind.NODE, None, None), *links]
    with pytest.raises(ValueError, match="no 1 independent places"):
        draw_faults("s2-shared", Topology(tp=2, pp=2, dp=2, ranks_per_node=8), seed=1)
