"""Collectives and messages, call by call: what the frame says after each script.

Letters are those of the list of scripts that any profiler plugin has to survive.
"""

import pytest

from paceline.contracts.codes import FrameFlag, Function, OpState, Source, TransferState
from tests.unit.nccl.calls import CALLBACK, PROXY, RECV_WAIT, SEND_PEER_WAIT, SEND_WAIT, USER, Trace
from tests.unit.nccl.conftest import StartNccl

FULL = {"PACELINE_NCCL_TIER": "2", "PACELINE_NCCL_BUDGET_PERCENT": "100"}  # a script calls at full speed
UNSEEN = FrameFlag.COMPLETION_UNOBSERVABLE
UNCOUNTED = FrameFlag.COUNTS_UNOBSERVABLE


def test_a_network_operation_fills_every_field(start_nccl: StartNccl) -> None:
    process, trace = start_nccl(**FULL), Trace()
    trace.run(trace.init(rank=1), rank=1, channels=2, steps=4)
    process.make(trace)
    frame = process.frame()
    assert (frame["sources"], frame["comm_rank"], frame["nranks"], frame["nnodes"]) == (
        Source.NCCL_PROFILER,
        1,
        4,
        2,
    )
    assert frame["context"] == 0xC0FFEE
    assert (frame["round"], frame["started"], frame["enqueued"], frame["completed"]) == (1, 1, 1, 1)
    assert (frame["function"], frame["count"], frame["bytes"]) == (Function.ALL_REDUCE, 1024, 4096)
    assert (frame["algorithm"], frame["protocol"], frame["channels"], frame["nccl_seq"]) == (1, 1, 2, 1)
    assert (frame["send_count"], frame["recv_count"], frame["send_bytes"], frame["recv_bytes"]) == (
        8,
        8,
        32768,
        32768,
    )
    assert (frame["send_posted"], frame["recv_posted"], frame["proxies_open"]) == (8, 8, 0)
    assert (frame["kernels_started"], frame["kernels_done"], frame["head_round"]) == (2, 2, 0)
    assert frame["entered_ns"] < frame["enqueued_ns"] < frame["returned_ns"]
    assert frame["entered_ns"] < frame["first_kernel_ns"] < frame["last_kernel_ns"]
    assert not frame["flags"] & (UNSEEN | UNCOUNTED)
    channel = frame["channel"][1]
    assert (channel["sends"], channel["recvs"], channel["send_state"], channel["kernel_state"]) == (
        4,
        4,
        0,
        0,
    )
    edges = {(int(row["peer"]), int(row["direction"])): row for row in process.detail().edges}
    assert {key: int(row["count"]) for key, row in edges.items()} == {(2, 0): 8, (0, 1): 8}
    rounds, times = process.detail().newest()
    assert rounds["state"].tolist() == [OpState.COMPLETED]
    assert times["started_ns"][0] == frame["first_kernel_ns"]


def test_b_without_network_counts_are_unseen_and_not_zero(start_nccl: StartNccl) -> None:
    process, trace = start_nccl(**FULL), Trace()
    trace.run(trace.init(), network=False)
    process.make(trace)
    frame = process.frame()
    assert frame["completed"] == 1
    assert frame["flags"] & UNCOUNTED
    assert not frame["flags"] & UNSEEN


def test_c_tree_has_edges_to_all_its_neighbours_in_two_trees(start_nccl: StartNccl) -> None:
    process, trace = start_nccl(**FULL), Trace()
    operation = trace.enter(trace.init(nranks=8, rank=1))
    trace.launch_kernels(operation)
    trace.begin_task(operation, channels=2, algorithm="TREE", protocol="LL")
    for channel in (0, 1):
        for peer in (0, 3, 4):
            trace.append_proxy(operation, channel, peer, is_send=True)
            trace.append_proxy(operation, channel, peer, is_send=False)
    trace.end_task(operation)
    trace.begin_kernels(operation)
    trace.move(operation, 4)
    trace.end_kernels(operation)
    process.make(trace)
    edges = process.detail().edges
    found = {(int(e["peer"]), int(e["direction"]), int(e["group"])): int(e["count"]) for e in edges}
    assert found == {
        (peer, direction, group): 4 for peer in (0, 3, 4) for direction in (0, 1) for group in (1, 2)
    }
    assert process.frame()["send_count"] == 24


