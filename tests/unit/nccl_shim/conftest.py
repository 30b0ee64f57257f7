"""The shim, a library that stands in for NCCL, and a program linked with it."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from paceline.probe.nccl import PLUGIN_FLAGS, SHIM_LINK, SHIM_SOURCES, shim_path
from tests.unit.nccl.conftest import KERNELS, NcclProcess, build_plugin, compile_all, installed_plugin

NATIVE = Path(__file__).parent / "native"
INCLUDE = f"-I{KERNELS}/nccl_shim"
NCCL = "libnccl.so.2"  # as the stand-in is called


def build_shim(target: Path, *flags: str) -> str:
    sources = [KERNELS / source for source in SHIM_SOURCES]
    link = [flag.replace("nccl_shim/exports.map", f"{KERNELS}/nccl_shim/exports.map") for flag in SHIM_LINK]
    if flags:  # a sanitizer needs the shared C++ library
        link = [flag for flag in link if not flag.startswith("-static")]
    return compile_all(sources, target, [*PLUGIN_FLAGS, INCLUDE, *(flags or ("-O2",))], ["-shared", *link])


def build_program(folder: Path, *flags: str, before: tuple[str, ...] = ()) -> str:
    """`libnccl.so.2` and `driver`, linked with the libraries `before` it."""
    shared = [INCLUDE, *(flags or ("-O1",))]
    nccl = folder / NCCL
    return compile_all(
        [NATIVE / "fake_nccl.cc"], nccl, [*shared, "-fPIC"], ["-shared", f"-Wl,-soname,{NCCL}", "-ldl"]
    ) or compile_all([NATIVE / "driver.cc"], folder / "driver", shared, [*before, str(nccl)])


def installed_shim() -> Path | None:
    """What set-up has built, unless the sources have changed since."""
    path = shim_path()
    folders = ("native", "nccl", "nccl_shim", "include")
    newest = max(source.stat().st_mtime for folder in folders for source in (KERNELS / folder).rglob("*"))
    return path if path is not None and path.stat().st_mtime >= newest else None


@pytest.fixture(scope="session")
def shim_built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `shim.so`, `plugin.so`, `libnccl.so.2` and `driver`."""
    folder = tmp_path_factory.mktemp("shim")
    errors = build_program(folder)
    for name, installed, build in (
        ("shim.so", installed_shim(), build_shim),
        ("plugin.so", installed_plugin(), build_plugin),
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
