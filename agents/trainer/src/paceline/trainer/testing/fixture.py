"""A pytest plugin: `pytest_plugins = ["paceline.trainer.testing.fixture"]` gives the fixture `repair_job`."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from paceline.trainer.testing.job import Nursery, Outcome, RepairJob, assert_equal

Launch = Callable[..., RepairJob]


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    """Started once a session: torch is imported once."""
    with Nursery() as made:
        yield made


@pytest.fixture
def repair_job(nursery: Nursery) -> Iterator[Launch]:
    """`repair_job("train.py", "--steps", "20", ranks=4, standbys=1, faults=[...])`: a started `RepairJob`.

    What still runs at the end of the test is killed.
    """
    jobs: list[RepairJob] = []

    def launch(*words: str, ranks: int = 2, **options: Any) -> RepairJob:
        job = RepairJob(list(words), ranks, nursery=nursery, **options)
        jobs.append(job)
        job.start()
        return job

    yield launch
    for job in jobs:
        job.close()


@pytest.fixture(scope="session")
def uninterrupted(nursery: Nursery) -> Callable[..., dict[int, Outcome]]:
    """`uninterrupted("train.py", "--steps", "20", ranks=4)`: outcomes without any fault, once per command."""
    known: dict[tuple[object, ...], dict[int, Outcome]] = {}

    def run(*words: str, ranks: int = 2) -> dict[int, Outcome]:
        if (key := (ranks, *words)) not in known:
            with RepairJob(list(words), ranks, nursery=nursery) as job:
                statuses = job.await_end()
                assert not any(statuses), job.output()
                known[key] = job.outcomes()
        return known[key]

    return run


@pytest.fixture
def same_outcomes() -> Callable[..., None]:
    """`same_outcomes(job.outcomes(), uninterrupted(...))`: AssertionError unless equal to the bit."""
    return assert_equal