@pytest.mark.parametrize(
    ("is_send", "state", "shown"),
    [(True, SEND_WAIT, TransferState.SEND_WAIT), (True, SEND_PEER_WAIT, TransferState.SEND_PEER_WAIT),
     (False, RECV_WAIT, TransferState.RECV_WAIT)],
)  # fmt: skip
def test_f_g_slice_stays_in_its_state(start_nccl: StartNccl, is_send: bool, state: int, shown: int) -> None:
    process, trace = start_nccl(**FULL), Trace()
    operation = trace.enter(trace.init())
    trace.launch_kernels(operation)
    trace.begin_task(operation, channels=1)
    proxy = trace.append_proxy(operation, 0, 1 if is_send else 3, is_send)
    trace.end_task(operation)
    trace.begin_kernels(operation, 1)
    trace.step(proxy, 0, is_send)
    trace.step(proxy, 1, is_send, upto=state)
    process.make(trace)
    frame = process.frame()
    assert frame["channel"][0]["send_state" if is_send else "recv_state"] == shown
    assert frame["send_count" if is_send else "recv_count"] == 1
    assert (frame["head_round"], frame["completed"], frame["proxies_open"]) == (1, 0, 1)
    assert not frame["flags"] & (UNSEEN | UNCOUNTED)
    assert frame["send_posted"] == (0 if not is_send else 2 if state == SEND_WAIT else 1)


def test_h_entered_and_not_launched(start_nccl: StartNccl) -> None:
    process, trace = start_nccl(), Trace()
    operation = trace.enter(trace.init())
    trace.connect(operation)
    process.make(trace)
    frame = process.frame()
    assert (frame["head_round"], frame["state"], frame["enqueued_ns"]) == (1, OpState.ENTERED, 0)


def test_i_launched_and_no_kernel(start_nccl: StartNccl) -> None:
    process, trace = start_nccl(**FULL), Trace()
    operation = trace.enter(trace.init())
    trace.launch_kernels(operation)
    trace.begin_task(operation)
    trace.end_task(operation)
    process.make(trace)
    frame = process.frame()
    assert (frame["head_round"], frame["state"], frame["kernels_started"]) == (1, OpState.STARTED, 0)
    assert 0 < frame["enqueued_ns"] <= frame["returned_ns"]
    assert not frame["flags"] & UNSEEN


def test_j_operation_of_another_process_is_counted_and_not_touched(start_nccl: StartNccl) -> None:
    process, trace = start_nccl(**FULL), Trace()
    trace.run(trace.init())
    foreign = trace.start(
        PROXY, "raw:0xdead0000", "ProxyOp", 0, pid=1, channel=0, peer=1, steps=4, chunk=1, is_send=1
    )  # fmt: skip
    trace.calls[-1]["parent"] = "raw:0xdead1000"
    trace.start(PROXY, "raw:0xdead0000", "ProxyStep", foreign, step=0)
    trace.start(PROXY, "raw:0xdead0000", "NetPlugin", 0)
    process.make(trace)
    assert process.is_null(foreign)
    snapshot = process.read()
    assert snapshot.process["nccl_foreign"] == 1
    assert snapshot.frames[0]["send_count"] == 8


def test_k_receive_started_a_thousand_times_is_one(start_nccl: StartNccl) -> None:
    process, trace = start_nccl(**FULL), Trace()
    operation = trace.enter(trace.init())
    trace.begin_task(operation, channels=1)
    proxy = trace.append_proxy(operation, 0, 3, is_send=False)
    step = trace.start(PROXY, 0, "ProxyStep", proxy, step=0)
    for _ in range(999):
        trace.restart(PROXY, step, 0, "ProxyStep", proxy, step=0)
    for state, size in ((RECV_WAIT, 0), (11, 512), (12, 0)):
        trace.record(PROXY, step, state, size)
    trace.stop(PROXY, step)
    process.make(trace)
    frame = process.frame()
    assert (frame["recv_count"], frame["recv_posted"], frame["recv_bytes"]) == (1, 1, 512)


def test_l_repeated_wait_for_credit_counts_once(start_nccl: StartNccl) -> None:
    process, trace = start_nccl(**FULL), Trace()
    operation = trace.enter(trace.init())
    trace.begin_task(operation, channels=1)
    proxy = trace.append_proxy(operation, 0, 1, is_send=True, steps=1)
    step = trace.start(PROXY, 0, "ProxyStep", proxy, step=0)
    for state in (8, *[SEND_PEER_WAIT] * 50, SEND_WAIT, SEND_WAIT):
        trace.record(PROXY, step, state, 256)
    trace.stop(PROXY, step)
    trace.stop(PROXY, step)
    process.make(trace)
    frame = process.frame()
    assert (frame["send_count"], frame["send_posted"], frame["send_bytes"]) == (1, 1, 256)
    assert frame["send_wait_ns"][0] > 0
    assert process.detail().edges["wait_ns"][0] == frame["send_wait_ns"][0]


