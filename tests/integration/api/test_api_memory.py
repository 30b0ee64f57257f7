"""The fleet's memory through the API: weighed when it is read."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from paceline.contracts.verdicts import SubReason, VerdictClass, VerdictRecord

Make = Callable[..., VerdictRecord]


def h3(record: VerdictRecord) -> VerdictRecord:
    verdict = replace(record.verdict, verdict_class=VerdictClass.H3, sub_reason=SubReason.MISSING_EXIT)
    return replace(record, verdict=verdict)


async def test_an_incident_shows_what_came_after_it_too(api: Any, incident: str, make_verdict: Make) -> None:
    memory = (await api.client.get("/v1/incidents/INC-1")).json()["memory"]
    (node,) = memory["nodes"]
    assert (node["node"], node["reason"], node["past"]) == ("n0", "nothing_known", [])
    assert (memory["version"]["reason"], memory["version"]["versions"]) == ("few_jobs", "torch 2.13")
    await api.apply(h3(make_verdict(job="ghost", episode="epi_2")))
    (node,) = (await api.client.get("/v1/incidents/INC-1")).json()["memory"]["nodes"]
    assert (node["reason"], node["incidents_count"], node["jobs_count"]) == ("few_jobs", 1, 1)
    assert [(item["label"], item["job"], item["is_offence"]) for item in node["past"]] == [
        ("INC-2", "ghost", True)
    ]


async def test_nodes_with_offences_in_most_jobs_come_first(api: Any, make_verdict: Make) -> None:
    for job in ("a", "b"):
        await api.apply(h3(make_verdict(job=job, episode=f"epi_{job}")))
    found = (await api.client.get("/v1/nodes")).json()
    assert found["window_days"] == 30
    (item,) = found["items"]
    assert (item["node"], item["offences_count"], item["jobs_count"]) == ("n0", 2, 2)
    history = (await api.client.get("/v1/nodes/n0")).json()
    assert {row["job"] for row in history["items"]} == {"a", "b"}
    assert (await api.client.get("/v1/nodes/unknown")).json()["items"] == []
    assert (await api.anonymous().get("/v1/nodes")).status_code == 401
