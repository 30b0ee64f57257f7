"""Machine code of the kernels: compiled by NVRTC when first asked for, then taken from disk.

NVRTC needs no GPU. It is reached through CuPy, which looks for it where CUDA, Conda and NVIDIA's wheels
put it. A cached file is named by the hash of all sources, the architecture, the options and the version
of the compiler, so it never has to be invalidated.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import os
import re
import stat
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from paceline.collectives.cuda.sources import MAIN, Source, read_source

OPTIONS = ("--std=c++17",)
CACHED_FILES_MAX = 64  # 32 to 45 kB each
CUBIN_BYTES_MAX = 64 << 20
_ELF = b"\x7fELF"
_ARCHITECTURE = re.compile(r"sm_(\d{2,3})[af]?")
_OLDEST = 70  # system-scope loads and stores


class KernelCompileError(Exception):
    """NVRTC is missing or refuses the source; the message says what to do, or what NVRTC said."""


class Nvrtc(Protocol):
    """What is needed of the compiler."""

    def version(self) -> tuple[int, int]: ...
    def compile(self, source: Source, options: Sequence[str]) -> bytes: ...


class CupyNvrtc:
    """NVRTC through CuPy; KernelCompileError where either is missing."""

    def __init__(self) -> None:
        try:
            self._nvrtc = importlib.import_module("cupy.cuda").nvrtc
            self._version = self._nvrtc.getVersion()
        except Exception as error:  # CuPy raises its own kinds where a library is missing
            raise KernelCompileError(
                f"CuPy with NVRTC was not found ({error}); install paceline-probe[cuda] and nvidia-cuda-nvrtc"
            ) from error

    def version(self) -> tuple[int, int]:
        major, minor = self._version
        return int(major), int(minor)

    def compile(self, source: Source, options: Sequence[str]) -> bytes:
        nvrtc = self._nvrtc
        names = [name.encode() for name in source.headers]
        texts = [text.encode() for text in source.headers.values()]
        program = nvrtc.createProgram(source.text, MAIN, texts, names)
        try:
            nvrtc.compileProgram(program, list(options))
            return bytes(nvrtc.getCUBIN(program))
        except nvrtc.NVRTCError as error:
            raise KernelCompileError(f"{error}: {nvrtc.getProgramLog(program)}") from error
        finally:
            nvrtc.destroyProgram(program)


def cache_folder(environment: dict[str, str] | None = None) -> Path:
    """PACELINE_KERNEL_CACHE, else the user's cache folder."""
    found = os.environ if environment is None else environment
    if named := found.get("PACELINE_KERNEL_CACHE"):
        return Path(named)
    base = found.get("XDG_CACHE_HOME") or str(Path(found.get("HOME") or tempfile.gettempdir()) / ".cache")
    return Path(base) / "paceline" / "kernels"


class KernelCache:
    """Compiled kernels on disk, at most `CACHED_FILES_MAX`, the oldest go first.

    A folder that is missing, full or another user's only means compiling again. Nothing is loaded from a
    file that others may write: it would run with this process's rights on the GPU.
    """

    def __init__(self, folder: Path, nvrtc: Nvrtc, source: Source | None = None) -> None:
        self._folder = folder
        self._nvrtc = nvrtc
        self._source = source or read_source()
        self.compiled = 0

    def cubin(self, architecture: str) -> bytes:
        """Machine code for `architecture` ("sm_90"); ValueError for another name, KernelCompileError."""
        found = _ARCHITECTURE.fullmatch(architecture)
        if found is None or int(found[1]) < _OLDEST:
            raise ValueError(f"architecture is {architecture!r}, expected sm_{_OLDEST} or newer")
        options = (f"--gpu-architecture={architecture}", *OPTIONS)
        path = self._folder / self._name(architecture, options)
        cached = _read_own(path)
        if cached is not None:
            return cached
        made = self._nvrtc.compile(self._source, options)
        self.compiled += 1
        with contextlib.suppress(OSError):
            self._keep(path, made)
        return made

    def _name(self, architecture: str, options: Sequence[str]) -> str:
        major, minor = self._nvrtc.version()
        words = "\0".join((self._source.digest, *options, f"nvrtc {major}.{minor}"))
        return f"{architecture}-{hashlib.sha256(words.encode()).hexdigest()[:32]}.cubin"

    def _keep(self, path: Path, data: bytes) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=self._folder, suffix=".tmp")
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
            os.replace(temporary, path)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
        files = [each for each in self._folder.iterdir() if each.suffix in (".cubin", ".tmp")]
        files.sort(key=lambda each: each.stat().st_mtime, reverse=True)
        for each in files[CACHED_FILES_MAX:]:
            each.unlink(missing_ok=True)


def _read_own(path: Path) -> bytes | None:
    """The file's content where only this user can have written it and it looks whole."""
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            mine = status.st_uid == os.geteuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
            if not mine or not stat.S_ISREG(status.st_mode) or status.st_size > CUBIN_BYTES_MAX:
                return None
            data = file.read()
    except OSError:
        return None
    return data if data.startswith(_ELF) else None