def test_m_replays_of_a_graph_are_counted_beside_the_rounds(start_nccl: StartNccl) -> None:
    process, trace = start_nccl(**FULL), Trace()
    context = trace.init()
    trace.run(context)
    captured = trace.enter(context, captured=True)
    trace.launch_kernels(captured)
    trace.stop(USER, captured.group)
    process.make(trace)
    assert process.frame()["started"] == 1
    assert not process.mask & 64  # kernel events would add host nodes to the graph
    for _ in range(100):
        captured.mask = trace.sample(CALLBACK)
        captured.tasks.clear()
        captured.group = 0
        trace.begin_task(captured, thread=CALLBACK)
        trace.append_proxy(captured, 0, 1, is_send=True, thread=CALLBACK)
        trace.end_task(captured, thread=CALLBACK)
        trace.move(captured)
    trace.run(context)
    process.make(trace)
    snapshot = process.read()
    assert snapshot.process["nccl_replays"] == 100
    assert (snapshot.frames[0]["started"], snapshot.frames[0]["completed"]) == (2, 1)
    assert snapshot.frames[0]["send_count"] == 16 + 400
    assert snapshot.process["nccl_dropped"] == 0


def test_n_eight_slices_in_flight_stop_out_of_order_across_channels(start_nccl: StartNccl) -> None:
    process, trace = start_nccl(**FULL), Trace()
    operation = trace.enter(trace.init())
    trace.begin_task(operation, channels=2)
    trace.ring(operation, 0, 4, channels=2, steps=16)
    steps = [
        (number, trace.step(proxy, number, is_send, upto=SEND_WAIT if is_send else 12))
        for number in range(8)
        for (_, _, is_send), proxy in operation.proxies.items()
    ]
    for _, step in sorted(steps, key=lambda pair: (pair[1] % 4, pair[0])):
        trace.stop(PROXY, step)
    process.make(trace)
    frame = process.frame()
    assert (frame["send_count"], frame["recv_count"]) == (16, 16)
    assert frame["channel"]["sends"][:2].tolist() == [8, 8]


def test_o_null_parents_names_functions_and_arguments(start_nccl: StartNccl) -> None:
    process, trace = start_nccl(**FULL), Trace()
    context = trace.init(name=None, log=False)
    group = trace.start(USER, context, "GroupApi", 0, captured=False, depth=1)
    trace.record(USER, group, 23)
    trace.record(USER, group, 24)
    call = trace.start(
        USER, context, "CollApi", 0, function=None, count=0, dtype=None, root=-5, stream=0, captured=False
    )  # fmt: skip
    trace.stop(USER, call)
    trace.stop(USER, call)
    trace.stop(USER, group)
    task = trace.start(
        USER, context, "Coll", 0, sequence=0, function=None, count=0, root=0, dtype=None, channels=255,
        warps=0, algorithm=None, protocol=None, parent_group=0,
    )  # fmt: skip
    process.make(trace)  # nobody holds a task without a call, so its kernel must come before its stop
    kernel = trace.start(USER, context, "KernelCh", task, channel=200, gpu_ns=0)
    trace.record(USER, kernel, 22)
    trace.stop(USER, kernel)
    trace.stop(USER, task)
    trace.stop(USER, trace.start(USER, 0, "CollApi", 0))
    process.make(trace)
    frame = process.frame()
    assert (frame["started"], frame["head_round"], frame["function"]) == (1, 1, Function.UNKNOWN)
    assert frame["kernels_done"] == 1


def test_u_version_four_has_no_calls_and_takes_tasks_for_them(start_nccl: StartNccl) -> None:
    process, trace = start_nccl(4, HARNESS_NCCL_VERSION="22705", **FULL), Trace(4)
    context = trace.init(rank=2)
    for _ in range(3):
        trace.run(context, rank=2)
    messages = trace.messages(context, ("Send", 3, 10), ("Recv", 1, 10))
    trace.begin_messages(messages)
    trace.end_task(messages)
    process.make(trace)
    assert process.loaded == "loaded 4 Paceline"
    frame = process.frame()
    assert (frame["started"], frame["completed"], frame["algorithm"], frame["send_count"]) == (3, 3, 1, 24)
    assert frame["p2p_started"] == 2
    assert frame["function"] == Function.RECV
    peers = {int(row["peer"]): row["posted"].tolist() for row in process.detail().peers}
    assert peers == {3: [1, 0], 1: [0, 1]}
    assert not process.mask & 64  # kernels and all-to-all crash 2.27


def test_w_all_to_all_of_messages_is_one_round(start_nccl: StartNccl) -> None:
    process, trace = start_nccl(**FULL), Trace()
    context = trace.init()
    pairs = [(name, peer, 256) for peer in range(4) for name in ("Send", "Recv")]
    operation = trace.messages(context, *pairs)
    trace.launch_kernels(operation)
    process.make(trace)
    frame = process.frame()
    assert (frame["function"], frame["head_round"], frame["count"]) == (Function.ALL_TO_ALL, 1, 1024)
    trace.begin_messages(operation, channels=1)
    trace.end_task(operation)
    trace.begin_kernels(operation, 1)
    process.make(trace)
    assert process.frame()["completed"] == 0
    trace.end_kernels(operation)
    process.make(trace)
    frame = process.frame()
    assert (frame["started"], frame["completed"], frame["p2p_started"]) == (1, 1, 0)


