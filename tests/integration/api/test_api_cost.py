"""What an incident has cost, through the API, from the verdicts in the tables."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from paceline.contracts.registry import JobRecord, JobState
from paceline.contracts.verdicts import (
    Regain,
    Root,
    RootKind,
    SlowLoss,
    SubReason,
    VerdictClass,
    VerdictRecord,
)
from paceline.incidents.registry import write_job

NOW = 1_767_323_045.0
Make = Callable[..., VerdictRecord]


def slow(record: VerdictRecord, share: float | None, **changes: object) -> VerdictRecord:
    root = Root(RootKind.RANK, rank=5, node="n1")
    loss = SlowLoss(share, False, 10.0, 8.0, "steps take longer", (Regain(root, 0.25, False, "own time"),))
    verdict = replace(
        record.verdict,
        verdict_class=VerdictClass.S1,
        sub_reason=SubReason.LATE_RANK,
        roots=(root,),
        loss=loss,
    )
    return replace(record, verdict=verdict, **changes)  # type: ignore[arg-type]


async def cost_of(api: Any, label: str = "INC-1") -> dict[str, Any]:
    answer = await api.client.get(f"/v1/incidents/{label}")
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()["cost"]
    return found


async def test_a_hang_costs_all_ranks_until_it_ends(api: Any, incident: str, make_verdict: Make) -> None:
    api.clock.advance(3590.0)  # the stall began 10 s before the verdict
    cost = await cost_of(api)
    assert (cost["unit"], cost["ranks_count"], cost["hours"]) == ("gpu", 8, pytest.approx(8.0))
    assert (cost["hours_per_hour"], cost["at_most"], cost["what_if"]) == (8.0, False, [])
    assert await api.apply(make_verdict(2, resolved=True)) == "resolve"
    api.clock.advance(3600.0)
    cost = await cost_of(api)
    assert (cost["hours"], cost["hours_per_hour"]) == (pytest.approx(8.0), 0.0)


async def test_a_slow_job_costs_its_share_and_then_all(api: Any, job: JobRecord, make_verdict: Make) -> None:
    first = slow(make_verdict(), 0.25)
    assert await api.apply(first) == "open"
    api.clock.advance(3590.0)
    cost = await cost_of(api)
    assert (cost["hours"], cost["hours_per_hour"]) == (pytest.approx(2.0), 2.0)
    assert cost["what_if"] == [
        {"root": cost["what_if"][0]["root"], "ratio": 0.25, "at_most": False, "reason": "own time"}
    ]
    assert (cost["what_if"][0]["root"]["node"], cost["usual_step_s"]) == ("n1", 8.0)
    hung = make_verdict(2, judged_unix_s=NOW + 3590.0)
    assert await api.apply(hung) == "revise"
    api.clock.advance(1800.0)
    assert (await cost_of(api))["hours"] == pytest.approx(2.0 + 4.0)


async def test_what_is_not_known_is_said(api: Any, job: JobRecord, make_verdict: Make) -> None:
    await api.apply(slow(make_verdict(), None))
    cost = await cost_of(api)
    assert (cost["hours"], cost["unknown_s"], cost["hours_per_hour"]) == (None, 10.0, 0.0)
    assert cost["reason"] == "steps take longer"


async def test_nothing_is_lost_after_the_end_of_the_attempt(api: Any, incident: str, job: JobRecord) -> None:
    failed = replace(job, state=JobState.FAILED, ended_unix_s=NOW + 890.0)
    async with api.database.transaction() as session:
        await write_job(session, failed, api.services.now(), "http://console")
    api.clock.advance(36000.0)
    cost = await cost_of(api)
    assert (cost["hours"], cost["hours_per_hour"]) == (pytest.approx(2.0), 0.0)


async def test_a_job_nobody_registered(api: Any, make_verdict: Make) -> None:
    await api.apply(make_verdict(job="ghost"))
    cost = await cost_of(api)
    assert (cost["hours"], cost["ranks_count"], cost["unit"]) == (None, None, "rank")
    assert "registry" in cost["reason"]
