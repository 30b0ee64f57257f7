"""What tools say of GPUs that are not well: nvidia-smi, `dcgmi`; and processes that the kernel finds blocked.

Settings: `gpu_lost`, `gpu_unreadable`, `nvlink_down` ("link 5"), `nvlink_up` (once a GPU), `health_failure`
(the system that failed), `task_blocked` (the kernel's word on a process, `speaker.pid`), `boot`.
`speaker.gpu` is an address, `speaker.local_rank` an index.
"""

import re
from collections.abc import Iterator
from dataclasses import replace

from paceline.analysis.adapters.kernel_log import normal_pci
from paceline.analysis.adapters.model import LOOK_CHARS, Block, base_of
from paceline.analysis.facts import Fact, ProcessEnd, SettingSeen

_LOST = re.compile(
    r"Unable to determine the device handle for GPU ?(?P<pci>[\da-fA-F]{4,8}:[\da-fA-F]{2}:[\da-fA-F]{2}"
    r"(?:\.[\da-fA-F])?)|GPU (?:at )?(?:PCI:)?(?P<other>[\da-fA-F]{4,8}:[\da-fA-F]{2}:[\da-fA-F]{2}"
    r"(?:\.[\da-fA-F])?).{0,40}is lost"
)
_ROW = re.compile(
    r"^\|\s{1,5}(?P<index>\d{1,3})\s{1,4}\S.{0,80}\|\s{1,5}"
    r"(?P<pci>[\da-fA-F]{8}:[\da-fA-F]{2}:[\da-fA-F]{2}\.\d) "
)
_DIAG = re.compile(
    r"^\|\s*(?P<test>[\w /-]{2,40}?)\s*\|\s*Fail - GPUs?: (?P<gpus>\d{1,3}(?:, ?\d{1,3}){0,31})"
)
_DIAG_ONE = re.compile(r"^\|\s*\|\s*GPU(?P<gpu>\d{1,3}): Fail\b")
_GPU = re.compile(r"^\s*(?:GPU (?P<index>\d{1,3}): |gpuId (?P<dcgm>\d{1,3}):)")
_DOWN = re.compile(r"^\s*Link (?P<link>\d{1,3}): <?inactive>?", re.IGNORECASE)
_UP = re.compile(r"^\s*Link \d{1,3}: \d")
_LETTERS = re.compile(r"^\s*(?P<links>[UDX_](?: [UDX_]){1,40})\s*$")
_HEALTH_GPU = re.compile(
    r"^\|\s*(?:->)?\s*(?:GPU )?(?P<gpu>\d{1,3})\s*\|\s*(?P<result>Failure|Warning|Healthy)\s*\|"
)
_HEALTH_WORD = re.compile(r"^\|[^|]*\|\s*(?P<text>[^|]{8,200}?)\s*\|")
_BLOCKED = re.compile(r"INFO: task (?P<name>[^:]{1,64}):(?P<pid>\d{1,9}) blocked for more than \d+ seconds")
_CORRUPT = re.compile(r"Killing (?P<name>[^:]{1,64}):(?P<pid>\d{1,9}) due to hardware memory corruption")
_LOCKUP = re.compile(r"soft lockup - CPU#\d+ stuck for \d+s! \[(?P<name>[^:\]]{1,64}):(?P<pid>\d{1,9})\]")


