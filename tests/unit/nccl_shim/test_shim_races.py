"""The shim, linked before NCCL, under ThreadSanitizer: threads with communicators of their own, with and
without the plugin behind them."""

from pathlib import Path

import pytest

from tests.unit.nccl.conftest import SANITIZER, skip_without_sanitizer
from tests.unit.nccl_shim.conftest import ShimProcess, build_program, build_shim

THREADS, ROUNDS = 4, 20


@pytest.fixture(scope="module")
def sanitized(shim_built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tsan")
    shim = folder / "shim.so"
    (folder / "plugin.so").symlink_to(shim_built / "plugin.so")  # it only hands on
    errors = build_shim(shim, *SANITIZER) or build_program(folder, *SANITIZER, before=(str(shim),))
    skip_without_sanitizer(errors, folder / "driver", "-", "0", LD_LIBRARY_PATH=str(folder))
    return folder


@pytest.mark.parametrize("profiler", [0, 4, 5])
def test_no_race_between_threads(sanitized: Path, tmp_path: Path, profiler: int) -> None:
    options = {
        "TSAN_OPTIONS": f"log_path={tmp_path / 'tsan'} exitcode=66",
        "PACELINE_NCCL_TIER": "1",
        "PACELINE_NCCL_BUDGET_PERCENT": "100",
    }
    process = ShimProcess(sanitized, profiler, preload=False, environment=options)
    try:
        process.all(f"storm {THREADS} {ROUNDS}")
        snapshot = process.read()
        assert snapshot.frames["started"].tolist() == [ROUNDS] * THREADS
        assert snapshot.frames["p2p_started"].tolist() == [2 * ROUNDS] * THREADS
        process.all(*(f"destroy {32 + place}" for place in range(THREADS)))
        assert process.end() == 0
    finally:
        process.process.kill()
        process.end()
    reports = "".join(path.read_text() for path in tmp_path.glob("tsan*"))
    assert "data race" not in reports, reports[:4000]
