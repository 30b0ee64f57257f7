"""The layout table, the C header and the numpy dtypes say the same."""

import shutil
import subprocess
from pathlib import Path

import pytest

from paceline.contracts import dtypes, layout
from paceline.contracts.c_header import build_header

ROOT = Path(__file__).parents[3]
PAIRS = [
    (layout.PROCESS, dtypes.PROCESS_DTYPE),
    (layout.FRAME, dtypes.FRAME_DTYPE),
    (layout.ROUND, dtypes.ROUND_DTYPE),
    (layout.ROUND_TIMES, dtypes.ROUND_TIMES_DTYPE),
    (layout.EDGE, dtypes.EDGE_DTYPE),
    (layout.PEER, dtypes.PEER_DTYPE),
    (layout.CONTROL, dtypes.CONTROL_DTYPE),
]
# docs/adr/0003-probe-pages.md: offsets other programs rely on; a change here is a new version.
FRAME_OFFSETS = {
    "magic": 0, "lock": 8, "comm": 16, "round": 64, "function": 80, "signature": 112,
    "entered_ns": 128, "head_round": 168, "started": 192, "completed": 208, "send_count": 224,
    "progress_ns": 312, "send_wait_ns": 320, "recv_wait_ns": 352, "channel": 384, "gpu_arrive": 1152,
}  # fmt: skip


@pytest.mark.parametrize(("table", "dtype"), PAIRS, ids=lambda value: getattr(value, "name", ""))
def test_dtype_has_the_offsets_of_the_table(table: layout.Layout, dtype: object) -> None:
    fields = getattr(dtype, "fields")  # noqa: B009
    assert getattr(dtype, "itemsize") == table.size  # noqa: B009
    assert {field.name: field.offset for field in table.fields} == {
        name: entry[1] for name, entry in fields.items()
    }


def test_frame_is_1184_bytes_at_a_stride_of_1216() -> None:
    assert layout.FRAME.size == 1184
    assert layout.FRAME_STRIDE == 1216
    assert {name: layout.FRAME.field(name).offset for name in FRAME_OFFSETS} == FRAME_OFFSETS


def test_detail_block_holds_what_it_must() -> None:
    used = layout.PEERS_IN_DETAIL + layout.PEER.size * layout.PEERS_MAX
    assert used <= layout.DETAIL_STRIDE
    assert layout.DETAIL_STRIDE % 4096 == 0
    assert layout.ROUNDS_MAX == 256


def test_layout_that_does_not_fill_its_size_is_refused() -> None:
    with pytest.raises(ValueError, match="fills 4 bytes, expected 8"):
        layout._layout("short", 8, "", ("a", "u4", 1, ""))
    with pytest.raises(ValueError, match="not aligned"):
        layout._layout("crooked", 12, "", ("a", "u4", 1, ""), ("b", "u8", 1, ""))


def test_committed_header_is_the_generated_one() -> None:
    committed = (ROOT / "kernels/include/paceline/probe_v1.h").read_text()
    assert committed == build_header(), "run python -m paceline.contracts.c_header"


@pytest.mark.parametrize("compiler", ["gcc", "g++"])
def test_header_compiles_with_its_assertions(compiler: str, tmp_path: Path) -> None:
    assert shutil.which(compiler), f"{compiler} is part of the toolchain this project needs"
    source = tmp_path / ("a.c" if compiler == "gcc" else "a.cc")
    source.write_text('#include "probe_v1.h"\n')
    command = [
        compiler,
        "-Wall",
        "-Werror",
        "-fsyntax-only",
        f"-I{ROOT}/kernels/include/paceline",
        str(source),
    ]
    subprocess.run(command, check=True, capture_output=True)
