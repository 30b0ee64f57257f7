"""What processes say when they fail: Python exceptions, CUDA errors, aborts; and who reports their end.

torchelastic's "first observed failure" is the first exit that an agent saw, often a victim's abort.
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from paceline.analysis.adapters.model import LOOK_CHARS, Block, base_of
from paceline.analysis.facts import Fact, Origin, ProcessEnd, ProcessFault, ProcessFaultKind

K = ProcessFaultKind
_FRAMES_MAX = 60
_REPEATED = re.compile(r"traceback\s{0,4}: Traceback \(most recent call last\)")
_RULER = re.compile(r"[-=]{20}")
_FRAME = re.compile(r'File "([^"]+)", line (\d{1,18})(?:, in (\S+))?')
_EXCEPTION = re.compile(
    r"^(?P<type>(?:[A-Za-z_][\w]*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Failure|"
    r"OutOfMemory\w*))(?::\s?(?P<text>.*))?$"
)
_CUDA = (
    (re.compile(r"CUDA out of memory|CUDA error: out of memory|CUDA_ERROR_OUT_OF_MEMORY|"
        r"cudaErrorMemoryAllocation|HIP out of memory"), K.CUDA_MEMORY),
    (re.compile(r"uncorrectable (?:NVLink|ECC)|uncorrectable ECC|cudaErrorECCUncorrectable|"
        r"CUDA_ERROR_ECC_UNCORRECTABLE"), K.CUDA_ECC),
    (re.compile(r"CUDA_ERROR_CONTAINED|cudaErrorContained"), K.CUDA_CONTAINED),
    (re.compile(r"CUDA error: an illegal|CUDA_ERROR_ILLEGAL|CUDA error: misaligned|illegal memory access|"
        r"illegal instruction|device-side assert triggered"), K.CUDA_ILLEGAL),
    (re.compile(r"system not yet initialized|unsupported display driver|CUDA driver version is insufficient|"
        r"no CUDA-capable device|No CUDA GPUs are available|no ROCm-capable device|"
        r"CUDA error: initialization error|CUDA_ERROR_SYSTEM_NOT_READY|CUDA_ERROR_NO_DEVICE|"
        r"forward compatibility was attempted"), K.CUDA_SETUP),
    (re.compile(r"CUDA error: |CUDA_ERROR_[A-Z_]+|cudaError[A-Z]\w+|CUBLAS_STATUS_(?!SUCCESS)\w+|HIP "
        r"error: "), K.CUDA_OTHER),
)  # fmt: skip
_OF_PROGRAM = re.compile(  # the program asked for what the driver does not do; no device failed
    r"operation not permitted|when stream is capturing|stream capture|cudaErrorStreamCapture|invalid argument"
    r"|invalid device ordinal|invalid configuration|invalid resource handle|no kernel image"
    r"|too many resources"
    r"|CUBLAS_STATUS_(?:INVALID_VALUE|NOT_SUPPORTED|NOT_INITIALIZED|ALLOC_FAILED)|no CUDA-capable device"
    r"|driver version is insufficient|peer access is (?:already|not)"
)
_ELASTIC = re.compile(r"^\s*rank\s*:\s*(?P<rank>\d{1,18}) \(local_rank: (?P<local>\d{1,18})\)")
_CODE = re.compile(r"^\s*exitcode\s*:\s*(?P<code>-?\d{1,18}) \(pid: (?P<pid>\d{1,18})\)")
_SPAWNED = re.compile(r"^-- Process (?P<index>\d{1,6}) terminated with the following (?:error|exception):")
_HOSTNAME = re.compile(r"^\s*host\s*:\s*(?P<host>[\w.-]{1,128})")
_SIGNAL = re.compile(r"Signal (?P<number>\d{1,18}) \(SIG\w+\)")
_AGENT = re.compile(
    r"failed \(exitcode: (?P<code>-?\d{1,18})\)(?:,)? local_rank: (?P<local>\d{1,18})(?: \(pid: "
    r"(?P<pid>\d{1,18})\))?"
)


class ProcessFaults:
    """Tracebacks (their last line) and CUDA errors, each once."""

    name = "process errors"
    needles = (
        "Error", "Exception", "CUDA", "cudaError", "CUBLAS", "HIP", "Traceback", "Interrupt", "Fatal Python",
        "Segmentation", "aborted by", "terminated with the following",
    )  # fmt: skip

    def __init__(self) -> None:
        self._told: Origin | None = None  # the line that a traceback above has already given
        self._spawned: tuple[Origin, int] | None = None  # multiprocessing names the process in a line above

    def read(self, block: Block) -> Iterator[Fact]:
        text = block.line.text[:LOOK_CHARS].strip()
        if block.line.origin == self._told:
            return
        if found := _SPAWNED.match(text):
            self._spawned = (block.line.origin, int(found["index"]))
            speaker = replace(block.line.speaker, rank=int(found["index"]))
            yield ProcessEnd(**base_of(block, speaker), exit_code=1, text=text[:500])
            return
        if text[-200:].rstrip().endswith("Traceback (most recent call last):"):
            yield from self._traceback(block)
            return
        kind = cuda_kind(text)
        if kind is None and "aborted by" in text:
            kind = K.ABORTED
        if kind is None and ("Segmentation fault" in text or "Fatal Python error" in text):
            kind = K.SEGFAULT
        if kind is not None and "Watchdog caught collective" not in text:
            yield ProcessFault(**base_of(block), kind=kind, text=text[:500])
        elif (found := _EXCEPTION.match(text)) and "gloo" not in text and "Detected mismatch" not in text:
            yield ProcessFault(**base_of(block), kind=K.EXCEPTION, exception=found["type"], text=text[:500])

    def _traceback(self, block: Block) -> Iterator[Fact]:
        """The frames belong to the exception line, which is read as such; here they are kept for stacks."""
        frames: list[str] = []
        speaker = block.line.speaker
        named = speaker
        if self._spawned and speaker.rank is None and _is_just_before(self._spawned[0], block.line.origin, 2):
            named = replace(speaker, rank=self._spawned[1])
        for line in block.after:
            if line.speaker.rank not in (None, speaker.rank) or line.speaker.pid not in (None, speaker.pid):
                continue  # other ranks write between
            text = line.text[:LOOK_CHARS].strip()
            if found := _FRAME.search(text):
                frames.append(f"{found[1]}:{found[2]} {found[3] or ''}".strip())
            elif found := _EXCEPTION.match(text):
                kind = cuda_kind(text) or K.EXCEPTION
                self._told = line.origin
                yield ProcessFault(
                    **base_of(block, named), kind=kind, exception=found["type"], text=text[:500],
                    frames=tuple(frames[-_FRAMES_MAX:]),
                )  # fmt: skip
                return


class ProcessEnds:
    """torchelastic's report and its agent's lines."""

    name = "process ends"
    needles = ("(local_rank: ", "failed (exitcode", "host  ", "first observed failure")

    def __init__(self) -> None:
        self._host: tuple[Origin, str] | None = None  # it stands in the line above the rank
        self._root: Origin | None = None

    def read(self, block: Block) -> Iterator[Fact]:
        text = block.line.text[:LOOK_CHARS]
        if "first observed failure" in text:
            self._root = block.line.origin
        elif found := _HOSTNAME.match(text):
            self._host = (block.line.origin, found["host"])
        elif _ELASTIC.match(text):
            end = self._elastic(block)
            yield end
            yield from _raised(block, end)
        elif found := _AGENT.search(text):
            base = base_of(block)
            pid = int(found["pid"]) if found["pid"] else None
            base["speaker"] = replace(base["speaker"], local_rank=int(found["local"]), pid=pid, rank=None)
            yield ProcessEnd(**base, **_ending(int(found["code"])), text=text[:500])

    def _elastic(self, block: Block) -> ProcessEnd:
        found = _ELASTIC.match(block.line.text[:LOOK_CHARS])
        code = signal = pid = None
        for line in list(block.after)[:6]:
            if _ELASTIC.match(line.text[:LOOK_CHARS]):
                break
            if exit_ := _CODE.match(line.text[:LOOK_CHARS]):
                code, pid = int(exit_["code"]), int(exit_["pid"])
            if killed := _SIGNAL.search(line.text[:LOOK_CHARS]):
                signal = int(killed["number"])
        base = base_of(block)
        rank, local = (int(found["rank"]), int(found["local"])) if found else (None, None)
        here = block.line.origin
        host = (
            self._host[1] if self._host and _is_just_before(self._host[0], here, 2) else base["speaker"].host
        )
        base["speaker"] = replace(base["speaker"], rank=rank, local_rank=local, pid=pid, host=host)
        first = self._root is not None and _is_just_before(self._root, here, 5)
        ending = _ending(code) if code is not None else {}
        if signal is not None:
            ending["signal"] = signal
        return ProcessEnd(**base, **ending, called_first=first, text=block.line.text[:500])


def _raised(block: Block, end: ProcessEnd) -> Iterator[Fact]:
    """The exception that an elastic report repeats from the worker's error file."""
    lines = [line.text[:LOOK_CHARS].strip() for line in list(block.after)[:_FRAMES_MAX]]
    begin = next((at for at, text in enumerate(lines[:6]) if _REPEATED.match(text)), None)
    if begin is None:
        return
    frames: list[str] = []
    for text in lines[begin + 1 :]:
        if _RULER.match(text) or _ELASTIC.match(text):
            return
        if found := _FRAME.search(text):
            frames.append(f"{found[1]}:{found[2]} {found[3] or ''}".strip())
        elif found := _EXCEPTION.match(text):
            yield ProcessFault(
                **{**base_of(block), "speaker": end.speaker}, kind=cuda_kind(text) or K.EXCEPTION,
                exception=found["type"], text=text[:500], frames=tuple(frames),
            )  # fmt: skip
            return


def _is_just_before(origin: Origin, here: Origin, lines: int) -> bool:
    return origin.file == here.file and 0 < here.line - origin.line <= lines


def cuda_kind(text: str) -> ProcessFaultKind | None:
    """Which CUDA error a line reports, None where none."""
    kind = next((kind for pattern, kind in _CUDA if pattern.search(text)), None)
    return K.EXCEPTION if kind is K.CUDA_OTHER and _OF_PROGRAM.search(text) else kind


def _ending(code: int) -> dict[str, Any]:
    return {"exit_code": code, "signal": -code if code < 0 else None, "clean": code == 0}
