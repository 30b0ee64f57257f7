"""A wide guard on the cost of one judgement; `tests/bench/judge.py` has the figures."""

import time

import pytest

from paceline.analysis import judge
from paceline.contracts.verdicts import VerdictClass
from tests.bench.judge import FAULTS, make_evidence

CLASSES = {"h1": VerdictClass.H1, "h2": VerdictClass.H2, "h3": VerdictClass.H3, "frozen": VerdictClass.H3}


@pytest.mark.parametrize("fault", FAULTS)
def test_four_thousand_ranks_take_milliseconds(fault: str) -> None:
    evidence = make_evidence(4096, fault)
    best = 10.0
    for _ in range(5):
        started = time.perf_counter()
        verdict = judge(evidence)
        best = min(best, time.perf_counter() - started)
    assert verdict.verdict_class is CLASSES[fault]
    assert verdict.victims_count >= 4088
    assert len(verdict.victims) == 256
    assert best < 0.15
