"""The fake job of the detection tests, and a core fed with its records as one log."""

import importlib.util
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from paceline.analysis.detection import DetectionPolicy
from paceline.contracts.batch import Batch
from paceline.detector.core import DetectorCore, Output, Placed, Signal


def _load_fake_job() -> ModuleType:
    name = "paceline_tests_fake_job"
    if name not in sys.modules:
        path = Path(__file__).parents[1] / "detection" / "conftest.py"
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name]


FakeJob = _load_fake_job().FakeJob


@dataclass
class Log:
    """One partition, kept, so that it can be replayed; ticks are written like the shell writes them."""

    core: DetectorCore
    records: list[Placed] = field(default_factory=list)
    outputs: list[Output] = field(default_factory=list)
    tick_ns: int = 10**9

    def feed(self, batches: Sequence[Batch]) -> list[Output]:
        placed = [Placed(0, len(self.records) + i, batch) for i, batch in enumerate(batches)]
        self.records += placed
        found = self.core.apply(placed)
        self.outputs += found
        return found

    def tick(self, seconds: float = 1.0) -> list[Output]:
        self.tick_ns += int(seconds * 1e9)
        return self.feed(self.core.make_ticks(self.tick_ns, self.tick_ns, list(self.core.held)))

    def second(self, job: Any, *, moving: bool = True) -> list[Output]:
        if moving:
            job.run(1.0)
        else:
            job.wait(1.0)
        return self.feed(job.sample()) + self.tick()

    def signals(self) -> list[Signal]:
        return [output for output in self.outputs if isinstance(output, Signal)]


@pytest.fixture
def fake_job() -> Callable[..., Any]:
    made: Callable[..., Any] = FakeJob
    return made


@pytest.fixture
def log() -> Log:
    return Log(DetectorCore("d1", DetectionPolicy()))


@pytest.fixture
def new_log() -> Callable[..., Log]:
    def make(instance: str = "d1", **bounds: Any) -> Log:
        return Log(DetectorCore(instance, DetectionPolicy(), **bounds))

    return make
