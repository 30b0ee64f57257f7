"""The scripts of the golden traces: what NCCL's sources say that it does, in their order."""

from collections.abc import Callable

from tests.unit.nccl.calls import CALLBACK, RECV_WAIT, SEND_WAIT, USER, Trace


def ring_all_reduce(version: int) -> Trace:
    """Over the network, without, and a broadcast, on rank 1 of 4."""
    trace = Trace(version)
    context = trace.init(rank=1)
    trace.run(context, rank=1)
    trace.run(context, network=False, function="ReduceScatter", dtype="ncclBfloat16")
    trace.run(context, rank=1, channels=1, function="Broadcast", root=2)
    return trace


def messages(version: int) -> Trace:
    """A send to the next stage and a receive from the one before, both over the network."""
    trace = Trace(version)
    context = trace.init(rank=1)
    group = trace.messages(context, ("Send", 2, 100), ("Recv", 0, 100))
    trace.launch_kernels(group)
    trace.begin_messages(group)
    tasks = group.tasks
    for task, peer, is_send in ((tasks[0], 2, True), (tasks[1], 0, False)):
        group.tasks = [task]
        trace.append_proxy(group, 0, peer, is_send, steps=2)
    group.tasks = tasks
    trace.end_task(group)
    trace.begin_kernels(group, 1)
    trace.move(group, 2)
    trace.end_kernels(group)
    return trace


def captured_graph(version: int) -> Trace:
    """An operation, a captured one that is replayed three times by CUDA's own thread, and one more."""
    trace = Trace(version)
    context = trace.init()
    trace.run(context, channels=1, steps=2)
    captured = trace.enter(context, captured=True)
    trace.launch_kernels(captured)
    trace.stop(USER, captured.group)
    for _ in range(3):
        captured.tasks.clear()
        captured.group = 0
        trace.begin_task(captured, channels=1, thread=CALLBACK)
        trace.append_proxy(captured, 0, 1, is_send=True, thread=CALLBACK)
        trace.end_task(captured, thread=CALLBACK)
        trace.move(captured)
    trace.run(context, channels=1, steps=2)
    return trace


def hung_operation(version: int) -> Trace:
    """The second operation stands still: what was sent as fourth slice never leaves, and nothing comes."""
    trace = Trace(version)
    context = trace.init(rank=1)
    trace.run(context, rank=1, channels=1)
    stuck = trace.enter(context)
    trace.launch_kernels(stuck)
    trace.begin_task(stuck, channels=1)
    trace.ring(stuck, 1, 4, channels=1, steps=8)
    trace.end_task(stuck)
    trace.begin_kernels(stuck, 1)
    send, receive = stuck.proxies[0, 2, True], stuck.proxies[0, 0, False]
    for step in range(3):
        trace.step(send, step, is_send=True)
        trace.step(receive, step, is_send=False)
    trace.step(send, 3, is_send=True, upto=SEND_WAIT)
    trace.step(receive, 3, is_send=False, upto=RECV_WAIT)
    return trace


# By name of the files: the version of the interface, and the script.
SCRIPTS: dict[str, tuple[int, Callable[[int], Trace]]] = {
    "ring-all-reduce-v5": (5, ring_all_reduce),
    "ring-all-reduce-v4": (4, ring_all_reduce),
    "messages-v5": (5, messages),
    "captured-graph-v5": (5, captured_graph),
    "hung-operation-v5": (5, hung_operation),
}
