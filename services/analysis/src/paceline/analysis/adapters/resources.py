"""Resources of a host that ran out while NCCL or a process set itself up, as settings `resource_out`.

Values: `shared memory`, `locked memory`, `open files`, `threads`. NCCL's `errno 12` on a memory region is the
limit of locked memory, not the host's memory.
"""

import re
from collections.abc import Iterator

from paceline.analysis.adapters.model import LOOK_CHARS, Block
from paceline.analysis.adapters.nccl_log import device_base
from paceline.analysis.facts import Fact, SettingSeen

_KINDS = (
    ("shared memory", re.compile(
        r"(?<!\w)/dev/shm\b.{0,200}(?:No space left|[Nn]ot enough space)|failed to extend /dev/shm/"
        r"|(?:shared memory segment|shm).{0,200}No space left on device"
    )),
    ("locked memory", re.compile(
        r"ibv_(?:reg_mr|reg_dmabuf_mr|create_qp|create_cq|open_device)\w*.{0,60}Cannot allocate memory"
        r"|RLIMIT_MEMLOCK"
    )),
    ("open files", re.compile(r"(?:NCCL WARN|socket|Call to).{0,200}Too many open files")),
    ("threads", re.compile(
        r"pthread_create.{0,120}(?:Resource temporarily unavailable|failed.{0,20}\b11\b)"
    )),
)  # fmt: skip


class ResourceLimits:
    """At most one fact for each line."""

    name = "resources"
    needles = ("dev/shm", "No space left", "ibv_", "MEMLOCK", "Too many open files", "pthread_create")

    def read(self, block: Block) -> Iterator[Fact]:
        text = block.line.text[:LOOK_CHARS]
        for value, pattern in _KINDS:
            if pattern.search(text):
                words = text.strip()[:300]
                yield SettingSeen(**device_base(block), name="resource_out", value=value, text=words)
                return
