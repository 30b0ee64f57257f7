"""Jobs, ranks, communicators, planes: registry rows joined with open incidents."""

from dataclasses import replace
from typing import Any

import pytest

from paceline.contracts.registry import JobRecord, JobState, NodeRecord, RankRecord
from paceline.incidents.registry import write_job, write_nodes


async def test_a_healthy_job(api: Any, job: JobRecord) -> None:
    (listed,) = (await api.client.get("/v1/jobs")).json()["items"]
    assert (listed["id"], listed["state"], listed["nodes_count"], listed["communicators_count"]) == (
        "llama",
        "running",
        2,
        2,
    )
    assert (listed["open_incidents_count"], listed["worst_severity"]) == (0, None)
    found = (await api.client.get("/v1/jobs/llama")).json()
    assert [(axis["name"], axis["size"]) for axis in found["axes"]] == [("tp", 4), ("dp", 2)]
    assert found["versions"] == [{"name": "torch", "version": "2.13"}]
    assert [attempt["attempt"] for attempt in found["attempts"]] == ["a1"]


async def test_an_open_incident_shows_on_ranks_and_communicators(api: Any, incident: str) -> None:
    ranks = (await api.client.get("/v1/jobs/llama/ranks")).json()
    rows = {row["rank"]: row for row in ranks["items"]}
    assert len(rows) == ranks["world_size"] == 8
    assert (rows[5]["state"], rows[5]["verdict_role"], rows[5]["incident_id"]) == (3, "initiating", incident)
    assert (rows[5]["node"], rows[5]["local_rank"], rows[5]["gpu"]) == ("n1", 1, 1)
    assert rows[5]["coordinates"] == [{"axis": "tp", "value": 1}, {"axis": "dp", "value": 1}]
    assert (rows[0]["state"], rows[0]["verdict_role"], rows[0]["step"]) == (2, "cascade", None)
    groups = (await api.client.get("/v1/jobs/llama/communicators")).json()["items"]
    assert [(group["name"], group["waiting_count"], group["roots"]) for group in groups] == [
        ("tp_1", 3, [5]),
        ("world", 7, []),
    ]
    assert (await api.client.get("/v1/jobs/llama")).json()["open_incident_ids"] == [incident]
    (listed,) = (await api.client.get("/v1/jobs")).json()["items"]
    assert (listed["open_incidents_count"], listed["worst_severity"]) == (1, "critical")


async def test_the_plane_says_the_same_in_bytes(api: Any, incident: str) -> None:
    answer = await api.client.get("/v1/jobs/llama/planes/state")
    assert list(answer.content) == [2, 2, 2, 2, 2, 3, 2, 2]
    assert answer.headers["content-type"] == "application/octet-stream"
    etag = answer.headers["etag"]
    same = await api.client.get("/v1/jobs/llama/planes/state", headers={"If-None-Match": etag})
    assert (same.status_code, same.content) == (304, b"")
    await api.client.post(f"/v1/incidents/{incident}/resolutions", json={})
    changed = await api.client.get("/v1/jobs/llama/planes/state", headers={"If-None-Match": etag})
    assert (changed.status_code, list(changed.content)) == (200, [1] * 8)


async def test_pages_of_ranks_and_communicators(api: Any, job: JobRecord) -> None:
    seen: list[int] = []
    cursor = ""
    while True:
        answer = (await api.client.get(f"/v1/jobs/llama/ranks?limit=3{cursor}")).json()
        seen += [row["rank"] for row in answer["items"]]
        if answer["next_cursor"] is None:
            break
        cursor = f"&cursor={answer['next_cursor']}"
    assert seen == list(range(8))
    first = (await api.client.get("/v1/jobs/llama/communicators?limit=1")).json()
    second = await api.client.get(f"/v1/jobs/llama/communicators?limit=1&cursor={first['next_cursor']}")
    assert [second.json()["items"][0]["name"], second.json()["next_cursor"]] == ["world", None]


@pytest.mark.parametrize("name", ["team/llama", "a b", "ranks", "ünïcode"])
async def test_ids_that_need_care_in_a_path(api: Any, job: JobRecord, name: str) -> None:
    async with api.database.transaction() as session:
        await write_job(session, replace(job, job=name), api.services.now(), "")
    for suffix in ("", "/ranks", "/communicators", "/planes/state"):
        answer = await api.client.get(f"/v1/jobs/{name}{suffix}")
        assert answer.status_code == 200, (suffix, answer.text)
    assert (await api.client.get(f"/v1/jobs/{name}")).json()["id"] == name


async def test_a_rank_out_of_range_and_two_claims_on_one_rank(api: Any, job: JobRecord) -> None:
    nodes = [
        NodeRecord("llama", "a1", "n8", "ag", (RankRecord(99, 0, 1, 1), RankRecord(0, 0, 7, 1))),
        NodeRecord("llama", "a1", "n0", "ag", (RankRecord(0, 0, 1, 1),), left=True),
    ]
    async with api.database.transaction() as session:
        await write_nodes(session, nodes, api.services.now())
    rows = (await api.client.get("/v1/jobs/llama/ranks")).json()["items"]
    assert [row["rank"] for row in rows] == [0, 4, 5, 6, 7]
    assert (rows[0]["node"], rows[0]["state"]) == ("n8", 1)
    assert list((await api.client.get("/v1/jobs/llama/planes/state")).content) == [1, 0, 0, 0, 1, 1, 1, 1]


async def test_a_restart_under_the_same_name_keeps_the_first_attempt(
    api: Any, incident: str, job: JobRecord
) -> None:
    again = replace(job, attempt="a2", started_unix_s=job.started_unix_s + 300, world_size=4)
    async with api.database.transaction() as session:
        await write_job(session, again, api.services.now(), "")
    assert (await api.client.get("/v1/jobs/llama")).json()["attempt"] == "a2"
    assert (await api.client.get("/v1/jobs/llama/ranks")).json()["items"] == []
    old = (await api.client.get("/v1/jobs/llama/ranks?attempt=a1")).json()
    assert (old["attempt"], len(old["items"])) == ("a1", 8)
    assert (await api.client.get(f"/v1/incidents/{incident}")).json()[
        "resolution"
    ] == "attempt a2 has started"


async def test_states_filter_the_list(api: Any, job: JobRecord) -> None:
    ended = replace(job, job="old", state=JobState.FINISHED, ended_unix_s=job.started_unix_s + 1)
    async with api.database.transaction() as session:
        await write_job(session, ended, api.services.now(), "")
    answer = await api.client.get("/v1/jobs?state=finished&state=failed")
    assert [item["id"] for item in answer.json()["items"]] == ["old"]
    page = (await api.client.get("/v1/jobs?limit=1")).json()
    rest = (await api.client.get(f"/v1/jobs?limit=1&cursor={page['next_cursor']}")).json()
    assert {page["items"][0]["id"], rest["items"][0]["id"]} == {"llama", "old"}
    assert rest["next_cursor"] is None
