"""Rules about what operators' tools say, next to where they must keep silent."""

from pathlib import Path

import pytest

from paceline.analysis.diagnosis import diagnose
from paceline.analysis.diagnosis.answer import Diagnosis
from paceline.contracts.verdicts import RootKind, VerdictClass

V = VerdictClass


def _of(folder: Path, text: str, name: str = "input.txt") -> Diagnosis:
    (folder / name).write_text(text, encoding="utf-8")
    return diagnose([str(folder)])[-1]


def _bench(worst: float) -> str:
    rows = [f"n{i},{600 + i % 3}" for i in range(7)]
    return "\n".join(["hostname,gemm_tflops", *rows, f"n7,{worst}"]) + "\n"


def test_a_node_that_computes_less_than_all_others(tmp_path: Path) -> None:
    answer = _of(tmp_path, _bench(550))
    assert answer.verdict_class is V.S1
    assert [root.node for root in answer.roots] == ["n7"]


def test_a_node_within_the_spread_of_the_others(tmp_path: Path) -> None:
    assert _of(tmp_path, _bench(590)).verdict_class in (V.INCONCLUSIVE, V.NONE)


def _smi(idle_memory: int) -> str:
    def gpu(index: int, util: int, memory: int) -> str:
        return (
            f"|   {index}  NVIDIA H100 80GB HBM3   On  |   00000000:{16 + index:02x}:00.0 Off |     0 |\n"
            f"| N/A   38C    P0     118W /  700W |   {memory}MiB /  81559MiB |    {util}%      Default |\n"
        )

    return "".join(gpu(index, 100, 46000) for index in range(7)) + gpu(7, 0, idle_memory)


def test_one_gpu_idle_with_its_memory_in_use(tmp_path: Path) -> None:
    answer = _of(tmp_path, _smi(45000))
    assert answer.verdict_class is V.H1
    assert [root.gpu for root in answer.roots] == ["7"]


def test_a_gpu_that_the_job_does_not_use(tmp_path: Path) -> None:
    assert _of(tmp_path, _smi(3)).verdict_class is not V.H1


@pytest.mark.parametrize(("score", "found"), [(0.71, [3]), (0.96, [])])
def test_scores_of_a_straggler_detector(tmp_path: Path, score: float, found: list[int]) -> None:
    lines = [
        f"Rank={rank} Node=a Score={score if rank == 3 else 0.99}" for _ in range(3) for rank in range(8)
    ]
    answer = _of(tmp_path, "\n".join(lines))
    assert [root.rank for root in answer.roots if root.rank is not None] == found


def _steps(times: list[float]) -> str:
    return "\n".join(f"step {at} loss 2.0 step_time {time:.3f} s" for at, time in enumerate(times))


@pytest.mark.parametrize(
    ("times", "calm"),
    [
        ([1.0, 1.02, 0.99, 1.01] * 6, True),
        ([9.0] + [1.0, 1.01] * 10, True),  # the first one warms up
        ([1.0] * 12 + [1.06] * 12, False),  # slower, and it stays
        ([1.0, 1.0, 1.0, 1.0, 1.0, 5.0] * 5, True),  # regular
        ([1.0, 5.0, 1.0, 1.0, 6.0, 1.0, 1.0, 1.0, 1.0, 7.0, 5.0, 1.0, 1.0], False),
    ],
)
def test_steps_of_one_log(tmp_path: Path, times: list[float], calm: bool) -> None:
    assert (_of(tmp_path, _steps(times)).verdict_class is V.NONE) is calm


@pytest.mark.parametrize(
    ("first", "second", "disagree"),
    [("10.0.0.1", "10.0.0.7", True), ("10.0.0.1", "head-0", False), ("10.0.0.1", "10.0.0.1", False)],
)
def test_endpoints_of_two_nodes(tmp_path: Path, first: str, second: str, disagree: bool) -> None:
    for at, master in enumerate((first, second)):
        text = f"MASTER_ADDR={master} MASTER_PORT=29500\nDistStoreError: Timed out after 601 seconds "
        text += "waiting for clients. 1/2 clients joined.\n"
        (tmp_path / f"node{at}.log").write_text(text, encoding="utf-8")
    (answer,) = diagnose([str(tmp_path)])
    assert any(root.kind is RootKind.CONFIGURATION for root in answer.roots) is disagree


@pytest.mark.parametrize(("minute", "calm"), [(40, True), (0, False)])
def test_a_kill_is_of_the_job_unless_steps_follow(tmp_path: Path, minute: int, calm: bool) -> None:
    text = "2026-06-12 10:00:30 Out of memory: Killed process 33 (helper) total-vm:1kB, anon-rss:1kB\n"
    text += f"2026-06-12 10:{minute:02d}:31 step 7 loss 2.0\n2026-06-12 10:{minute:02d}:32 step 8 loss 2.0\n"
    assert (_of(tmp_path, text).verdict_class is not V.H1) is calm