class DeviceHealth:
    """Lines of nvidia-smi, `nvidia-smi nvlink -s`, `dcgmi nvlink -s` and `dcgmi health -c`."""

    name = "device health"
    needles = (
        "device handle for GPU",
        "is lost",
        "GPU ",
        "gpuId ",
        "Link ",
        "U U",
        "U D",
        "D U",
        "D D",
        "Failure",
        "Warning",
        "Health",
        "ERR!",
        "Fail",
    )

    def __init__(self) -> None:
        self._file, self._line, self._gpu, self._in_health = "", 0, -1, False
        self._up: set[int] = set()

    def read(self, block: Block) -> Iterator[Fact]:
        origin, text = block.line.origin, block.line.text[:LOOK_CHARS]
        if origin.file != self._file or origin.line < self._line:
            self._gpu, self._in_health = -1, False
            self._up.clear()
        self._file, self._line = origin.file, origin.line
        if found := _LOST.search(text):
            base = base_of(block)
            base["speaker"] = replace(base["speaker"], gpu=normal_pci(found["pci"] or found["other"]))
            yield SettingSeen(**base, name="gpu_lost", value="lost", text=text.strip()[:300])
        elif "ERR!" in text and (found := _ROW.match(text)):
            base = base_of(block)
            base["speaker"] = replace(base["speaker"], gpu=normal_pci(found["pci"]), rank=None)
            yield SettingSeen(**base, name="gpu_unreadable", value="ERR!", text=text.strip()[:300])
        elif found := _DIAG.match(text) or _DIAG_ONE.match(text):
            yield from self._diag(block, found)
        elif found := _GPU.match(text):
            self._gpu = int(found["index"] or found["dcgm"])
        elif "Health" in text and text.startswith("|"):
            self._in_health = True
        elif text.startswith("|") and self._in_health:
            yield from self._health(block, text)
        elif self._gpu >= 0:
            yield from self._links(block, text)

    def _diag(self, block: Block, found: re.Match[str]) -> Iterator[Fact]:
        fields = found.groupdict()
        for gpu in re.findall(r"\d+", fields.get("gpus") or fields.get("gpu") or ""):
            base = base_of(block)
            base["speaker"] = replace(base["speaker"], local_rank=int(gpu), rank=None)
            text = f"{fields.get('test') or 'diagnostic'} fails"
            yield SettingSeen(**base, name="health_failure", value=text, text=block.line.text.strip()[:300])

    def _links(self, block: Block, text: str) -> Iterator[Fact]:
        if "all links are inActive" in text:
            base = base_of(block)
            base["speaker"] = replace(base["speaker"], local_rank=self._gpu, rank=None)
            yield SettingSeen(**base, name="nvlink_down", value="all links", text=text.strip()[:300])
        down = [int(found["link"])] if (found := _DOWN.match(text)) else []
        if found := _LETTERS.match(text):
            down = [at for at, letter in enumerate(found["links"].split()) if letter == "D"]
        base = base_of(block)
        base["speaker"] = replace(base["speaker"], local_rank=self._gpu, rank=None)
        if not down and self._gpu not in self._up and (_UP.match(text) or " U" in f" {text.strip()}"[:2]):
            self._up.add(self._gpu)
            yield SettingSeen(**base, name="nvlink_up", value="up", text=text.strip()[:300])
        for link in down:
            yield SettingSeen(**base, name="nvlink_down", value=f"link {link}", text=text.strip()[:300])

    def _health(self, block: Block, text: str) -> Iterator[Fact]:
        found = _HEALTH_GPU.match(text)
        if not found or found["result"] == "Healthy":
            return
        words = []
        for line in list(block.after)[:16]:
            if _HEALTH_GPU.match(line.text[:LOOK_CHARS]) or not line.text.startswith("|"):
                break
            if word := _HEALTH_WORD.match(line.text[:LOOK_CHARS]):
                words.append(word["text"])
        base = base_of(block)
        base["speaker"] = replace(base["speaker"], local_rank=int(found["gpu"]), rank=None)
        yield SettingSeen(**base, name="health_failure", value=found["result"], text=" ".join(words)[:300])


class BlockedTasks:
    """`INFO: task python:4107 blocked for more than 122 seconds`, soft lockups, boots, memory that failed."""

    name = "kernel tasks"
    needles = ("blocked for more than", "soft lockup", "Linux version ", "hardware memory corruption")

    def read(self, block: Block) -> Iterator[Fact]:
        text = block.line.text[:LOOK_CHARS]
        if text.startswith("Linux version "):
            yield SettingSeen(**base_of(block), name="boot", value=text[:80], text=text[:200])
        elif found := _CORRUPT.search(text):
            base = base_of(block)
            base["speaker"] = replace(base["speaker"], pid=int(found["pid"]), rank=None)
            yield ProcessEnd(**base, signal=7, text=text.strip()[:300])
        elif found := _BLOCKED.search(text) or _LOCKUP.search(text):
            base = base_of(block)
            base["speaker"] = replace(base["speaker"], pid=int(found["pid"]), rank=None)
            yield SettingSeen(**base, name="task_blocked", value=found["name"], text=text.strip()[:300])
