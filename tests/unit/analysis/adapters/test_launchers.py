"""Ends of processes as launchers, schedulers and coordinators report them."""

from pathlib import Path

import pytest

from paceline.analysis.facts import (
    HostKill,
    NetworkFailure,
    NetworkKind,
    PhaseSeen,
    ProcessEnd,
    ProcessFault,
    SettingSeen,
)
from tests.unit.analysis.adapters.reading_lines import facts_of, of_type


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("srun: error: node-a: task 3: Killed", [(3, "node-a", None, 9)]),
        ("srun: error: node-a: task 3: Exited with exit code 1", [(3, "node-a", 1, None)]),
        ("srun: error: node-a: task 3: Segmentation fault (core dumped)", [(3, "node-a", None, 11)]),
        ("srun: error: node-[1-2]: tasks 0-1,5: Aborted", [(rank, "", None, 6) for rank in (0, 1, 5)]),
        ("srun: error: Node failure on node-3", [(None, "node-3", None, 9)]),
        (
            "slurmstepd: error: *** STEP 12.0 ON node-1 CANCELLED AT 2026-01-01T10:00:00 DUE TO TIME LIMIT "
            "***",
            [(None, "", None, 15)],
        ),
    ],
)
def test_slurm(
    tmp_path: Path, line: str, expected: list[tuple[int | None, str, int | None, int | None]]
) -> None:
    ends = of_type(facts_of(tmp_path, line + "\n"), ProcessEnd)
    assert [(end.speaker.rank, end.speaker.host, end.exit_code, end.signal) for end in ends] == expected


@pytest.mark.parametrize(
    "line",
    [
        "slurmstepd: error: Detected 1 oom_kill event in StepId=12.0. Some of the step tasks have been OOM "
        "Killed.",
        "srun: error: node-a: task 3: Out Of Memory",
        "train-worker-3   0/1     OOMKilled   0          5m",
        "      Reason:       OOMKilled",
        "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.",
        "[111.0] Memory cgroup out of memory: Killed process 733 (python) total-vm:9kB",
        "[111.0] oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),task=python,pid=733,uid=0",
    ],
)
def test_host_memory(tmp_path: Path, line: str) -> None:
    assert of_type(facts_of(tmp_path, line + "\n"), HostKill)


def test_a_pod_that_is_described(tmp_path: Path) -> None:
    text = (
        "Name:             train-worker-3\nNamespace:        default\nNode:             node-b/10.0.0.2\n"
        "    Last State:     Terminated\n      Reason:       Error\n      Exit Code:    137\n"
    )
    (end,) = of_type(facts_of(tmp_path, text), ProcessEnd)
    assert (end.exit_code, end.signal, end.speaker.host, end.speaker.rank) == (137, 9, "node-b", None)
    assert "train-worker-3" in end.text


@pytest.mark.parametrize(
    "line",
    [
        "train-worker-3   0/1     Evicted   0          5m",
        "3m   Warning   Evicted   pod/train-worker-3   The node was low on resource: memory.",
        "2m   Normal    NodeNotReady   node/node-b   Node node-b status is now: NodeNotReady",
    ],
)
def test_pods_that_are_put_out(tmp_path: Path, line: str) -> None:
    assert [end.signal for end in of_type(facts_of(tmp_path, line + "\n"), ProcessEnd)] == [9]


def test_ray_actor_with_its_process(tmp_path: Path) -> None:
    text = (
        "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.\n"
        "\tclass_name: Worker\n\tactor_id: abc\n\tpid: 744\n\tname: w\n\tip: 10.0.59.27\n"
    )
    end = of_type(facts_of(tmp_path, text), ProcessEnd)[0]
    assert (end.speaker.pid, end.speaker.host) == (744, "10.0.59.27")


@pytest.mark.parametrize(
    "line",
    [
        "[INFO] 2020-11-16 05:37:30,257 api: [default] All workers successfully finished.",
        "I0101 10:00:00 api.py:892] [default] worker group successfully finished. Waiting 300 seconds",
    ],
)
def test_workers_that_finished(tmp_path: Path, line: str) -> None:
    (end,) = of_type(facts_of(tmp_path, line + "\n"), ProcessEnd)
    assert end.clean


def test_process_groups_that_are_taken_down(tmp_path: Path) -> None:
    text = "[rank1]:[I ProcessGroupNCCL.cpp] Launching destroy_process_group\n"
    (phase,) = of_type(facts_of(tmp_path, text), PhaseSeen)
    assert (phase.speaker.rank, phase.ended) == (1, False)
    frame = '  File "distributed_c10d.py", line 3, in destroy_process_group\n'
    assert not of_type(facts_of(tmp_path, frame), PhaseSeen)


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        ("task 0: starting coordination service on 10.0.0.1:47647", "endpoint_served", "10.0.0.1:47647"),
        ("Starting JAX distributed service on 10.0.0.1:1234", "endpoint_served", "10.0.0.1:1234"),
        ("TCPStore server listening on 10.0.0.1:29500", "endpoint_served", "10.0.0.1:29500"),
        ("task 3: connecting to coordinator 10.0.0.1:27055", "endpoint_used", "10.0.0.1:27055"),
        ("Connecting to JAX distributed service on 10.0.0.1:1234", "endpoint_used", "10.0.0.1:1234"),
        ("  rdzv_endpoint    : head-0:29400", "endpoint_used", "head-0:29400"),
        ("init_method=tcp://10.0.0.1:29500 world_size=8", "endpoint_used", "10.0.0.1:29500"),
    ],
)
def test_endpoints_of_both_sides(tmp_path: Path, line: str, name: str, value: str) -> None:
    settings = of_type(facts_of(tmp_path, line + "\n"), SettingSeen)
    assert [(one.name, one.value) for one in settings] == [(name, value)]


def test_a_server_on_every_address_serves_no_named_endpoint(tmp_path: Path) -> None:
    line = "[I socket.cpp:480] [c10d] TCPStore server started to listen on [::]:29500\n"
    assert not of_type(facts_of(tmp_path, line), SettingSeen)


@pytest.mark.parametrize(
    ("line", "kind", "peer"),
    [
        ("torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 1/2 clients "
            "joined.", "rendezvous", ""),
        (
            "[W socket.cpp:601] [c10d] The client socket has failed to connect to [10.0.0.1]:29500 (errno: "
            "111).",
            "rendezvous",
            "10.0.0.1:29500",
        ),
        (
            "[E socket.cpp:957] [c10d] The client socket has timed out after 600s while trying to connect "
            "to (head, 29500).",
            "rendezvous",
            "head:29500",
        ),
        ("RuntimeError: wait timeout after 600000ms, keys: /default_pg/0//cuda//0", "timeout", ""),
        ("[c10d] recvValueWithTimeout failed on SocketImpl(fd=3): Connection was likely closed.", "closed",
        ""),
    ],
)  # fmt: skip
def test_stores(tmp_path: Path, line: str, kind: str, peer: str) -> None:
    failures = of_type(facts_of(tmp_path, line + "\n"), NetworkFailure)
    assert [(one.kind, one.peer) for one in failures] == [(NetworkKind(kind), peer)]


def test_a_traceback_is_one_fault_with_its_frames(tmp_path: Path) -> None:
    text = (
        "[rank1]: Traceback (most recent call last):\n"
        '[rank1]:   File "train.py", line 88, in step\n[rank1]: ValueError: bad sample\n'
    )
    (fault,) = of_type(facts_of(tmp_path, text), ProcessFault)
    assert (fault.exception, fault.frames, fault.speaker.rank) == ("ValueError", ("train.py:88 step",), 1)
