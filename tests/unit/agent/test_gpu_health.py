"""What samples of a GPU mean, and the reader of NVML as a child: answers, silence, garbage, restarts."""

import asyncio
import json
import os
import re
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paceline.agent import gpu_reader, gpu_watch
from paceline.agent.findings import Found
from paceline.agent.gpu_health import GpuReason, GpuRecord, GpuSample, is_spinning, judge_gpu
from paceline.agent.gpu_watch import GpuWatch, ReaderEnd, next_backoff_s
from paceline.contracts.registry import HealthKind
from paceline.runtime.clock import SystemClock

FAKE = Path(__file__).with_name("fake_nvml")
# NCCL #2428: a hung job of eight GPUs of 400 W.
SPIN = GpuSample(busy_percent=100, memory_percent=0, power_mw=118_000, power_limit_mw=400_000, throttle=0)
Eventually = Callable[..., Awaitable[Any]]


class TestDecision:
    @pytest.mark.parametrize(
        ("changed", "spins"),
        [
            ({}, True),
            ({"busy_percent": 97}, False),
            ({"memory_percent": 12}, False),
            ({"power_mw": 310_000}, False),
            ({"power_mw": None}, False),
            ({"memory_percent": None}, False),
            ({"throttle": 0x40}, False),  # low power because it is held down
            ({"throttle": 0x01}, True),
        ],
    )
    def test_spinning(self, changed: dict[str, Any], spins: bool) -> None:
        assert is_spinning(replace(SPIN, **changed)) is spins

    def test_a_spin_is_told_once_while_it_lasts(self) -> None:
        record: GpuRecord | None = None
        told = []
        for sample in [SPIN, SPIN, GpuSample(busy_percent=0), SPIN, SPIN, SPIN, SPIN, SPIN]:
            record, found = judge_gpu(3, record, sample)
            told += [(each.reason, each.gpu) for each in found]
        assert told == [(GpuReason.SPINNING.value, 3)]

    @pytest.mark.parametrize(
        ("name", "before", "now", "kind", "reason"),
        [
            ("ecc_uncorrected", 1, 3, HealthKind.ECC, GpuReason.ECC_UNCORRECTED),
            ("remap_failures", 0, 1, HealthKind.ECC, GpuReason.REMAP_FAILED),
            ("nvlink_failures", 0, 1, HealthKind.NVLINK, GpuReason.NVLINK_FAILED),
            ("nvlink_recoveries", 4, 5, HealthKind.LINK_ERRORS, GpuReason.NVLINK_RECOVERED),
            ("recovery_action", 0, 1, HealthKind.XID, GpuReason.RECOVERY_ASKED),
        ],
    )
    def test_what_grew(self, name: str, before: int, now: int, kind: HealthKind, reason: GpuReason) -> None:
        record, first = judge_gpu(0, None, GpuSample(**{name: before}))
        assert first == ()  # what was counted before anybody looked is no event
        record, found = judge_gpu(0, record, GpuSample(**{name: now}))
        assert [(each.kind, each.reason) for each in found] == [(kind, reason.value)]
        assert judge_gpu(0, record, GpuSample(**{name: now}))[1] == ()
        assert judge_gpu(0, record, GpuSample(**{name: 0}))[1] == ()  # reset with the driver
        assert judge_gpu(0, record, GpuSample())[1] == ()

    def test_throttling_has_to_last(self) -> None:
        hot = GpuSample(throttle=0x40, temperature_c=91, sm_mhz=900, sm_mhz_max=1980)
        record, found = judge_gpu(0, None, hot)
        assert found == ()
        record, (told,) = judge_gpu(0, record, hot)
        assert (told.kind, told.reason) == (HealthKind.THERMAL, "throttled")
        assert "900 of 1980 MHz" in told.message
        assert judge_gpu(0, record, hot)[1] == ()

    def test_backoff_is_bounded_and_forgets(self) -> None:
        waits = [0.0]
        for _ in range(12):
            waits.append(next_backoff_s(waits[-1], ReaderEnd.NO_ANSWER, 10.0))
        assert waits[1:5] == [1.0, 2.0, 4.0, 8.0]
        assert waits[-1] == gpu_watch.BACKOFF_S_MAX
        assert next_backoff_s(256.0, ReaderEnd.EXITED, 61.0) == 1.0
        assert next_backoff_s(0.0, ReaderEnd.NO_DRIVER, 0.1) == gpu_watch.BACKOFF_S_MAX


