"""A job that ends with more open incidents than are read at once."""

from collections.abc import Callable

import pytest

from paceline.contracts.registry import JobRecord, JobState
from paceline.contracts.verdicts import VerdictRecord
from paceline.incidents.decide import IncidentPolicy
from paceline.incidents.registry import write_job
from paceline.incidents.verdicts import VerdictContext, apply_verdict
from paceline.store import Database
from paceline.store.repositories import incidents as repository
from paceline.store.repositories.incidents import IncidentRepository
from paceline.store.times import from_unix

NOW = 1_767_323_045.0
CONTEXT = VerdictContext(IncidentPolicy(), "http://console", bundles_max=3)


@pytest.mark.parametrize("count", [2, 3, 7])
async def test_the_end_of_a_job_resolves_all_of_them(
    store: Database, make_record: Callable[..., VerdictRecord], monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """Read two at a time."""
    monkeypatch.setattr(repository, "OPEN_PAGE", 2)
    for rank in range(count):
        async with store.transaction() as session:
            record = make_record(rank=rank, episode=f"epi_{rank}")
            await apply_verdict(session, record, from_unix(NOW), "", CONTEXT)
    job = JobRecord(
        job="llama", attempt="a1", cluster="c", tenant="t", user="u", name="Llama", world_size=8, shards=1,
        state=JobState.FINISHED, id_source="declared", attempt_source="store", started_unix_s=NOW - 600,
        ended_unix_s=NOW + 60,
    )  # fmt: skip
    async with store.transaction() as session:
        assert await IncidentRepository(session).open_count() == count
    async with store.transaction() as session:
        await write_job(session, job, from_unix(NOW + 61), "http://console")
    async with store.transaction() as session:
        assert await IncidentRepository(session).open_count() == 0
