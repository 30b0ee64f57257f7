"""The plugin and the harness, built once a session, and a process that NCCL would have loaded it into."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType

import numpy as np
import pytest

from paceline.analysis.builder import build_evidence
from paceline.analysis.judge import judge
from paceline.analysis.policy import JudgePolicy
from paceline.contracts.batch import RowKind
from paceline.contracts.codes import DetailLevel
from paceline.contracts.registry import CommunicatorRecord, NodeRecord
from paceline.contracts.verdicts import Verdict, VerdictClass
from paceline.probe.control import ControlPage
from paceline.probe.nccl import INCLUDES, PLUGIN_FLAGS, PLUGIN_LINK, PLUGIN_SOURCES, plugin_path
from paceline.probe.reader import PageReader
from paceline.probe.snapshot import FrameDetail, PageSnapshot
from tests.unit.agent.conftest import MemoryPublisher, StartAgent, agent_folder, publisher, start_agent
from tests.unit.nccl.calls import Trace
from tests.unit.nccl.scripts import IN_BOTH_BUILDS

__all__ = ["agent_folder", "publisher", "start_agent"]  # fixtures

ROOT = Path(__file__).parents[3]
KERNELS = ROOT / "kernels"
NATIVE = Path(__file__).parent / "native"
FLAGS = ("-std=c++17", "-g", "-pthread", "-Wall", "-Wextra", "-Werror", "-Wno-missing-field-initializers")
SANITIZER = ("-fsanitize=thread", "-O0", "-g1", "-Wno-tsan")
BUILDS = ["normal", "sanitized"]
DRIVER = "libcuda.so.1"
RANKS = 4
STALL_S = 0.4


def compile_all(sources: Sequence[Path], target: Path, flags: Sequence[str], link: Sequence[str]) -> str:
    """Compiles side by side and links; the compiler's words where it fails, else an empty string."""

    def run(*command: str) -> str:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.stderr if done.returncode else ""

    includes = [f"-I{KERNELS}/{folder}" for folder in INCLUDES]
    with tempfile.TemporaryDirectory() as folder:
        objects = [f"{folder}/{place}.o" for place, _ in enumerate(sources)]

        def build(pair: tuple[Path, str]) -> str:
            return run("g++", *FLAGS, *flags, *includes, "-c", str(pair[0]), "-o", pair[1])

        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            errors = "".join(pool.map(build, zip(sources, objects, strict=True)))
        return errors or run("g++", *FLAGS, *flags, *objects, "-o", str(target), *link)


def build_library(
    target: Path, *flags: str, sources: Sequence[str] = PLUGIN_SOURCES, link: Sequence[str] = PLUGIN_LINK
) -> str:
    """As set-up builds it, but for `flags` in place of its optimisation; what `compile_all` says."""
    link = [flag.replace("version-script=", f"version-script={KERNELS}/") for flag in link]
    if flags:  # a sanitizer needs the shared C++ library
        link = [flag for flag in link if not flag.startswith("-static")]
    paths = [KERNELS / source for source in sources]
    return compile_all(paths, target, [*PLUGIN_FLAGS, *(flags or ("-O2",))], ["-shared", *link])


def unless_changed(path: Path | None) -> Path | None:
    """What set-up has built, unless the sources have changed since."""
    newest = max(source.stat().st_mtime for folder in INCLUDES for source in (KERNELS / folder).rglob("*"))
    return path if path is not None and path.stat().st_mtime >= newest else None


def build_harness(target: Path, *flags: str) -> str:
    return compile_all([NATIVE / "harness.cc"], target, flags, ["-rdynamic", "-ldl"])


def build_driver(target: Path, *flags: str) -> str:
    """CUDA's driver as the tests need it; NCCL's plugin finds it by its name where it is loaded."""
    link = ["-shared", f"-Wl,-soname,{DRIVER}"]
    return compile_all([NATIVE / "fake_cuda.cc"], target, ["-fPIC", *flags], link)


def skip_without_sanitizer(errors: str, *command: str | Path, **environment: str) -> None:
    """`errors` of the compiler; `command` starts what it has built, which ends with its input."""
    if errors:
        pytest.skip(f"no ThreadSanitizer here: {errors.splitlines()[-1:]}")
    done = subprocess.run(
        command, input="", capture_output=True, text=True, check=False, env={**os.environ, **environment}
    )
    if "unexpected memory mapping" in done.stderr:
        pytest.skip("ThreadSanitizer does not run under this kernel's address randomisation")


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `plugin.so` and `harness`."""
    assert shutil.which("g++"), "g++ is part of the toolchain this project needs"
    folder = tmp_path_factory.mktemp("nccl")
    plugin = unless_changed(plugin_path())
    errors = build_harness(folder / "harness", "-O1")
    if plugin is None:
        errors += build_library(folder / "plugin.so")
    else:
        (folder / "plugin.so").symlink_to(plugin)
    assert not errors, errors
    return folder


def build_sanitized(folder: Path) -> Path:
    """`folder` with `plugin.so` and `harness` under ThreadSanitizer; skips where there is none."""
    harness, plugin = folder / "harness", folder / "plugin.so"
    skip_without_sanitizer(
        build_harness(harness, *SANITIZER) or build_library(plugin, *SANITIZER), harness, plugin
    )
    return folder


@pytest.fixture(scope="session")
def sanitized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `plugin.so` and `harness` under ThreadSanitizer."""
    return build_sanitized(tmp_path_factory.mktemp("tsan"))


