"""Cut, shuffled, mixed and damaged incidents: an answer each time, never an exception."""

import json
import random
from pathlib import Path

import pytest

from paceline.analysis.diagnosis import diagnose
from tests.incidents.score import ANSWERS, CASES

SEEDS = 30
FILES_MAX = 5
FILES = sorted(path for path in CASES.rglob("*") if path.is_file() and path.name not in ANSWERS)


def damaged(rng: random.Random) -> bytes:
    lines = rng.choice(FILES).read_bytes().splitlines(keepends=True)
    how = rng.randrange(4)
    if how == 0:
        rng.shuffle(lines)
    elif how == 1:
        lines = [line for line in lines if rng.random() < 0.7]
    elif how == 2:
        lines += rng.choice(FILES).read_bytes().splitlines(keepends=True)
    text = bytearray(b"".join(lines))
    for _ in range(rng.randrange(20) if text else 0):
        text[rng.randrange(len(text))] = rng.randrange(256)
    return bytes(text)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_an_answer_each_time(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    for number in range(rng.randint(1, FILES_MAX)):
        (tmp_path / f"{number}-{rng.choice(FILES).name}").write_bytes(damaged(rng))
    found = diagnose([str(tmp_path)])
    assert found
    for each in found:
        assert json.loads(json.dumps(each.as_json()))["class"]
        assert each.summary
