"""The C++ compiles without a warning, and other programs can use its C ABI."""

from __future__ import annotations

import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SOURCES = [
    path
    for folder in ("native", "nccl", "bench")
    for path in sorted((ROOT / "kernels" / folder).glob("*.cc"))
]
HEADERS = [path for folder in ("native", "nccl") for path in sorted((ROOT / "kernels" / folder).glob("*.h"))]
HARMLESS = ("-Wno-missing-field-initializers", "-Wno-cast-function-type")


@pytest.mark.parametrize("compiler", ["g++", "clang++"])
def test_sources_compile_without_a_warning(compiler: str) -> None:
    if shutil.which(compiler) is None:
        assert compiler != "g++", "g++ is part of the toolchain this project needs"
        pytest.skip(f"{compiler} is not installed")
    command = [compiler, "-std=c++17", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", *HARMLESS]
    includes = [f"-I{ROOT}/kernels/{folder}" for folder in ("include", "native", "nccl", "nccl_shim")]
    includes.append(f"-I{sysconfig.get_path('include')}")
    done = subprocess.run(
        [*command, "-DPy_LIMITED_API=0x030A0000", *includes, *map(str, SOURCES)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_abi_header_is_plain_c(tmp_path: Path) -> None:
    source = tmp_path / "user.c"
    source.write_text(
        '#include "paceline/page_v1.h"\n'
        "int main(void) { return paceline_mix64_v1(1) == 0x5692161d100b05e5u ? 0 : 1; }\n"
    )
    target = tmp_path / "user"
    command = ["gcc", "-std=c11", "-Wall", "-Wextra", "-Werror", f"-I{ROOT}/kernels/include", str(source)]
    subprocess.run([*command, "-o", str(target)], check=True, capture_output=True)
    assert subprocess.run([target], check=False).returncode == 0


@pytest.mark.parametrize("path", [*SOURCES, *HEADERS], ids=lambda p: f"{p.parent.name}/{p.name}")
def test_native_file_stays_short(path: Path) -> None:
    lines = path.read_text().splitlines()
    assert len(lines) <= 300
    assert max(map(len, lines)) <= 120
