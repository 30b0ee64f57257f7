"""What operators' tools write: straggler reports, stalled tensors, lost peers, limits, pods, endpoints."""

from pathlib import Path

import pytest

from paceline.analysis.facts import (
    BarrierReport,
    ProcessEnd,
    ProcessFault,
    ProcessFaultKind,
    SampleRow,
    SettingSeen,
    StackSeen,
)
from tests.unit.analysis.adapters.reading_lines import facts_of, of_type


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("^^^^ Bottom 2 Ranks with lowest  Etpt(TF): 271.30/12, 329.01/4", [(12, 271.3), (4, 329.01)]),
        ("MnEtpt/Rnk: 271.30TF/12 | MxEtpt/Rnk: 331.00TF/4", [(12, 271.3), (4, 331.0)]),
        ("      Rank=9 Node=dgx-1 Score=0.69", [(9, 0.69)]),
        ("Score=0.69 of something", []),
    ],
)
def test_scores(tmp_path: Path, line: str, expected: list[tuple[int, float]]) -> None:
    rows = [row for row in of_type(facts_of(tmp_path, line + "\n"), SampleRow) if "score" in row.numbers]
    assert [(row.speaker.rank, row.numbers["score"]) for row in rows] == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Stalled ops:\nallreduce.fc.bias [missing ranks: 5, 3]\n", [((3, 5), ())]),
        ("allreduce.a [ready ranks: 2, 0, 1], allreduce.b [ready ranks: 3]\n", [((), (0, 1, 2)), ((), (3,))]),
        ("Missing ranks:\n5: [allreduce.a, allreduce.b]\nand then\n", [((5,), ())]),
        ("no ranks: here\n", []),
    ],
)
def test_tensors_of_some_ranks(
    tmp_path: Path, text: str, expected: list[tuple[tuple[int, ...], tuple[int, ...]]]
) -> None:
    found = of_type(facts_of(tmp_path, text), BarrierReport)
    assert [(report.missing, report.ready) for report in found] == expected


def test_lost_peers(tmp_path: Path) -> None:
    text = (
        "ORTE has lost communication with a remote daemon.\n\n  HNP daemon   : [[1,0],0] on node h0\n"
        "  Remote daemon: [[1,0],5] on node h5\n"
        "The following tasks are unhealthy (stopped sending heartbeats):\n/job:w/replica:0/task:11\nThe end\n"
    )
    ends = of_type(facts_of(tmp_path, text), ProcessEnd)
    assert [(end.speaker.host, end.speaker.rank, end.node_lost) for end in ends] == [
        ("h5", None, True),
        ("", 11, False),
    ]


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        ("a:1:2 [0] NCCL WARN Error while creating shared memory segment /dev/shm/nccl-x (size 3), error: "
         "No space left on device (28)", "resource_out", "shared memory"),
        ("a:1:2 [0] NCCL WARN Call to ibv_reg_mr failed with error Cannot allocate memory", "resource_out",
         "locked memory"),
        ("ft-worker-2      0/1     ImagePullBackOff   0          12m", "pod_not_started",
         "ft-worker-2 ImagePullBackOff"),
        ("MASTER_ADDR=10.0.0.7 MASTER_PORT=29500", "master", "10.0.0.7:29500"),
        ("[W socket.cpp:460] [c10d] The IPv6 network addresses of (head-0, 29400) cannot be retrieved",
         "name_unresolved", "head-0"),
        ("DistNetworkError: failed to listen on any local network address. port: 29500, name: EADDRINUSE",
         "port_in_use", "29500"),
        ("a:1:2 [0] NCCL INFO Bootstrap : Using docker0:172.17.0.1<0>", "own_interface",
         "docker0:172.17.0.1"),
    ],
)  # fmt: skip
def test_settings(tmp_path: Path, line: str, name: str, value: str) -> None:
    found = [
        fact.value for fact in of_type(facts_of(tmp_path, line + "\n"), SettingSeen) if fact.name == name
    ]
    assert found == [value]


def test_a_ready_pod_is_no_fact(tmp_path: Path) -> None:
    assert facts_of(tmp_path, "ft-worker-2      1/1     Running   0          12m\n") == []


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("CUDA error: operation not permitted when stream is capturing", ProcessFaultKind.EXCEPTION),
        ("CUDA error: unspecified launch failure", ProcessFaultKind.CUDA_OTHER),
    ],
)
def test_errors_of_the_program_are_no_errors_of_the_device(
    tmp_path: Path, text: str, kind: ProcessFaultKind
) -> None:
    (fault,) = of_type(facts_of(tmp_path, f"RuntimeError: {text}\n"), ProcessFault)
    assert fault.kind is kind


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ("step 12 | loss 2.1 | data 0.010s | fwd 231ms | comm 0.051s",
         {"step": 12, "data_s": 0.01, "forward_s": 0.231, "collective_s": 0.051}),
        ("Epoch: [1][40/5005]  Time 8.719 (0.361)  Data 8.597 (0.230)  Loss 1.2",
         {"step": 40, "step_s": 8.719, "data_s": 8.597}),
        ("step 12 loss 2.1 time 0.5", {}),
    ],
)  # fmt: skip
def test_parts_of_a_step(tmp_path: Path, line: str, parts: dict[str, float]) -> None:
    rows = of_type(facts_of(tmp_path, line + "\n"), SampleRow)
    assert [row.numbers for row in rows] == ([pytest.approx(parts)] if parts else [])


