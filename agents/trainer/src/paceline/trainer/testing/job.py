"""N ranks and their standbys as processes on this machine, led by a `LocalController`."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from paceline.trainer.supervisor import ROLE_VARIABLE
from paceline.trainer.supervisor.settings import RESPAWN_VARIABLE, WAIT_VARIABLE
from paceline.trainer.testing.controller import LocalController
from paceline.trainer.testing.faults import FAULTS_VARIABLE, Fault, faults_text

GATE_VARIABLE = "PACELINE_TEST_GATE"  # a file that appears when the first step may begin
RESULTS_VARIABLE = "PACELINE_TEST_RESULTS"  # folder in which `testing.record` writes
JOB_S_MAX = 120.0
FAULT_TIMES = "fault-times"
OUTPUT_CHARACTERS = 4000
NURSERY_S_MAX = 10.0  # to end


class Process(Protocol):
    """A supervisor that was started."""

    pid: int

    def poll(self) -> int | None: ...

    def kill(self) -> None: ...


class Nursery:
    """Starts supervisors as forks of a process that has imported torch once; a context manager."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "paceline.trainer.testing.nursery"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={
                **{name: text for name, text in os.environ.items() if not name.startswith("PACELINE")},
                "OMP_NUM_THREADS": "1",
            },
        )  # fmt: skip

    def __enter__(self) -> "Nursery":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # it is gone, and a request still waits
            self._process.stdin.close()
        try:
            self._process.wait(NURSERY_S_MAX)
        except subprocess.TimeoutExpired:  # it may still import torch
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def start(self, log: Path, environment: Mapping[str, str], words: Sequence[str]) -> "Nursling":
        pid = self.ask({"log": str(log), "environment": dict(environment), "words": list(words)})
        assert pid is not None
        return Nursling(self, pid)

    def ask(self, request: Mapping[str, object]) -> int | None:
        """The answer to one request of `nursery.main`."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer: int | None = json.loads(self._process.stdout.readline())
        return answer


class Nursling:
    """A supervisor that is a child of a nursery."""

    def __init__(self, nursery: Nursery, pid: int) -> None:
        self.pid = pid
        self._nursery = nursery
        self._code: int | None = None

    def poll(self) -> int | None:
        if self._code is None:
            try:
                self._code = self._nursery.ask({"wait": self.pid})
            except (OSError, ValueError):  # the nursery is gone, and whatever it started ends with it
                self._code = -signal.SIGKILL
        return self._code

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        until = time.monotonic() + 5.0
        while self.poll() is None and time.monotonic() < until:
            time.sleep(0.005)


@dataclass(frozen=True)
class Step:
    """What one rank recorded of one step."""

    loss: str
    samples: tuple[int, ...]


@dataclass(frozen=True)
class Outcome:
    """Of one rank: digest of its final state, and its steps; `replayed` were recorded more than once."""

    digest: str
    steps: dict[int, Step]
    replayed: int
    contradictions: tuple[int, ...]  # steps that were recorded twice with different content


class RepairJob:
    """Start it, let it end, look at `outcomes()`; a context manager that leaves no process behind."""

    def __init__(
        self,
        command: Sequence[str],
        ranks: int,
        standbys: int = 0,
        faults: Sequence[Fault] = (),
        environment: Mapping[str, str] | None = None,
        respawn_s: float = -1.0,
        frozen_s: float = 2.0,
        controller: bool = True,
        nursery: "Nursery | None" = None,
    ) -> None:
        self.command = list(command)
        self.ranks = ranks
        self._standbys = standbys
        self._folder = tempfile.TemporaryDirectory(prefix="paceline-", dir=short_folder())
        self.folder = Path(self._folder.name)
        self.results = self.folder / "results"
        self.results.mkdir()
        self.controller = LocalController(self.folder / "agent.sock", ranks, frozen_s=frozen_s)
        self._has_controller = controller
        self._nursery = nursery
        self.processes: list[Process] = []
        self._environment = {
            **{name: text for name, text in os.environ.items() if not name.startswith(("PACELINE", "SLURM"))},
            "OMP_NUM_THREADS": "1",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
            "WORLD_SIZE": str(ranks),
            "PACELINE_JOB_ID": f"test-{os.getpid()}-{id(self):x}",
            "PACELINE_AGENT_SOCKET": str(self.controller.path),
            RESULTS_VARIABLE: str(self.results),
            FAULTS_VARIABLE: faults_text(faults),
            GATE_VARIABLE: str(self.folder / "gate"),
            RESPAWN_VARIABLE: str(respawn_s),
            WAIT_VARIABLE: "30",
            **(environment or {}),
        }

    @property
    def name(self) -> str:
        """Its job id."""
        return self._environment["PACELINE_JOB_ID"]

    def __enter__(self) -> "RepairJob":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Start all supervisors. No rank begins its first step before `open_gate`."""
        if self._has_controller:
            self.controller.start()
        for rank in range(self.ranks):
            self.launch({"RANK": str(rank), "LOCAL_RANK": str(rank), "PACELINE_FAILURE_DOMAIN": f"d{rank}"})
        for number in range(self._standbys):
            self.launch({ROLE_VARIABLE: "standby", "PACELINE_FAILURE_DOMAIN": f"s{number}"})

    def launch(self, changes: Mapping[str, str], fork: bool = True) -> "Process":
        """One more supervisor with this environment; without `fork` never out of the nursery."""
        log = self.folder / f"log-{len(self.processes)}"
        environment = {**self._environment, **changes}
        process: Process
        if self._nursery is not None and fork:
            process = self._nursery.start(log, environment, self.command)
        else:
            command = [
                sys.executable,
                "-m",
                "paceline.trainer.supervisor",
                "--",
                sys.executable,
                *self.command,
            ]
            with log.open("wb") as file:
                process = subprocess.Popen(command, env=environment, stdout=file, stderr=subprocess.STDOUT)
        self.processes.append(process)
        return process

    def await_end(self, timeout_s: float = JOB_S_MAX) -> list[int]:
        """Statuses of the supervisors, ranks first; TimeoutError with their output where one does not end."""
        self.open_gate()
        self.await_that(lambda: all(process.poll() is not None for process in self.processes), timeout_s)
        return [int(process.poll() or 0) for process in self.processes]

    def await_that(self, condition: Callable[[], object], timeout_s: float = 60.0) -> None:
        """Return as soon as `condition` holds; TimeoutError with the output of the job."""
        until = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > until:
                raise TimeoutError(f"not within {timeout_s:g} s\n{self.output()}")
            time.sleep(0.01)

    def restart_controller(self) -> None:
        """As an agent that is killed and started again; it has to be told everything anew."""
        before = self.controller
        before.stop()
        self.controller = LocalController(
            before.path, self.ranks, frozen_s=before.frozen_s, generation=before.generation
        ).start()

    def open_gate(self) -> None:
        """Wait until all standbys are warm, then let the ranks begin; later calls do nothing. Where the job
        has no controller somebody else has to know when they are warm."""
        gate = self.folder / "gate"
        if not gate.exists():
            if self._has_controller:
                self.await_standbys()
            gate.touch()

    def await_standbys(self, number: int | None = None, timeout_s: float = 60.0) -> None:
        wanted = self._standbys if number is None else number
        self.await_that(lambda: self.controller.ready_standbys() >= wanted, timeout_s)

    def output(self) -> str:
        """The end of what each process wrote."""
        texts = []
        for number in range(len(self.processes)):
            text = (self.folder / f"log-{number}").read_text(errors="replace")
            texts.append(f"--- process {number}\n{text[-OUTPUT_CHARACTERS:]}")
        return "\n".join(texts)

    def outcomes(self) -> dict[int, Outcome]:
        """What the ranks recorded by `paceline.trainer.testing.record`."""
        return read_outcomes(self.results, self.ranks)

    def fault_times(self) -> list[float]:
        """When each fault was injected, on the monotonic clock that all processes of a machine share."""
        path = self.results / FAULT_TIMES
        return [float(line) for line in path.read_text().split()] if path.exists() else []

    def close(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
        self.controller.stop()
        self._folder.cleanup()


def assert_equal(faulty: Mapping[int, Outcome], whole: Mapping[int, Outcome], replayed_max: int = 1) -> None:
    """Final states, loss curves and consumed samples of two runs are the same to the bit; AssertionError."""
    assert faulty.keys() == whole.keys()
    for rank, expected in whole.items():
        found = faulty[rank]
        assert not found.contradictions, (
            f"rank {rank}: steps {found.contradictions} were replayed differently"
        )
        assert found.steps.keys() == expected.steps.keys(), f"rank {rank}: other steps were done"
        for step, one in expected.steps.items():
            assert found.steps[step] == one, f"rank {rank}, step {step}: {found.steps[step]}, expected {one}"
        assert found.digest == expected.digest, f"rank {rank}: other final state"
        assert found.replayed <= replayed_max, f"rank {rank}: {found.replayed} steps were replayed"


def read_outcomes(folder: Path, ranks: int) -> dict[int, Outcome]:
    """What each rank recorded below `folder`."""
    return {rank: _read_outcome(folder, rank) for rank in range(ranks)}


def _read_outcome(folder: Path, rank: int) -> Outcome:
    steps: dict[int, Step] = {}
    replayed, contradictions, digest = 0, [], ""
    for line in (folder / f"rank-{rank}.jsonl").read_text().splitlines():
        entry = json.loads(line)
        if "digest" in entry:
            digest = entry["digest"]
            continue
        step = Step(entry["loss"], tuple(entry["samples"]))
        number = int(entry["step"])
        if number in steps:
            replayed += 1
            if steps[number] != step:
                contradictions.append(number)
        steps[number] = step
    return Outcome(digest, steps, replayed, tuple(contradictions))


def short_folder() -> str:
    """A parent for sockets, whose paths have at most 107 bytes."""
    return os.environ.get("TMPDIR", "/tmp") if len(os.environ.get("TMPDIR", "")) < 40 else "/tmp"  # noqa: S108


def free_port() -> int:
    """A port of this machine that nobody uses now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
