"""The shim, a library that stands in for NCCL, and a program linked with it."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from paceline.probe.nccl import SHIM_LINK, SHIM_SOURCES, plugin_path, shim_path
from tests.unit.nccl.conftest import (
    NcclProcess,
    agent_folder,
    agent_socket,
    build_library,
    compile_all,
    publisher,
    start_agent,
    unless_changed,
)

__all__ = ["agent_folder", "agent_socket", "publisher", "start_agent"]  # fixtures

NATIVE = Path(__file__).parent / "native"
NCCL = "libnccl.so.2"  # as the stand-in is called


def build_shim(target: Path, *flags: str) -> str:
    return build_library(target, *flags, sources=SHIM_SOURCES, link=SHIM_LINK)


def build_program(folder: Path, *flags: str, before: tuple[str, ...] = ()) -> str:
    """`libnccl.so.2` and `driver`, linked with the libraries `before` it."""
    shared = flags or ("-O1",)
    nccl = folder / NCCL
    return compile_all(
        [NATIVE / "fake_nccl.cc"], nccl, [*shared, "-fPIC"], ["-shared", f"-Wl,-soname,{NCCL}", "-ldl"]
    ) or compile_all([NATIVE / "driver.cc"], folder / "driver", shared, [*before, str(nccl)])


@pytest.fixture(scope="session")
def shim_built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `shim.so`, `plugin.so`, `libnccl.so.2` and `driver`."""
    folder = tmp_path_factory.mktemp("shim")
    errors = build_program(folder)
    for name, installed, build in (
        ("shim.so", unless_changed(shim_path()), build_shim),
        ("plugin.so", unless_changed(plugin_path()), build_library),
    ):
        if installed is None:
            errors += build(folder / name)
        else:
            (folder / name).symlink_to(installed)
    assert not errors, errors
    return folder


class ShimProcess(NcclProcess):
    """A program that calls NCCL, with the shim before it and, where asked for, the plugin behind."""

    def __init__(
        self, folder: Path, profiler: int = 0, preload: bool = True, environment: dict[str, str] | None = None
    ) -> None:
        self.before = {"LD_PRELOAD": str(folder / "shim.so")} if preload else {}
        plugin = folder / "plugin.so" if profiler else Path("-")
        paths = {"LD_LIBRARY_PATH": f"{folder}:{os.environ.get('LD_LIBRARY_PATH', '')}"}
        super().__init__(plugin, folder / "driver", profiler, {**self.before, **paths, **(environment or {})})
        assert self.loaded == "0", "the plugin was not loaded"

    def call(self, line: str) -> int:
        return int(self.ask(line))

    def all(self, *lines: str) -> None:
        """Calls that are to succeed."""
        assert {line: self.call(line) for line in lines} == dict.fromkeys(lines, 0)


StartShim = Callable[..., ShimProcess]


@pytest.fixture
def start_shim(shim_built: Path) -> Iterator[StartShim]:
    """`start_shim(profiler=0, preload=True, **environment)`."""
    processes: list[ShimProcess] = []

    def start(profiler: int = 0, preload: bool = True, **environment: str) -> ShimProcess:
        process = ShimProcess(shim_built, profiler, preload, environment)
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.process.kill()
        process.end()
