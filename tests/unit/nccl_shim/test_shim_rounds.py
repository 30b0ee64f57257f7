"""What the shim writes: entries, signatures, groups, and one count with the plugin beside it."""

import pytest

from paceline.contracts.codes import FrameFlag, Function, HostWait, OpState, ReduceOp, Source
from tests.unit.nccl_shim.conftest import ShimProcess, StartShim

BOTH = Source.NCCL_SHIM | Source.NCCL_PROFILER


def rounds(process: ShimProcess) -> list[tuple[int, ...]]:
    return rounds_of(process, 0)


def rounds_of(process: ShimProcess, place: int) -> list[tuple[int, ...]]:
    entries = process.detail(place).rounds
    kept = entries[entries["round"] > 0]
    names = ("round", "function", "count", "reduce_op", "peer")
    return sorted({tuple(int(entry[name]) for name in names) for entry in kept})  # some are kept twice


def test_calls_are_rounds_with_signature_and_state(start_shim: StartShim) -> None:
    process = start_shim()
    process.all("init 0 4 2 1", "allreduce 0 100 7 2", "broadcast 0 50 8 3", "bcast 0 60 7 1")
    frame = process.frame()
    assert (frame["sources"], frame["nranks"], frame["comm_rank"]) == (Source.NCCL_SHIM, 4, 2)
    assert (frame["started"], frame["completed"], frame["enqueued"]) == (3, 2, 3)
    assert (frame["state"], frame["bytes"]) == (OpState.STARTED, 240)
    assert frame["flags"] == FrameFlag.COMPLETION_UNOBSERVABLE | FrameFlag.COUNTS_UNOBSERVABLE
    assert process.read().process["nccl_dropped"] == 0
    assert rounds(process) == [
        (1, Function.ALL_REDUCE, 100, ReduceOp.MAX, -1),
        (2, Function.BROADCAST, 50, 0, 3),
        (3, Function.BROADCAST, 60, 0, 1),
    ]


def test_identity_is_that_of_the_unique_id(start_shim: StartShim) -> None:
    """Ranks agree on it without talking, splits too, and another id or colour is another communicator."""
    frames = []
    for rank in (0, 1):
        process = start_shim()
        process.all(f"init 0 4 {rank} 1", f"init 1 4 {rank} 2", f"split 0 2 {rank} 0", f"split 0 3 {rank} 0")
        frames.append([int(frame["comm"]) for frame in process.read().frames])
    (first, second), (other_first, other_second) = ([row[:2], row[2:]] for row in frames)
    assert first == other_first
    assert len({*first, *second, *other_second}) == 6


@pytest.mark.parametrize("profiler", [0, 4, 5])
@pytest.mark.parametrize("tier", ["0", "1"])
def test_rounds_are_counted_once_with_the_plugin(start_shim: StartShim, profiler: int, tier: str) -> None:
    process = start_shim(profiler, PACELINE_NCCL_TIER=tier, PACELINE_NCCL_BUDGET_PERCENT="100")
    process.all("init 0 4 2 1")
    for _ in range(5):
        process.all(
            "allreduce 0 100 7 0", "groupstart", "allgather 0 10 7", "reducescatter 0 20 7 0", "groupend"
        )
    snapshot = process.read()
    assert len(snapshot.frames) == 1
    frame = snapshot.frames[0]
    assert frame["sources"] == (BOTH if profiler else Source.NCCL_SHIM)
    seen = bool(profiler) and tier == "1"
    assert (frame["started"], frame["completed"]) == (15, 15 if seen else 13)
    assert bool(frame["flags"] & FrameFlag.COMPLETION_UNOBSERVABLE) == (not seen)
    assert (int(frame["context"]) != 0) == bool(profiler)
    process.all("destroy 0")
    assert process.frame()["flags"] & FrameFlag.CLOSED
    assert process.end() == 0


def test_kernels_that_run_keep_the_round_open(start_shim: StartShim) -> None:
    process = start_shim(5, PACELINE_NCCL_TIER="1", PACELINE_NCCL_BUDGET_PERCENT="100")
    process.all(
        "init 0 4 2 1", "allreduce 0 100 7 0", "kernels 1", "allreduce 0 100 7 0", "allreduce 0 100 7 0"
    )
    frame = process.frame()
    assert (frame["completed"], frame["head_round"], frame["round"]) == (1, 2, 3)
    process.all("kernels 0")
    assert process.frame()["completed"] == 3


@pytest.mark.parametrize("profiler", [0, 4, 5])
def test_a_group_of_messages_to_all_is_one_round(start_shim: StartShim, profiler: int) -> None:
    process = start_shim(profiler)
    process.all("init 0 4 2 1", "groupstart")
    for peer in range(4):
        process.all(f"send 0 25 7 {peer}", f"recv 0 25 7 {peer}")
    assert process.frame()["started"] == 0, "nothing is launched before the group ends"
    process.all("groupend")
    frame = process.frame()
    assert (frame["started"], frame["p2p_started"]) == (1, 0)
    assert rounds(process) == [(1, Function.ALL_TO_ALL, 100, 0, -1)]


@pytest.mark.parametrize("profiler", [0, 4, 5])
def test_messages_are_numbered_by_peer(start_shim: StartShim, profiler: int) -> None:
    process = start_shim(profiler)
    process.all("init 0 4 2 1", "send 0 10 7 3")
    process.all("groupstart", "send 0 20 7 3", "send 0 30 7 1", "recv 0 40 7 1", "groupend")
    frame = process.frame()
    assert (frame["started"], frame["p2p_started"]) == (0, 4)
    peers = process.detail().peers
    used = [row for row in peers if row["posted"].any()]
    posted = {int(row["peer"]): tuple(int(count) for count in row["posted"]) for row in used}
    assert posted == {3: (2, 0), 1: (1, 1)}


