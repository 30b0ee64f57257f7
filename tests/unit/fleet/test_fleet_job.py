"""What the simulated agents publish: exact records, reproducible, physically consistent."""

import numpy as np
import pytest

from paceline.contracts.batch import BatchFlag, RowKind, decode_batch
from paceline.contracts.registry import CommunicatorRecord, JobRecord, NodeRecord
from paceline.fleet import CommKind, Conditions, Fault, FaultKind, FleetJob, Profile, Topology, draw_faults

SMALL = Topology(tp=2, pp=2, dp=4, ranks_per_node=4)


def make_job(profile: str = "gloo", topology: Topology = SMALL, **options: object) -> FleetJob:
    return FleetJob(topology, Profile.named(profile), **{"seed": 5, **options})  # type: ignore[arg-type]


def test_the_same_seed_gives_the_same_bytes_and_another_seed_others() -> None:
    streams = []
    for seed in (5, 5, 6):
        job = make_job(seed=seed)
        streams.append([record.value for second in range(8) for record in job.records(second)])
    assert streams[0] == streams[1]
    assert streams[0] != streams[2]


def test_the_registry_names_every_rank_node_and_communicator_once() -> None:
    events = [event for _, _, event in make_job().events(0)]
    jobs = [event for event in events if isinstance(event, JobRecord)]
    nodes = [event for event in events if isinstance(event, NodeRecord)]
    comms = [event for event in events if isinstance(event, CommunicatorRecord)]
    assert [job.world_size for job in jobs] == [16]
    assert sorted(rank.rank for node in nodes for rank in node.ranks) == list(range(16))
    assert {comm.kind for comm in comms} == {"world", "tp", "dp", "pp"}
    assert len({comm.communicator for comm in comms}) == len(comms) == 1 + 8 + 4 + 8


def test_records_are_what_the_batch_codec_reads_with_one_row_per_rank_and_communicator() -> None:
    job = make_job()
    job.records(0)
    frames = [decode_batch(record.value) for record in job.records(3) if not record.headers]
    assert [len(batch.rows[RowKind.PROCESS]) for batch in frames] == [4] * 4
    assert [len(batch.rows[RowKind.STATE]) for batch in frames] == [16] * 4
    assert len({batch.sampled_ns for batch in frames}) == 4  # each node has its own clock
    assert all(batch.flags == BatchFlag.NONE for batch in frames)


@pytest.mark.parametrize("profile", ["gloo", "nccl1"])
def test_no_member_completes_a_round_before_all_members_entered_it(profile: str) -> None:
    job = make_job(profile, topology=Topology(tp=2, pp=2, dp=2, cp=2, ep=2, ranks_per_node=4))
    checked = 0
    for second in range(6):
        job.tables(second)
        for kind, history in job.engine.histories.items():
            groups = job.topology.groups[kind]
            for op in history.ops:
                if not op.call.synchronising:
                    continue
                shape = (-1, *groups.shape[1:])
                latest = op.start.reshape(shape).max(axis=2)
                first = op.complete.reshape(shape).min(axis=2)
                assert (first > latest).all()
                assert (op.start >= op.enter).all()
                checked += 1
    assert checked > 50


def test_rounds_entered_are_never_fewer_than_completed_and_never_go_back() -> None:
    job = make_job()
    last = None
    for second in range(10):
        state = job.tables(second)[RowKind.STATE]
        assert (state["entered"] >= state["completed"]).all()
        if last is not None:
            assert (state["completed"] >= last).all()
        last = state["completed"].copy()
    assert last is not None
    assert last.max() > 20


def test_the_open_round_is_the_one_after_the_last_completed_also_where_stages_stop_apart() -> None:
    topology = Topology(tp=8, pp=4, dp=4, ranks_per_node=8)
    for seed in range(20, 30):
        faults = draw_faults("h3-exit", topology, seed=seed, at_s=4.0)
        job = make_job("gloo", topology=topology, faults=faults, seed=seed)
        for second in range(12):
            state = job.tables(second)[RowKind.STATE]
        stands = state[state["head_round"] > 0]
        assert len(stands) > 0
        assert (stands["head_round"] == stands["completed"] + 1).all()


def test_a_rank_that_never_enters_stops_its_communicator_and_then_everybody() -> None:
    fault = Fault(FaultKind.MISSING_ENTER, rank=5, group=CommKind.DP, at_s=4.0)
    job = make_job(faults=[fault])
    for second in range(14):
        state = job.tables(second)[RowKind.STATE].reshape(16, 4)
    (fired,) = job.truth().fired
    stalled = state[state["comm"] == fired.communicator]
    guilty = stalled[stalled["rank"] == 5]
    others = stalled[stalled["rank"] != 5]
    assert guilty["head_round"].tolist() == [0]
    assert guilty["entered"].tolist() == [fired.round - 1]
    assert (others["head_round"] == fired.round).all()
    assert (others["head_age_ms"] > 3000).all()
    assert sorted(job.waiting()) == [rank for rank in range(16) if rank != 5]
    assert job.truth().verdict_class.value == "H1"


def test_nothing_has_happened_before_a_fault_takes_effect() -> None:
    job = make_job(faults=draw_faults("h1", SMALL, seed=1, at_s=50.0))
    job.tables(3)
    assert job.truth().verdict_class.value == "NONE"
    assert len(job.waiting()) == 0


def test_lost_and_late_samples_dead_agents_and_unobserved_ranks_are_missing_as_asked() -> None:
    conditions = Conditions(drop=0.3, late=0.3, late_s=2.0, dead_agents=((1, 5.0),), unobserved=(0, 6))
    job = make_job(conditions=conditions)
    arrivals: list[tuple[float, str, int]] = []
    for second in range(20):
        for at_s, batch in job.batches(second):
            arrivals.append((at_s, batch.node, batch.seq))
            assert not np.isin(batch.rows[RowKind.PROCESS]["rank"], (0, 6)).any()
    assert job.lost > 20
    assert max(at_s for at_s, node, _ in arrivals if node == "node-00001") < 5.0 + 2.0
    by_node = [seq for _, node, seq in arrivals if node == "node-00002"]
    assert by_node != sorted(by_node)  # a late one came after a newer one
    assert len(set(by_node)) == len(by_node)


def test_seconds_do_not_go_back() -> None:
    job = make_job()
    job.tables(2)
    with pytest.raises(ValueError, match="second is 2, expected more than 2"):
        job.tables(2)
