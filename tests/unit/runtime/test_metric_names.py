"""Every declared metric is emitted by some code: a dashboard on a name that nobody writes shows silence."""

from pathlib import Path
from typing import get_args

import pytest

from paceline.runtime import metrics

ROOT = Path(__file__).parents[3]
NAMES = [
    name
    for names in (metrics.CounterName, metrics.GaugeName, metrics.HistogramName)
    for name in get_args(names)
]


@pytest.fixture(scope="module")
def emitting_code() -> str:
    sources = [
        path for room in ("agents", "services") for path in sorted((ROOT / room).glob("*/src/**/*.py"))
    ]
    return "\n".join(path.read_text() for path in sources if path != Path(metrics.__file__))


@pytest.mark.parametrize("name", NAMES)
def test_a_declared_metric_is_emitted(name: str, emitting_code: str) -> None:
    assert f'"{name}"' in emitting_code
