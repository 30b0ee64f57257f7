from pathlib import Path

import pytest

from paceline.runtime.local import HOME_VARIABLE, find_bootstrap, home_directory, leave_bootstrap


def test_the_agent_finds_what_the_platform_left(tmp_path: Path) -> None:
    leave_bootstrap(tmp_path, "127.0.0.1:27666")
    assert find_bootstrap({HOME_VARIABLE: str(tmp_path)}) == "127.0.0.1:27666"


@pytest.mark.parametrize("content", [None, b"", b"\n", b"\xff\xfe"])
def test_nothing_to_find(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "bootstrap").write_bytes(content)
    assert find_bootstrap({HOME_VARIABLE: str(tmp_path)}) is None


def test_where_the_home_is(tmp_path: Path) -> None:
    assert home_directory({"XDG_DATA_HOME": str(tmp_path)}) == tmp_path / "paceline"
    assert home_directory({HOME_VARIABLE: str(tmp_path / "mine")}) == tmp_path / "mine"