@pytest.mark.parametrize(
    ("line", "ends"),
    [
        ("ib2 <-> ib5 : 96.2 Gb/s", ("ib2", "ib5", 96.2e9)),
        ("h1 -> h2 24.1 GB/s", ("h1", "h2", 24.1e9)),
        ("h1 to h2: bw=900 MB/s", ("h1", "h2", 900e6)),
        ("moved from a -> b in 3 s", None),
        ("x -> x 24.1 GB/s", None),
    ],
)
def test_rates_of_pairs(tmp_path: Path, line: str, ends: tuple[str, str, float] | None) -> None:
    rows = of_type(facts_of(tmp_path, line + "\n"), SampleRow)
    found = [(row.words["src"], row.words["dst"], row.numbers["bandwidth"]) for row in rows]
    assert found == ([ends] if ends else [])


def test_metrics_in_text(tmp_path: Path) -> None:
    text = (
        "# TYPE train_compute_seconds gauge\n"
        'train_compute_seconds{rank="3",host="p0"} 0.51 1749722400000\n'
        'DCGM_FI_DEV_SM_CLOCK{gpu="2",Hostname="n1"} 1185\n'
        'process_open_fds{rank="3"} 12\n'
    )
    rows = of_type(facts_of(tmp_path, text), SampleRow)
    assert [(row.kind, row.speaker.rank, row.speaker.host) for row in rows] == [
        ("steps", 3, "p0"),
        ("telemetry", None, "n1"),
    ]
    assert rows[0].numbers["own_s"] == pytest.approx(0.51)
    assert rows[1].numbers["sm_clock_mhz"] == 1185


@pytest.mark.parametrize(
    "row",
    [
        '{"step": 4, "compute_ms_per_rank": [10, 11.5]}',
        '{"step": 4, "compute_ms": {"0": 10, "1": 11.5}}',
        '{"step": 4, "compute_ms": {"rank0": 10, "rank1": 11.5}}',
    ],
)
def test_values_of_all_ranks_in_one_row(tmp_path: Path, row: str) -> None:
    rows = of_type(facts_of(tmp_path, row + "\n" + row + "\n"), SampleRow)
    assert [(one.speaker.rank, one.numbers["step"]) for one in rows] == [(0, 4), (1, 4)] * 2
    assert [one.numbers["own_s"] for one in rows[:2]] == pytest.approx([0.01, 0.0115])


def test_the_table_of_nvidia_smi(tmp_path: Path) -> None:
    text = (
        "|   5  NVIDIA H100 80GB HBM3          On  |   00000000:45:00.0 Off |                    0 |\n"
        "| N/A   31C    P0              71W /  700W |   46103MiB /  81559MiB |      0%      Default |\n"
    )
    (row,) = of_type(facts_of(tmp_path, text), SampleRow)
    assert (row.speaker.gpu, row.speaker.local_rank) == ("0000:45:00", 5)
    assert (row.numbers["sm_util"], row.numbers["power_w"], row.numbers["memory_used"]) == (0, 71, 46103)


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        ("[rank8]: env: torch=2.5.1+cu121 host=v1", "library", "torch 2.5.1+cu121"),
        ("q0:1:2 [0] NCCL INFO NCCL_IB_TC set by environment to 106.", "nccl_env", "NCCL_IB_TC=106"),
        ("Jun 12 14:00:08 k1 kernel: [8.3] mlx5_core 0000:3b:00.0 eth2: Link down", "link_down", "eth2"),
        ("Jun 12 14:00:09 k1 kernel: bond0: (slave eth2): link status definitely down, disabling slave",
         "link_down", "eth2"),
        ("srun: error: Task launch for StepId=9.0 failed on node g-12: Communication connection failure",
         "launch_failed", "Communication connection failure"),
        ("ssh: connect to host wkr-3 port 22: Connection refused", "launch_failed",
         "ssh: Connection refused"),
    ],
)  # fmt: skip
def test_more_settings(tmp_path: Path, line: str, name: str, value: str) -> None:
    settings = of_type(facts_of(tmp_path, line + "\n"), SettingSeen)
    assert [fact.value for fact in settings if fact.name == name] == [value]


def test_merged_stacks_are_one_for_each_rank(tmp_path: Path) -> None:
    text = (
        "ranks 0-2,4: all_reduce (torch/distributed/c10d.py:2501) <- step (opt.py:40)\n"
        "rank 3: read (fsspec/spec.py:1900) <- load_shard (data.py:88)\n"
        "ranks 0-2: are fine <- says who\n"
    )
    stacks = of_type(facts_of(tmp_path, text), StackSeen)
    assert [stack.speaker.rank for stack in stacks] == [0, 1, 2, 4, 3]
    assert stacks[-1].frames == ("read (fsspec/spec.py:1900)", "load_shard (data.py:88)")


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("[rank24]: Received SIGTERM, exiting", True),
        ("W0612 Sending process 7000 closing signal SIGTERM", False),
        ("[rank3]: Sending process 7000 closing signal SIGTERM", False),
    ],
)
def test_who_says_that_it_was_asked_to_end(tmp_path: Path, line: str, found: bool) -> None:
    settings = of_type(facts_of(tmp_path, line + "\n"), SettingSeen)
    assert any(fact.name == "asked_to_end" for fact in settings) is found
