"""The bench of the shim measures what it says: both ways to the library, with and without rounds."""

from pathlib import Path

import pytest

from tests.bench.nccl_shim_cost import MODES, build, describe, play

REPEATS = 3


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("cost"))


def test_every_pair_has_both_ways(program: Path, shim_built: Path) -> None:
    shim = shim_built / "shim.so"
    found = {mode: play(program, shim, mode, REPEATS, 400) for mode in MODES}
    for pairs in found.values():
        assert {name: len(rows) for name, rows in pairs.items()} == {
            "all_reduce": REPEATS,
            "messages": REPEATS,
        }
    # To write a round down takes longer than to hand a call on, on any machine.
    observing, forwarding = (
        min(through for _, through in found[mode]["all_reduce"]) for mode in ("observing", "only_forwarding")
    )
    assert observing > forwarding


def test_without_the_shim_nothing_is_measured(program: Path, shim_built: Path) -> None:
    with pytest.raises(SystemExit, match="the shim is not preloaded"):
        play(program, shim_built / "libnccl.so.2", "observing", 1, 4)


def test_what_is_added_is_taken_pair_by_pair() -> None:
    described = describe({"all_reduce": [(1.0, 11.0), (5.0, 16.0), (2.0, 12.0)]})
    assert described["all_reduce"]["added"]["median_ns"] == 10.0  # type: ignore[index]
