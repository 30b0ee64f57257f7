"""NVRTC for three generations of GPUs, and the files that keep its answers."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from paceline.collectives.cuda.compiler import (
    CACHED_FILES_MAX,
    CupyNvrtc,
    KernelCache,
    KernelCompileError,
    cache_folder,
)
from paceline.collectives.cuda.sources import KERNELS, Source, read_source

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

pytest.importorskip("cupy")
SOURCE = Source("text", {"a.h": "b"}, "digest")


class CountingNvrtc:
    def __init__(self, version: tuple[int, int] = (13, 0)) -> None:
        self.calls: list[tuple[str, ...]] = []
        self._version = version

    def version(self) -> tuple[int, int]:
        return self._version

    def compile(self, source: Source, options: Sequence[str]) -> bytes:
        self.calls.append(tuple(options))
        return b"\x7fELF" + source.text.encode()


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90", "sm_100"])
def test_kernels_compile_without_a_gpu(tmp_path: Path, architecture: str) -> None:
    cache = KernelCache(tmp_path, CupyNvrtc())
    cubin = cache.cubin(architecture)
    assert cubin.startswith(b"\x7fELF")
    assert all(re.search(rb"\.text\." + name.encode() + rb"\0", cubin) for name in KERNELS)
    assert cache.cubin(architecture) == cubin
    assert cache.compiled == 1


def test_wrong_source_is_refused_with_the_compilers_words(tmp_path: Path) -> None:
    real = read_source()
    wrong = Source(real.text + "\nint oops(", real.headers, "other")
    with pytest.raises(KernelCompileError, match=r"ring\.cu\(\d+\): error"):
        KernelCache(tmp_path, CupyNvrtc(), wrong).cubin("sm_90")
    assert not list(tmp_path.iterdir())


def test_layout_that_differs_is_refused(tmp_path: Path) -> None:
    """The device code asserts every offset of the page."""
    real = read_source()
    moved = real.headers["paceline/probe_v1.h"].replace("uint64_t gpu_arrive;", "uint64_t extra, gpu_arrive;")
    wrong = Source(real.text, {**real.headers, "paceline/probe_v1.h": moved}, "other")
    with pytest.raises(KernelCompileError, match="static assertion"):
        KernelCache(tmp_path, CupyNvrtc(), wrong).cubin("sm_90")


def test_file_is_taken_only_for_the_same_source_architecture_and_compiler(tmp_path: Path) -> None:
    first = CountingNvrtc()
    KernelCache(tmp_path, first, SOURCE).cubin("sm_90")
    KernelCache(tmp_path, first, SOURCE).cubin("sm_90")
    assert len(first.calls) == 1
    assert "--gpu-architecture=sm_90" in first.calls[0]
    for nvrtc, source, architecture in (
        (CountingNvrtc((13, 1)), SOURCE, "sm_90"),
        (CountingNvrtc(), Source("text", {}, "other"), "sm_90"),
        (CountingNvrtc(), SOURCE, "sm_100"),
    ):
        KernelCache(tmp_path, nvrtc, source).cubin(architecture)
        assert len(nvrtc.calls) == 1


def test_cut_file_and_file_of_others_are_compiled_again(tmp_path: Path) -> None:
    nvrtc = CountingNvrtc()
    cache = KernelCache(tmp_path, nvrtc, SOURCE)
    cache.cubin("sm_90")
    (path,) = tmp_path.iterdir()
    path.write_bytes(b"")
    assert cache.cubin("sm_90").startswith(b"\x7fELF")
    path.chmod(0o666)
    cache.cubin("sm_90")
    assert len(nvrtc.calls) == 3
    assert path.stat().st_mode & 0o777 == 0o600


def test_folder_is_bounded_and_may_be_missing(tmp_path: Path) -> None:
    nvrtc = CountingNvrtc()
    folder = tmp_path / "kernels"
    for number in range(CACHED_FILES_MAX + 5):
        KernelCache(folder, nvrtc, Source("text", {}, str(number))).cubin("sm_90")
    assert len(list(folder.iterdir())) == CACHED_FILES_MAX
    assert folder.stat().st_mode & 0o077 == 0
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert KernelCache(blocked / "in", nvrtc, SOURCE).cubin("sm_90").startswith(b"\x7fELF")


@pytest.mark.parametrize("name", ["sm_60", "compute_90", "sm_90 -G", ""])
def test_architecture_that_is_none_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="expected sm_70 or newer"):
        KernelCache(tmp_path, CountingNvrtc(), SOURCE).cubin(name)


def test_cache_folder_is_the_users() -> None:
    assert str(cache_folder({"HOME": "/h"})) == "/h/.cache/paceline/kernels"
    assert str(cache_folder({"XDG_CACHE_HOME": "/x", "HOME": "/h"})) == "/x/paceline/kernels"
    assert str(cache_folder({"PACELINE_KERNEL_CACHE": "/k"})) == "/k"
