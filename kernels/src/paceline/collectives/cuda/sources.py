"""The CUDA C++ of the kernels, wherever this installation keeps it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

KERNELS = ("paceline_ring_all_reduce", "paceline_ring_broadcast")
MAIN = "ring.cu"
# Name in an include directive: path in the folder `kernels`.
HEADERS = {
    "counters.cuh": "cuda/counters.cuh",
    "device.cuh": "cuda/device.cuh",
    "stdint.h": "cuda/nvrtc/stdint.h",
    "stddef.h": "cuda/nvrtc/stddef.h",
    "paceline/probe_v1.h": "include/paceline/probe_v1.h",
}


@dataclass(frozen=True)
class Source:
    """One program: its text, the headers that it includes by name, and what all of it hashes to."""

    text: str
    headers: dict[str, str]
    digest: str


def source_folder() -> Path:
    """The folder with `cuda` and `include`; FileNotFoundError where the package came without."""
    packaged = Path(__file__).parent / "source"  # copied there when the wheel was built
    folder = packaged if packaged.is_dir() else Path(__file__).parents[4]
    if not (folder / "cuda" / MAIN).is_file():
        raise FileNotFoundError(f"{folder}/cuda/{MAIN} is missing: install paceline-probe again")
    return folder


def read_source() -> Source:
    folder = source_folder()
    text = (folder / "cuda" / MAIN).read_text()
    headers = {name: (folder / path).read_text() for name, path in HEADERS.items()}
    digest = hashlib.sha256()
    for name, content in sorted({**headers, MAIN: text}.items()):
        digest.update(f"{name}\0{content}\0".encode())
    return Source(text, headers, digest.hexdigest())
