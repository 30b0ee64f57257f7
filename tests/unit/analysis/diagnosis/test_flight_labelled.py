"""The public labelled dump sets: exactly the ranks of the label, and the class."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.analysis.adapters.flight_pickle import FlightPickles
from paceline.analysis.adapters.model import Document
from paceline.analysis.diagnosis.flight import read_flight
from paceline.analysis.diagnosis.flight_verdict import judge_flight
from paceline.analysis.facts import FlightDump
from paceline.contracts.verdicts import VerdictClass

SETS = Path(__file__).parents[5] / "shared" / "datasets" / "flight-recorder-faults"
pytestmark = pytest.mark.skipif(not SETS.is_dir(), reason=f"{SETS} is not there")


def _dumps(name: str, without: tuple[int, ...] = ()) -> Iterator[FlightDump]:
    for path in sorted((SETS / name).glob("_dump_*")):
        if int(path.name.removeprefix("_dump_")) not in without:
            (found,) = FlightPickles().read(Document(path.name, path.read_bytes()))
            assert isinstance(found, FlightDump)
            yield found


@pytest.mark.parametrize(
    ("name", "expected", "ranks"),
    [("gpu_error_1st", VerdictClass.H3, [12, 14]), ("lock_gil_1st", VerdictClass.H1, [9, 14])],
)
@pytest.mark.parametrize("without", [(), (0,), (5,), (11,)])
def test_labels(name: str, expected: VerdictClass, ranks: list[int], without: tuple[int, ...]) -> None:
    verdict = judge_flight(read_flight(_dumps(name, without))).verdict
    assert (verdict.verdict_class, sorted(root.rank or 0 for root in verdict.roots)) == (expected, ranks)


def test_without_the_faulty_ranks_nobody_else_is_blamed() -> None:
    for name, gone in (("gpu_error_1st", (12, 14)), ("lock_gil_1st", (9, 14))):
        verdict = judge_flight(read_flight(_dumps(name, gone))).verdict
        assert {root.rank for root in verdict.roots if root.rank is not None} <= set(gone), verdict.summary