def test_a_group_inside_a_group_ends_with_the_outermost(start_shim: StartShim) -> None:
    process = start_shim()
    process.all("init 0 4 2 1", "groupstart", "groupstart", "allreduce 0 1 7 0", "groupend")
    assert (process.frame()["started"], process.frame()["enqueued"]) == (1, 0)
    process.all("groupend")
    assert process.frame()["enqueued"] == 1


def test_a_group_that_fails_leaves_failed_rounds(start_shim: StartShim) -> None:
    process = start_shim()
    process.all("init 0 4 2 1", "groupstart", "allreduce 0 1 7 0", "answer 3")
    assert process.call("groupend") == 3
    assert (process.frame()["completed"], process.frame()["state"]) == (1, OpState.FAILED)
    process.all("answer 0", "allreduce 0 1 7 0")
    assert process.frame()["started"] == 2


def test_a_communicator_of_a_split_is_that_of_the_plugin(start_shim: StartShim) -> None:
    process = start_shim(5)
    process.all("init 0 8 2 1", "split 0 1 0 0", "split 0 2 -1 0", "shrink 0 3 7")
    process.all("allreduce 1 8 7 0", "allreduce 3 8 7 0", "allreduce 3 8 7 0")
    frames = process.read().frames
    assert [int(f["nranks"]) for f in frames] == [8, 4, 7]
    assert [int(f["started"]) for f in frames] == [0, 1, 2]
    assert [int(f["sources"]) for f in frames] == [BOTH] * 3


@pytest.mark.parametrize("call", ["grow 0 1 6 -1 -1", "grow 0 1 6 9 -1", "grow -1 1 6 9 2"])
def test_a_communicator_that_grew_is_that_of_the_plugin(start_shim: StartShim, call: str) -> None:
    """Those who were there know the parent, those who come the id: only NCCL knows what all have."""
    process = start_shim(5)
    process.all("init 0 4 2 1", call, "allreduce 1 8 7 2", "allreduce 1 8 7 2")
    grown = process.read().frames[1]
    assert (grown["nranks"], grown["comm_rank"], grown["started"]) == (6, 2, 2)
    assert grown["sources"] == BOTH, "the shim's calls and the plugin's are one count"
    assert rounds_of(process, 1)[0] == (1, Function.ALL_REDUCE, 8, ReduceOp.MAX, -1)
    process.all("destroy 1")
    assert process.read().frames[1]["flags"] & FrameFlag.CLOSED
    alone = start_shim()
    alone.all("init 0 4 2 1", call, "allreduce 1 8 7 2")
    assert len(alone.read().frames) == 1, "without the plugin it is nobody's"


@pytest.mark.parametrize(
    ("call", "words", "asked"),
    [
        ("grow 0 1 6 -1 -1", b"ncclCommGrow to 6 ranks", "async 0"),
        ("grow -1 1 6 9 5", b"ncclCommGrow rank 5 of 6", "async 1"),
    ],
)
def test_growing_is_an_initialisation_that_is_waited_for(
    start_shim: StartShim, call: str, words: bytes, asked: str
) -> None:
    process = start_shim(5)
    process.all("init 0 4 2 1", "answer 7")
    assert process.call(call) == 7
    process.all("answer 0", "state 7")
    assert process.call(asked) == 7
    waits = process.read().process
    assert waits["host_wait"] == HostWait.BOOTSTRAP
    assert bytes(waits["host_wait_name"]).rstrip(b"\0") == words
    process.all("state 0", asked, "allreduce 1 8 7 0")
    assert process.read().process["host_wait"] == HostWait.NONE
    assert process.read().frames[1]["started"] == 1


def test_all_devices_of_one_process(start_shim: StartShim) -> None:
    process = start_shim(4)
    process.all("all 0 3", "groupstart", *(f"allreduce {i} 8 7 0" for i in range(3)), "groupend")
    frames = process.read().frames
    assert sorted(int(f["comm_rank"]) for f in frames) == [0, 1, 2]
    assert [int(f["started"]) for f in frames] == [1, 1, 1]
    assert len({int(f["comm"]) for f in frames}) == 1


def test_an_initialisation_that_goes_on_behind_the_call(start_shim: StartShim) -> None:
    process = start_shim()
    process.all("answer 7")
    assert process.call("config 0 4 2 1") == 7
    assert process.read().process["host_wait"] == HostWait.BOOTSTRAP
    process.all("answer 0", "state 7")
    assert process.call("async 0") == 7
    assert process.read().process["host_wait"] == HostWait.BOOTSTRAP
    process.all("state 0", "async 0", "allreduce 0 8 7 0")
    assert process.read().process["host_wait"] == HostWait.NONE
    assert process.frame()["started"] == 1


def test_an_initialisation_in_a_group_ends_with_it(start_shim: StartShim) -> None:
    process = start_shim(5)
    process.all("groupstart", "init 0 4 2 1")
    snapshot = process.read()
    assert snapshot.process["host_wait"] == HostWait.BOOTSTRAP
    assert bytes(snapshot.process["host_wait_name"]).rstrip(b"\0") == b"ncclCommInitRank rank 2 of 4"
    process.all("groupend", "allreduce 0 8 7 0")
    assert process.read().process["host_wait"] == HostWait.NONE
    assert process.frame()["started"] == 1


def test_an_initialisation_that_fails_is_closed(start_shim: StartShim) -> None:
    process = start_shim()
    process.all("answer 2")
    assert process.call("init 0 4 2 1") == 2
    snapshot = process.read()
    assert snapshot.process["host_wait"] == HostWait.NONE
    assert snapshot.frames[0]["flags"] & FrameFlag.CLOSED
