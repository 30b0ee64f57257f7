"""What the core counts leaves the process, once."""

import pytest

from paceline.localizer import app as app_module
from paceline.localizer.app import LocalizerApp
from paceline.localizer.settings import LocalizerSettings


async def test_decisions_and_losses_are_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[str, int, str]] = []
    monkeypatch.setattr(app_module, "count", lambda name, number, reason: told.append((name, number, reason)))
    app = LocalizerApp(LocalizerSettings())
    app.core.decisions["same"] += 2
    app.core.memory.dropped["health"] += 3
    app.tell_counts()
    app.tell_counts()
    app.core.decisions["same"] += 1
    app.tell_counts()
    assert told == [
        ("paceline.localizer.decisions", 2, "same"),
        ("paceline.localizer.dropped", 3, "health"),
        ("paceline.localizer.decisions", 1, "same"),
    ]
