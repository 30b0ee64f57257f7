"""The reader of NVML as a child: killed when it does not answer, started again with a bounded backoff.

A GPU whose system processor (GSP) is dead blocks every call about it for ever, and a child in such a call
cannot always be killed. So a GPU that did not answer is left out for a while, and the number of children
that would not die is bounded. Nothing here waits for a child longer than its time.
"""

import asyncio
import contextlib
import json
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from paceline.agent.findings import Found
from paceline.agent.gpu_health import GpuSample
from paceline.contracts.registry import HealthKind
from paceline.runtime.clock import Clock
from paceline.runtime.logging import get_logger

GPUS_MAX = 64
LINE_BYTES_MAX = 64 << 10
BACKOFF_S_MIN = 1.0
BACKOFF_S_MAX = 300.0
HEALTHY_S = 60.0  # a reader that answered for so long starts the backoff anew
LEFT_OUT_S = 600.0  # how long a GPU that did not answer is not asked
STUCK_MAX = 4  # children that a driver holds: then no further one is started
REAP_S = 2.0
_SAMPLE_FIELDS = tuple(GpuSample.__dataclass_fields__)
log = get_logger(__name__)


class ReaderEnd(str, Enum):
    """Why a reader ended, or was ended."""

    NO_DRIVER = "no_driver"  # normal on a machine without a GPU
    SAID_ERROR = "said_error"
    NO_ANSWER = "no_answer"
    UNREADABLE = "unreadable"
    EXITED = "exited"
    CANNOT_START = "cannot_start"
    GPU_DUE = "gpu_due"  # to ask a GPU again that was left out


@dataclass(frozen=True)
class GpuName:
    index: int
    name: str
    pci: str


@dataclass
class GpuState:
    """What is known of the GPUs of this node; `names` by index."""

    names: dict[int, GpuName] = field(default_factory=dict)
    pids: dict[int, int] = field(default_factory=dict)  # pid: index
    silent: dict[int | None, float] = field(default_factory=dict)  # None: NVML as a whole; since, monotonic s


def next_backoff_s(now_s: float, end: ReaderEnd, lived_s: float) -> float:
    """Seconds until the next start; a reader that lived long begins anew, a machine without GPUs is asked
    seldom."""
    if end is ReaderEnd.GPU_DUE:
        return 0.0
    if end is ReaderEnd.NO_DRIVER:
        return BACKOFF_S_MAX
    if lived_s >= HEALTHY_S or now_s <= 0:
        return BACKOFF_S_MIN
    return min(now_s * 2, BACKOFF_S_MAX)