def test_only_getters_are_called() -> None:
    """Events are waited for; nothing that sets, clears, resets or freezes is in reach."""
    called = set(re.findall(r"pynvml\.(nvml\w+)", Path(gpu_reader.__file__).read_text()))
    allowed = {"nvmlInit", "nvmlEventSetCreate", "nvmlDeviceRegisterEvents", "nvmlEventSetWait_v2"}
    assert {name for name in called if not re.match(r"nvml(Device|System)Get[A-Z]", name)} == allowed


class Watched:
    """A watch over the fake NVML, and what it told."""

    def __init__(self, world: Path, command: tuple[str, ...] = (), timeout_s: float = 5.0) -> None:
        self.world = world
        self.samples: list[tuple[int, GpuSample]] = []
        self.found: list[Found] = []
        self.tell(gpus=[{}, {}])
        fake = ("env", f"PYTHONPATH={FAKE}:{os.environ.get('PYTHONPATH', '')}", f"FAKE_NVML={world}",
                sys.executable, "-m", "paceline.agent.gpu_reader")  # fmt: skip
        self.watch = GpuWatch(
            SystemClock(), lambda gpu, sample: self.samples.append((gpu, sample)), self.found.append,
            interval_s=0.05, timeout_s=timeout_s, command=command or fake,
        )  # fmt: skip
        self.task = asyncio.create_task(self.watch.run())

    def tell(self, **world: Any) -> None:
        self.world.with_suffix(".new").write_text(json.dumps(world))
        self.world.with_suffix(".new").replace(self.world)

    async def end(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


@pytest.fixture
async def start_watch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(gpu_watch, "BACKOFF_S_MIN", 0.05)
    started: list[Watched] = []

    def start(**options: Any) -> Watched:
        started.append(Watched(tmp_path / "world.json", **options))
        return started[-1]

    yield start
    for each in started:
        await each.end()


class TestReader:
    async def test_samples_and_xids(self, start_watch: Any, eventually: Eventually) -> None:
        watched = start_watch()
        gpu = {"busy": 100, "memory": 1, "power": 600_000, "ecc": 2, "pids": [7], "fields": {"59": 4}}
        watched.tell(gpus=[{}, gpu], xids=[[1, 79], [1, 79]])
        await eventually(
            lambda: len(watched.found) == 2 and (1,) and [s for s in watched.samples if s[1].power_mw]
        )
        assert [(f.kind, f.gpu, f.code) for f in watched.found] == [(HealthKind.XID, 1, 79)] * 2
        sample = next(s for gpu, s in watched.samples if gpu == 1 and s.power_mw)
        assert (sample.busy_percent, sample.ecc_uncorrected, sample.nvlink_recoveries) == (100, 2, 4)
        assert sample.nvlink_failures is None
        assert watched.watch.state.pids == {7: 1}
        assert watched.watch.state.names[1].pci == "00000000:9C:00.0"

    async def test_a_gpu_that_never_answers_is_named_and_left_out(
        self, start_watch: Any, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        watched = start_watch(timeout_s=1.0)
        await eventually(lambda: watched.samples)
        watched.tell(gpus=[{}, {}], hang=0, hang_at="nvmlDeviceGetUtilizationRates")
        await eventually(lambda: watched.found)
        assert [(f.kind, f.gpu) for f in watched.found] == [(HealthKind.GPU_SILENT, 0)]
        assert "no answer within 1 s" in watched.found[0].message
        watched.samples.clear()
        await eventually(lambda: len(watched.samples) > 3)
        assert {gpu for gpu, _ in watched.samples} == {1}  # the others are watched on
        # Its time is over and it answers: asked again, and taken back.
        watched.tell(gpus=[{}, {}])
        monkeypatch.setattr(gpu_watch, "LEFT_OUT_S", 0.0)
        await eventually(lambda: len(watched.found) == 2)
        assert (watched.found[1].kind, watched.found[1].gpu) == (HealthKind.GPU_ANSWERS, 0)
        assert watched.watch.ends[ReaderEnd.NO_ANSWER.value] == 1

    async def test_nvml_that_hangs_as_a_whole(self, start_watch: Any, eventually: Eventually) -> None:
        watched = start_watch(timeout_s=0.8)
        watched.tell(gpus=[{}], hang="init")
        await eventually(lambda: watched.watch.ends[ReaderEnd.NO_ANSWER.value] >= 2)
        assert [(f.kind, f.gpu) for f in watched.found] == [(HealthKind.GPU_SILENT, None)]  # once

    async def test_a_lost_gpu_is_silent_and_the_others_go_on(
        self, start_watch: Any, eventually: Eventually
    ) -> None:
        watched = start_watch()
        watched.tell(gpus=[{}, {}], lost=0)
        await eventually(lambda: watched.found and (1 in {gpu for gpu, _ in watched.samples}))
        assert [(f.kind, f.gpu) for f in watched.found] == [(HealthKind.GPU_SILENT, 0)]

    async def test_the_real_nvml(self, start_watch: Any, eventually: Eventually) -> None:
        watched = start_watch(command=(sys.executable, "-m", "paceline.agent.gpu_reader"), timeout_s=20.0)
        await eventually(lambda: watched.watch.ends or watched.samples, 30.0)
        assert watched.samples or list(watched.watch.ends) == [ReaderEnd.NO_DRIVER.value]

    async def test_no_driver_is_a_normal_case(self, start_watch: Any, eventually: Eventually) -> None:
        watched = start_watch()
        watched.tell(no_driver=1)
        await eventually(lambda: watched.watch.ends)
        assert list(watched.watch.ends) == [ReaderEnd.NO_DRIVER.value]
        assert watched.found == []

    @pytest.mark.parametrize(
        "line",
        ["x", "{}", "[]", "7", '{"kind": "sample", "gpu": "a"}', '{"kind": "sample", "gpu": 99}',
         "A" * 70_000, '{"kind": "hello"}', '{"kind": "sample", "gpu": 0, "pids": ["x"]}'],
    )  # fmt: skip
    async def test_garbage_ends_the_reader_and_nothing_else(
        self, line: str, start_watch: Any, eventually: Eventually
    ) -> None:
        script = f"print({line!r}, flush=True); import time; time.sleep(60)"
        watched = start_watch(command=(sys.executable, "-c", script))
        await eventually(lambda: watched.watch.ends[ReaderEnd.UNREADABLE.value] >= 1)
        assert watched.found == []

    async def test_readers_that_cannot_be_killed_are_bounded(
        self, start_watch: Any, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(gpu_watch, "REAP_S", 0.05)
        monkeypatch.setattr(asyncio.subprocess.Process, "kill", lambda self: None)
        watched = start_watch(command=(sys.executable, "-c", "import time; time.sleep(30)"), timeout_s=0.05)
        await eventually(lambda: watched.watch.ends["stuck"] == 1)
        children = watched.watch.stuck
        assert len(children) == gpu_watch.STUCK_MAX
        monkeypatch.undo()
        for child in children:
            child.kill()
            await child.wait()

    async def test_reader_that_cannot_start(self, start_watch: Any, eventually: Eventually) -> None:
        watched = start_watch(command=("/nonexistent",))
        await eventually(lambda: watched.watch.ends[ReaderEnd.CANNOT_START.value] >= 2)
