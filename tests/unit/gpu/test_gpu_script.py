"""What of tests/gpu can be tested without a GPU: whether it skips, its plan, traces, and statistics."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.gpu import run
from tests.gpu.pairs import Phase, ratio_of, turns, why_not
from tests.gpu.traces import cut, outline
from tests.unit.nccl.conftest import ROOT, NcclProcess, build_harness
from tests.unit.nccl.golden_scripts import ring_all_reduce


class FakeDriver:
    def __init__(self, init: int = 0, devices: int = 1) -> None:
        self._init, self._devices = init, devices

    def cuInit(self, flags: int) -> int:
        return self._init

    def cuDeviceGetCount(self, count: Any) -> int:
        count._obj.value = self._devices
        return 0


def missing(name: str) -> Any:
    raise OSError(f"{name}: not found")


def test_reasons_to_skip() -> None:
    assert run.why_no_gpu(lambda name: FakeDriver()) is None
    assert run.why_no_gpu(lambda name: FakeDriver(init=100)) == "the driver does not start: cuInit gives 100"
    assert str(run.why_no_gpu(lambda name: FakeDriver(devices=0))).startswith("no GPU")
    assert run.why_no_gpu(missing) == "no NVIDIA driver: libcuda.so.1: not found"


def test_script_skips_with_its_reason_and_success(tmp_path: Path) -> None:
    if run.why_no_gpu() is not None:
        script = [sys.executable, str(ROOT / "tests/gpu/run.py"), str(tmp_path / "out")]
        done = subprocess.run(script, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout.startswith("skipped: no ")) == (0, True), done.stderr
        assert "skipped" in json.loads((tmp_path / "out/result.json").read_text())
    assert run.main([str(tmp_path)], reason=lambda: "because") == 0
    assert json.loads((tmp_path / "result.json").read_text()) == {"skipped": "because"}


def test_plan_fits_into_ten_minutes_and_drops_what_does_not() -> None:
    assert sum(phase.seconds for phase in run.phases(2)) <= run.BUDGET_S
    assert why_not(Phase("a", 10), 10) is None
    assert why_not(Phase("b", 100), 30) == "needs about 100 s, 30 s are left"


def test_phase_that_fails_leaves_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise run.GpuRunError("broken")

    monkeypatch.setattr(run, "build", lambda folder: {"plugin": "p.so"})
    monkeypatch.setattr(run, "run_kernels", fail)
    monkeypatch.setattr(run, "record_traces", lambda folder, ranks, plugin: {"rank0": {}})
    sides: list[dict[str, str]] = []

    def job(ranks: int, steps: int, extra: dict[str, str], folder: Path, limit_s: float) -> list[Any]:
        sides.append(dict(extra))
        with_plugin = extra["NCCL_PROFILER_PLUGIN"] != "none"
        return [{"median_s": 0.5}, {"median_s": 1.01 if with_plugin else 1.0}]

    monkeypatch.setattr(run, "run_job", job)
    result = run.run_all(tmp_path, 2, 2, 600.0)
    assert result["failed"] == {"kernels": "GpuRunError: broken"}
    assert set(result["done"]) == {"build", "trace", *run.VARIANTS}
    assert result["done"]["tier1"]["ratio"]["mean"] == pytest.approx(1.01)
    assert [side["NCCL_PROFILER_PLUGIN"] for side in sides[:4]] == ["none", "p.so", "p.so", "none"]
    assert sides[-1 - 1].get("PACELINE_NCCL_MARKER") == "1"
    late = run.run_all(tmp_path, 2, 2, 70.0)
    assert set(late["left_out"]) == set(run.VARIANTS)


def test_each_rank_is_a_host_of_its_own_and_nothing_is_inherited() -> None:
    found = [run.environment_of(rank, {"NCCL_DEBUG": "INFO", "PATH": "/bin"}, {"X": "1"}) for rank in (0, 1)]
    assert len({each["NCCL_HOSTID"] for each in found}) == 2
    assert found[0]["PATH"] == "/bin"
    assert "NCCL_DEBUG" not in found[0]


def test_ratio_has_an_interval_that_shrinks_with_agreement() -> None:
    sure = ratio_of([1.0, 2.0, 1.5], [1.1, 2.2, 1.65])
    assert (sure.mean, sure.low, sure.high) == pytest.approx((1.1, 1.1, 1.1))
    noisy = ratio_of([1.0, 1.0], [0.9, 1.2])
    assert noisy.low < 1 < noisy.high
    assert ratio_of([1.0], [2.0]).high == math.inf
    assert turns(3) == ["A", "B", "B", "A", "A", "B"]
    for a, b in (([], []), ([1.0], []), ([1.0], [0.0])):
        with pytest.raises(ValueError, match=r"times|positive"):
            ratio_of(a, b)


def test_ranks_are_recorded_cut_and_replayed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The harness stands for NCCL in each rank's place; all else is what happens on a GPU."""
    assert not build_harness(tmp_path / "harness", "-O0")
    built = run.build(tmp_path)

    def job(ranks: int, steps: int, extra: dict[str, str], folder: Path, limit_s: float) -> list[Any]:
        assert (steps, extra) == (3, {"NCCL_PROFILER_PLUGIN": built["recorder"]})
        for rank in range(ranks):
            environment = {"RECORDER_FILE": str(folder / f"trace-{rank}.jsonl")}
            with NcclProcess(Path(built["recorder"]), tmp_path / "harness", 5, environment) as process:
                for _ in range(5):
                    process.make(ring_all_reduce(5))
        return [{"nccl": "2.28.9"}] * ranks

    monkeypatch.setattr(run, "run_job", job)
    found = run.record_traces(tmp_path, 2, Path(built["plugin"]))
    assert set(found) == {"rank0", "rank1"}
    once = outline(ring_all_reduce(5))
    assert found["rank1"]["kinds"] == {kind: 5 * count for kind, count in once["kinds"].items()}
    assert found["rank1"]["states"] == {state: 5 * count for state, count in once["states"].items()}
    golden = tmp_path / "nccl-2.28.9-rank1.jsonl"
    assert 30_000 < golden.stat().st_size < run.GOLDEN_BYTES_MAX
    assert golden.read_text().splitlines()[-1] == '{"call": "cut"}'
    pages = json.loads((tmp_path / "nccl-2.28.9-rank1.pages.json").read_text())
    assert pages["tier2"]["frames"][0]["completed"] == 3
    assert pages["tier2"]["frames"][0]["send_count"] == 12


def test_what_fits_is_not_cut() -> None:
    lines = ["a" * 10, "b" * 10]
    assert cut(lines, 100) == lines
    assert cut(lines, 30) == [lines[0], '{"call": "cut"}']
