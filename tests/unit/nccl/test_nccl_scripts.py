"""Every script is driven, and in both builds."""

import importlib
import inspect
from pathlib import Path

import pytest

from tests.unit.nccl.conftest import races_in
from tests.unit.nccl.scripts import LETTERS, SCRIPTS


@pytest.mark.parametrize("letter", LETTERS)
def test_each_letter_has_a_test_that_drives_the_plugin(letter: str) -> None:
    what, tests = SCRIPTS[letter]
    assert what
    assert tests
    for module, name in tests:
        test = getattr(importlib.import_module(f"tests.unit.nccl.{module}"), name)
        assert "start_nccl" in inspect.signature(test).parameters


def test_no_letter_is_beside_the_list() -> None:
    assert sorted(SCRIPTS) == list(LETTERS)


def test_builds_are_two(builds: list[str]) -> None:
    assert builds == ["normal", "sanitized"]


def test_a_report_of_the_sanitizer_is_found(tmp_path: Path) -> None:
    assert races_in(tmp_path) == ""
    (tmp_path / "tsan.77").write_text("WARNING: ThreadSanitizer: data race (pid=77)\n")
    assert "data race" in races_in(tmp_path)