def watch_races(folder: Path) -> dict[str, str]:
    """The environment in which ThreadSanitizer writes its reports into `folder`."""
    return {"TSAN_OPTIONS": f"log_path={folder / 'tsan'} exitcode=66"}


def races_in(folder: Path) -> str:
    """The reports of processes that ran with `watch_races`; empty where there was no race."""
    reports = "".join(path.read_text() for path in sorted(folder.glob("tsan.*")))
    return reports[:4000] if "ThreadSanitizer" in reports else ""


class NcclProcess:
    """A process with the plugin loaded; it makes the calls of traces."""

    def __init__(self, plugin: Path, harness: Path, version: int, environment: dict[str, str]) -> None:
        clean = {
            name: value for name, value in os.environ.items() if not name.startswith(("PACELINE", "SLURM"))
        }
        self.process = subprocess.Popen(
            [harness, plugin, str(version)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={
                **clean,
                "PACELINE_JOB_ID": "job",
                "PACELINE_AGENT_SOCKET": "/nonexistent/agent",
                **environment,
            },
        )
        self.loaded = self._read()

    def __enter__(self) -> "NcclProcess":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def end(self) -> int:
        """Its exit status after an orderly end."""
        if self.process.stdin is not None and not self.process.stdin.closed:
            self.process.stdin.close()
        status = self.process.wait(30)
        if self.process.stdout is not None:
            self.process.stdout.close()
        return status

    def _read(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def ask(self, line: str) -> str:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        return self._read()

    def make(self, trace: Trace, in_turn: bool = False) -> None:
        """Make the calls of `trace` so far, and wait until all threads are through."""
        assert self.process.stdin is not None
        self.process.stdin.write(trace.take().lines(self.process.pid, in_turn))
        assert self.ask("sync") == "ok 0"

    @property
    def mask(self) -> int:
        return int(self.ask("mask"))

    def is_null(self, handle: int) -> bool:
        return self.ask(f"null {handle}") == "1"

    def descriptor(self, name: str, flags: int) -> int | None:
        folder = Path(f"/proc/{self.process.pid}/fd")
        for entry in sorted(folder.iterdir(), key=lambda path: int(path.name)):
            if f"memfd:{name}" in os.readlink(entry):
                return os.open(entry, flags)
        return None

    def read(self) -> PageSnapshot:
        page = self.descriptor("paceline-page", os.O_RDONLY)
        assert page is not None, "the plugin made no page"
        reader = PageReader(page)
        os.close(page)
        snapshot = reader.read()
        reader.close()
        return snapshot

    def frame(self, place: int = 0) -> np.void:
        frame: np.void = self.read().frames[place]
        return frame

    def detail(self, place: int = 0) -> FrameDetail:
        return self.read().details[place]

    def request(self, detail: DetailLevel) -> None:
        """What the agent asks for through the control page."""
        control = self.descriptor("paceline-control", os.O_RDWR)
        assert control is not None
        page = ControlPage(control)
        page.write(detail)
        page.close()
        os.close(control)


StartNccl = Callable[..., NcclProcess]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """The scripts that every plugin has to survive run in both builds."""
    if metafunc.function.__name__ in IN_BOTH_BUILDS:
        metafunc.parametrize("build", BUILDS, indirect=True)


@pytest.fixture
def builds() -> list[str]:
    return BUILDS


@pytest.fixture
def build(request: pytest.FixtureRequest) -> str:
    """Which build of plugin and harness `start_nccl` takes."""
    chosen: str = getattr(request, "param", "normal")
    return chosen


@pytest.fixture
def start_nccl(build: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StartNccl]:
    """`start_nccl(version=5, plugin=None, **environment)`."""
    built: Path = request.getfixturevalue("built" if build == "normal" else build)
    watched = {} if build == "normal" else watch_races(tmp_path)
    processes: list[NcclProcess] = []

    def start(version: int = 7, plugin: Path | None = None, **environment: str) -> NcclProcess:
        process = NcclProcess(
            plugin or built / "plugin.so", built / "harness", version, {**watched, **environment}
        )
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.process.kill()
        process.end()
    assert not races_in(tmp_path), races_in(tmp_path)


@pytest.fixture
async def agent_socket(start_agent: StartAgent, agent_folder: Path) -> Path:
    """Of a running agent, which tells `publisher`."""
    await start_agent(suspect_s=STALL_S)
    return agent_folder / "agent.sock"


def verdict_of(publisher: MemoryPublisher, wanted: VerdictClass, rows: int = RANKS) -> Verdict | None:
    """On what was published; None where it is another one, or before there are `rows` states."""
    if len(publisher.newest(RowKind.STATE)) < rows or publisher.job() is None:
        return None
    evidence = build_evidence(
        publisher.batches(),
        publisher.job(),
        publisher.values(NodeRecord)[-1:],
        {record.communicator: record for record in publisher.values(CommunicatorRecord)}.values(),
    )
    verdict = judge(evidence, JudgePolicy(stall_age_s=STALL_S, init_age_s=STALL_S))
    return verdict if verdict.verdict_class is wanted else None