class GpuWatch:
    """Runs readers for as long as it is not cancelled; never raises otherwise."""

    def __init__(
        self,
        clock: Clock,
        on_sample: Callable[[int, GpuSample], None],
        on_found: Callable[[Found], None],
        *,
        interval_s: float,
        timeout_s: float,
        command: tuple[str, ...] = (),
    ) -> None:
        self.state = GpuState()
        self.ends: Counter[str] = Counter()
        self.stuck: list[asyncio.subprocess.Process] = []
        self._clock = clock
        self._on_sample = on_sample
        self._on_found = on_found
        self._interval_s = interval_s
        self._timeout_s = timeout_s
        self._command = command or (sys.executable, "-m", "paceline.agent.gpu_reader")

    async def run(self) -> None:
        backoff_s = 0.0
        while True:
            self.stuck = [child for child in self.stuck if child.returncode is None]
            if len(self.stuck) >= STUCK_MAX:
                self.ends["stuck"] += 1
                await self._clock.sleep(BACKOFF_S_MAX)
                continue
            began_s = self._now_s()
            end = await self._run_once()
            self.ends[end.value] += 1
            if end is not ReaderEnd.NO_DRIVER:
                log.warning("gpu_reader_ended", reason=end.value, silent=len(self.state.silent))
            backoff_s = next_backoff_s(backoff_s, end, self._now_s() - began_s)
            await self._clock.sleep(backoff_s)

    def _now_s(self) -> float:
        return self._clock.monotonic_ns() / 1e9

    def _left_out(self) -> list[int]:
        now_s = self._now_s()
        return sorted(
            gpu for gpu, at in self.state.silent.items() if gpu is not None and now_s - at < LEFT_OUT_S
        )

    async def _run_once(self) -> ReaderEnd:
        left_out = self._left_out()
        words = [*self._command, "--interval-s", f"{self._interval_s:g}"]
        for gpu in left_out:
            words += ["--skip", str(gpu)]
        try:
            child = await asyncio.create_subprocess_exec(
                *words, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL, limit=LINE_BYTES_MAX,
            )  # fmt: skip
        except OSError:
            return ReaderEnd.CANNOT_START
        try:
            return await self._read(child, bool(left_out))
        finally:
            await self._end(child)

    async def _read(self, child: asyncio.subprocess.Process, has_left_out: bool) -> ReaderEnd:
        assert child.stdout is not None
        asking: int | None = None
        waits_s = self._timeout_s  # Python starts within it, too
        while True:
            try:
                async with asyncio.timeout(waits_s):
                    line = await child.stdout.readline()
                told = json.loads(line) if line else None
                if told is None:
                    return ReaderEnd.EXITED
                kind = told["kind"]
                if kind == "end":
                    no_driver = told.get("status") == ReaderEnd.NO_DRIVER.value
                    return ReaderEnd.NO_DRIVER if no_driver else ReaderEnd.SAID_ERROR
                asking = self._take(kind, told, asking)
            except TimeoutError:
                self._silent(asking, f"NVML gives no answer within {waits_s:g} s")
                return ReaderEnd.NO_ANSWER
            except (ValueError, KeyError, TypeError, AttributeError):
                return ReaderEnd.UNREADABLE
            waits_s = self._timeout_s + (self._interval_s if kind in ("round", "xid") else 0.0)
            if kind == "round" and has_left_out and len(self._left_out()) < self._silent_gpus:
                return ReaderEnd.GPU_DUE

    @property
    def _silent_gpus(self) -> int:
        return sum(gpu is not None for gpu in self.state.silent)

    def _take(self, kind: str, told: dict[str, Any], asking: int | None) -> int | None:
        """One line of the reader; the GPU that it asks from then on."""
        gpu = told.get("gpu")
        if gpu is not None and not (isinstance(gpu, int) and 0 <= gpu < GPUS_MAX):
            raise ValueError("no index of a GPU")
        if kind == "asking":
            return gpu
        if kind == "hello":
            self._greet(told)
        elif kind == "sample" and gpu is not None:
            self._answers(gpu)
            self.state.pids = {pid: at for pid, at in self.state.pids.items() if at != gpu}
            self.state.pids.update({int(pid): gpu for pid in list(told.get("pids") or ())[:GPUS_MAX]})
            self._on_sample(gpu, GpuSample(**{name: _number(told.get(name)) for name in _SAMPLE_FIELDS}))
        elif kind == "lost":
            self._silent(gpu, f"NVML says: {str(told.get('detail'))[:200]}")
        elif kind == "xid":
            words = "critical Xid, as NVML tells it"
            self._on_found(Found(HealthKind.XID, "nvml_xid", words, gpu=gpu, code=_number(told["code"])))
        return None if kind == "round" else asking

    def _greet(self, told: dict[str, Any]) -> None:
        for each in told["gpus"][:GPUS_MAX]:
            texts = {key: str(each[key])[:128] for key in ("name", "pci")}
            self.state.names[int(each["index"])] = GpuName(int(each["index"]), **texts)
        names = [gpu.name for gpu in self.state.names.values()]
        log.info("gpus", driver=str(told["driver"])[:64], names=names)
        self._answers(None)

    def _silent(self, gpu: int | None, words: str) -> None:
        is_new = gpu not in self.state.silent
        self.state.silent[gpu] = self._now_s()
        if is_new:
            self._on_found(Found(HealthKind.GPU_SILENT, ReaderEnd.NO_ANSWER.value, words, gpu=gpu))

    def _answers(self, gpu: int | None) -> None:
        if self.state.silent.pop(gpu, None) is not None:
            self._on_found(Found(HealthKind.GPU_ANSWERS, "answers", "NVML answers again", gpu=gpu))

    async def _end(self, child: asyncio.subprocess.Process) -> None:
        if child.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                child.kill()
        try:
            async with asyncio.timeout(REAP_S):
                await child.wait()
        except TimeoutError:
            self.stuck.append(child)


def _number(value: object) -> int | None:
    """An integer that a record can hold; None for anything else."""
    is_number = isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 53
    return value if is_number else None  # type: ignore[return-value]
