import logging
from importlib.metadata import entry_points

import pytest

from paceline.trainer import autoload, process


def test_torch_finds_the_entry_point() -> None:
    found = [entry for entry in entry_points(group="torch.backends") if entry.name == "paceline"]
    assert [entry.load() for entry in found] == [autoload.autoload]


def test_nothing_happens_unless_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PACELINE", raising=False)
    monkeypatch.setattr(process, "install", lambda: pytest.fail("installed"))
    autoload.autoload()


@pytest.mark.parametrize(
    "error", [RuntimeError("broken"), ImportError("gone"), SystemExit(3), AssertionError()]
)
def test_an_error_never_breaks_import_torch(
    error: BaseException, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setenv("PACELINE", "1")
    monkeypatch.setattr(process, "install", fail)
    with caplog.at_level(logging.WARNING, "paceline"):
        autoload.autoload()
    assert "training goes on unobserved" in caplog.text