def test_two_ranks_exchange_all_to_all_only_if_nccl_says_so(start_nccl: StartNccl) -> None:
    process, trace = start_nccl(), Trace()
    context = trace.init(nranks=2)
    pairs = [(name, peer, 256) for peer in range(2) for name in ("Send", "Recv")]
    for name in (None, "AlltoAll"):
        operation = trace.messages(context, *pairs, name=name)
        trace.launch_kernels(operation)
        trace.begin_messages(operation)
        trace.end_task(operation)
    process.make(trace)
    frame = process.frame()
    assert (frame["p2p_started"], frame["round"], frame["function"]) == (4, 1, Function.ALL_TO_ALL)


@pytest.mark.parametrize(
    "pairs",
    [
        [("Send", 1, 10), ("Recv", 3, 10)],
        [
            (name, peer, 10 + peer) for peer in range(4) for name in ("Send", "Recv")
        ],  # uneven: nobody can agree
        [(name, peer, 10) for peer in range(3) for name in ("Send", "Recv")],
    ],
)
def test_other_groups_of_messages_stay_messages(
    start_nccl: StartNccl, pairs: list[tuple[str, int, int]]
) -> None:
    process, trace = start_nccl(), Trace()
    operation = trace.messages(trace.init(), *pairs)
    trace.launch_kernels(operation)
    trace.begin_messages(operation)
    trace.end_task(operation)
    process.make(trace)
    frame = process.frame()
    assert (frame["round"], frame["p2p_started"], frame["open_ops"]) == (0, len(pairs), len(pairs))


def test_message_that_hangs_is_the_head_of_its_pair(start_nccl: StartNccl) -> None:
    process, trace = start_nccl(**FULL), Trace()
    operation = trace.messages(trace.init(), ("Send", 1, 10), ("Recv", 3, 10))
    trace.launch_kernels(operation)
    trace.begin_messages(operation)
    trace.end_task(operation)
    trace.begin_kernels(operation, 1)
    trace.stop("profiler", operation.kernels[0][0])
    process.make(trace)
    rows = {int(row["peer"]): row for row in process.detail().peers}
    assert rows[1]["completed"].tolist() == [1, 0]
    assert rows[3]["head_seq"].tolist() == [0, 1]


def test_end_of_a_later_group_ends_what_was_before(start_nccl: StartNccl) -> None:
    process, trace = start_nccl(**FULL), Trace()
    context = trace.init()
    lost = trace.enter(context)
    trace.launch_kernels(lost)
    trace.begin_task(lost)
    trace.end_task(lost)  # its kernel events were lost: the ring behind them has 64 places
    process.make(trace)
    assert process.frame()["completed"] == 0
    trace.run(context)
    process.make(trace)
    assert process.frame()["completed"] == 2


def test_without_kernel_events_the_newest_call_stays_open(start_nccl: StartNccl) -> None:
    process, trace = start_nccl(), Trace()
    context = trace.init()
    for _ in range(3):
        trace.run(context)
    process.make(trace)
    frame = process.frame()
    assert (frame["round"], frame["completed"], frame["head_round"], frame["open_ops"]) == (3, 2, 3, 1)
    assert (frame["state"], frame["flags"] & UNSEEN) == (OpState.STARTED, UNSEEN)
    trace.finalize(context)
    process.make(trace)
    frame = process.frame()
    assert (frame["completed"], frame["open_ops"]) == (3, 0)


def test_unseen_end_is_flagged_until_an_end_is_seen(start_nccl: StartNccl) -> None:
    process, trace = start_nccl(**FULL), Trace()
    context = trace.init()
    trace.run(context)
    symmetric = trace.enter(context)  # no task follows: a symmetric kernel
    trace.launch_kernels(symmetric)
    trace.stop(USER, symmetric.group)
    process.make(trace)
    frame = process.frame()
    assert (frame["completed"], frame["head_round"], bool(frame["flags"] & UNSEEN)) == (1, 2, True)
    stuck = trace.enter(context)
    trace.launch_kernels(stuck)
    trace.begin_task(stuck)
    trace.end_task(stuck)
    trace.begin_kernels(stuck)
    behind = trace.enter(context)
    trace.launch_kernels(behind)
    trace.stop(USER, behind.group)
    process.make(trace)
    frame = process.frame()
    assert (frame["head_round"], frame["completed"], bool(frame["flags"] & UNSEEN)) == (3, 2, False)
