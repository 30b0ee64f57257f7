"""One job of a peer: its processes, who restarts them, and what its record says of a fault."""

import json
import os
import secrets
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

from paceline.trainer.supervisor.child import die_with
from paceline.trainer.testing import Fault
from paceline.trainer.testing.job import free_port
from tests.bench.peers.environments import ROOT, python_of
from tests.bench.peers.ground import FAULT_TIME, FAULT_VARIABLE, FOLDER_VARIABLE, GATE

RANKS = 4
READY_S_MAX = 90.0
FAULT_S_MAX = 60.0
RECOVERY_S_MAX = 30.0
POLL_S = 0.005
TOKEN_VARIABLE = "PEER_TOKEN"  # by which processes that left their group are found again
LOG_CHARACTERS = 1500
FOREIGN = ("PACELINE", "PYTHON")  # variables that are ours and not the peer's


@dataclass(frozen=True)
class Record:
    """A step that counted, as one rank wrote it down."""

    at_s: float
    step: int
    life: int
    world: int
    rank: int


@dataclass(frozen=True)
class PeerRun:
    """Seconds since the fault; None where it did not happen within `RECOVERY_S_MAX`."""

    fault: str
    full_s: float | None = None  # first step to which `RANKS` ranks gave their gradients
    back_s: float | None = None  # first step of whoever was left
    replayed: int = 0
    lost: str = ""


@dataclass
class PeerJob:
    """A context manager that leaves no process behind."""

    environment: str
    fault: Fault
    extra: Mapping[str, str] = field(default_factory=dict)
    processes: list["subprocess.Popen[bytes]"] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="paceline-peer-")
        self.folder = Path(self._folder.name)
        self._token = secrets.token_hex(8)
        self._port = free_port()

    def __enter__(self) -> "PeerJob":
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            _kill(partial(os.killpg, process.pid, signal.SIGKILL))
            process.wait()
        for pid in _pids_with(f"{TOKEN_VARIABLE}={self._token}"):
            _kill(partial(os.kill, pid, signal.SIGKILL))
        self._folder.cleanup()

    def launch(
        self, words: Sequence[str], *, armed: bool = True, **changes: str
    ) -> "subprocess.Popen[bytes]":
        """One process of the peer's environment; `armed`: the fault is told to it."""
        fault = {name: asdict(self.fault)[name] for name in ("rank", "step", "phase")} if armed else {}
        environment = {
            **{name: text for name, text in os.environ.items() if not name.startswith(FOREIGN)},
            "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo",
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(self._port), "PYTHONWARNINGS": "ignore",
            FOLDER_VARIABLE: str(self.folder), FAULT_VARIABLE: json.dumps(fault), TOKEN_VARIABLE: self._token,
            **self.extra, **changes,
        }  # fmt: skip
        with (self.folder / f"log-{len(self.processes)}").open("wb") as log:
            process = subprocess.Popen(
                words, cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=partial(die_with, os.getpid()),  # a bench that is killed leaves nothing running
            )  # fmt: skip
        self.processes.append(process)
        return process

    def launch_rank(self, module: str, rank: int, world: int, *words: str, armed: bool = True) -> None:
        self.launch(
            [python_of(self.environment), "-m", module, *words], armed=armed, RANK=str(rank),
            LOCAL_RANK=str(rank), WORLD_SIZE=str(world), PEER_NAME=str(rank),
        )  # fmt: skip

    def await_that(self, condition: Callable[[], object], timeout_s: float) -> bool:
        until = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > until or all(each.poll() is not None for each in self.processes):
                return bool(condition())
            time.sleep(POLL_S)
        return True

    def records(self) -> list[Record]:
        found = []
        for file in self.folder.glob("steps-*.jsonl"):
            lines = file.read_text().splitlines(keepends=True)
            found += [Record(**json.loads(line)) for line in lines if line.endswith("\n")]
        return sorted(found, key=lambda one: one.at_s)

    def fault_s(self) -> float | None:
        file = self.folder / FAULT_TIME
        text = file.read_text() if file.exists() else ""
        return float(text) if text else None

    def log_tail(self) -> str:
        texts = [file.read_text(errors="replace") for file in sorted(self.folder.glob("log-*"))]
        return " | ".join(text[-LOG_CHARACTERS:].strip() for text in texts)

    def run(self, ready: int, on_fault: Callable[["PeerJob"], None] | None = None) -> PeerRun:
        """Let `ready` processes begin together, await the fault and then the first step of all ranks.
        `on_fault` restarts what has died, where that is the peer's way."""
        text = f"rank {self.fault.rank} {self.fault.phase} step {self.fault.step}"
        if not self.await_that(lambda: len(list(self.folder.glob("ready-*"))) >= ready, READY_S_MAX):
            return PeerRun(text, lost=f"it did not start: {self.log_tail()}")
        (self.folder / GATE).touch()
        if not self.await_that(self.fault_s, FAULT_S_MAX):
            return PeerRun(text, lost=f"no fault: {self.log_tail()}")
        if on_fault is not None:
            on_fault(self)
        self.await_that(lambda: self._judged(text).full_s is not None, RECOVERY_S_MAX)
        run = self._judged(text)
        return run if run.full_s is not None else PeerRun(text, back_s=run.back_s, lost=self.log_tail())

    def _judged(self, text: str) -> PeerRun:
        fault_s = self.fault_s()
        assert fault_s is not None
        return judge(self.records(), fault_s, text)


def judge(records: Sequence[Record], fault_s: float, text: str) -> PeerRun:
    """What the record says of a fault at `fault_s`. Pure.

    Steps of the life in which the fault came do not count: who had given its gradients before ends them.
    """
    before = [one for one in records if one.at_s < fault_s]
    life = max((one.life for one in before), default=0)
    after = [one for one in records if one.life > life]
    if not after:
        return PeerRun(text)
    full: dict[int, set[int]] = {}
    full_s = None
    for one in after:
        if one.world >= RANKS:
            full.setdefault(one.life, set()).add(one.rank)
            if len(full[one.life]) >= RANKS:
                full_s = one.at_s - fault_s
                break
    known = max((one.step for one in records if one.life <= life), default=-1)
    replayed = max(0, known - min(one.step for one in after) + 1)
    return PeerRun(text, full_s, after[0].at_s - fault_s, replayed)


def _kill(act: Callable[[], object]) -> None:
    try:
        act()
    except ProcessLookupError:
        pass


def _pids_with(text: str) -> list[int]:
    """Processes with `text` in their environment: monitors that have left the group of their parent."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if text.encode() in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
            except OSError:
                continue
    return found
