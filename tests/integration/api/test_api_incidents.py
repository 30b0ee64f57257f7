"""Incidents through the API: the page, the changes, conflicts, repeats."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import text

from paceline.contracts.verdicts import VerdictRecord

Make = Callable[..., VerdictRecord]


async def page(api: Any, incident: str) -> dict[str, Any]:
    answer = await api.client.get(f"/v1/incidents/{incident}")
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    assert answer.headers["etag"] == f'"{found["version"]}"'
    return found


class TestPage:
    async def test_it_answers_the_four_questions(self, api: Any, incident: Any) -> None:
        found = await page(api, "INC-1")
        assert (found["id"], found["label"], found["status"]) == (incident, "INC-1", "open")
        happened = found["what_happened"]
        assert happened["victims"] == "0-4,6-7"
        assert (happened["victims_count"], happened["detected_after_s"]) == (7, 10.0)
        assert happened["roots"][0]["rank"] == 5
        assert [group["name"] for group in happened["communicators"]] == ["tp_1", "world"]
        assert [group["victims_count"] for group in happened["communicators"]] == [3, 7]
        why = found["why"]
        assert why["evidence"][0]["inputs"] == [{"name": "round", "value": "412"}]
        assert (why["coverage"]["ratio"], why["revisions"][0]["revision"]) == (1.0, 1)
        assert why["revisions"][0]["bundle_id"] == why["bundles"][0]["id"]
        assert found["what_next"]["action"]["kind"] == "fix_code"
        assert found["did_it_happen"]["timeline"][0]["kind"] == "opened"
        assert (found["job_name"], found["world_size"], found["user"]) == ("Llama", 8, "lia")

    async def test_communicators_are_read_in_parts(
        self, api: Any, incident: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("paceline.api.incidents.involved.PART_COUNT", 1)
        groups = (await page(api, "INC-1"))["what_happened"]["communicators"]
        assert [group["name"] for group in groups] == ["tp_1", "world"]

    async def test_an_incident_of_an_unknown_job_has_a_page_too(self, api: Any, make_verdict: Make) -> None:
        assert await api.apply(make_verdict(job="ghost")) == "open"
        found = await page(api, "INC-1")
        assert (found["job_name"], found["world_size"]) == ("ghost", None)

    async def test_the_evidence_bundle(self, api: Any, incident: Any) -> None:
        answer = await api.client.get(f"/v1/incidents/{incident}/evidence")
        assert (answer.content, answer.headers["content-type"]) == (b"evidence", "application/octet-stream")
        assert 'filename="INC-1-r1.evidence.gz"' in answer.headers["content-disposition"]
        named = (await page(api, incident))["why"]["bundles"][0]["id"]
        other = await api.client.get(f"/v1/incidents/{incident}/evidence?bundle={named}")
        assert other.content == b"evidence"
        assert (await api.client.get(f"/v1/incidents/{incident}/evidence?bundle=evb_0")).status_code == 404


class TestList:
    async def test_cursors_show_each_incident_once(self, api: Any, job: Any, make_verdict: Make) -> None:
        for rank in range(5):
            await api.apply(make_verdict(episode=f"epi_{rank}", rank=rank))
            api.clock.advance(0.0 if rank % 2 else 1.0)
        seen: list[str] = []
        cursor = None
        while True:
            query = {"limit": "2"} | ({"cursor": cursor} if cursor else {})
            answer = (await api.client.get("/v1/incidents", params=query)).json()
            seen += [item["label"] for item in answer["items"]]
            cursor = answer["next_cursor"]
            if cursor is None:
                break
            if len(seen) == 2:  # a new one in the meantime moves nothing
                await api.apply(make_verdict(episode="epi_9", rank=7))
        assert len(seen) == len(set(seen)) == 5
        assert seen[0] in ("INC-5", "INC-4")
        assert seen[-1] == "INC-1"

    async def test_filters(self, api: Any, incident: Any, make_verdict: Make) -> None:
        await api.apply(make_verdict(job="other", episode="epi_2"))
        await api.client.post(f"/v1/incidents/{incident}/resolutions", json={})

        async def labels(**query: object) -> list[str]:
            answer = await api.client.get("/v1/incidents", params=query)
            return [item["label"] for item in answer.json()["items"]]

        assert await labels(status="resolved") == ["INC-1"]
        assert await labels(status=["open", "acknowledged"]) == ["INC-2"]
        assert await labels(job=["llama", "none"]) == ["INC-1"]
        assert await labels(verdict="H3") == []
        assert await labels(severity="critical", job="other") == ["INC-2"]


class TestChanges:
    async def test_acknowledge_then_resolve(self, api: Any, incident: Any) -> None:
        base = f"/v1/incidents/{incident}"
        acknowledged = await api.client.post(f"{base}/acknowledgements", json={"note": "on it"})
        assert acknowledged.status_code == 201
        assert (acknowledged.json()["status"], acknowledged.json()["acknowledged_by"]) == (
            "acknowledged",
            "admin",
        )
        assert (await api.client.post(f"{base}/acknowledgements", json={})).json()["code"] == (
            "already_acknowledged"
        )
        resolved = (await api.client.post(f"{base}/resolutions", json={"note": "restarted"})).json()
        assert (resolved["status"], resolved["resolution"], resolved["version"]) == (
            "resolved",
            "restarted",
            3,
        )
        for verb in ("resolutions", "acknowledgements"):
            again = await api.client.post(f"{base}/{verb}", json={})
            assert (again.status_code, again.json()["code"]) == (409, "already_resolved")
        timeline = (await api.client.get(f"{base}/timeline")).json()["items"]
        assert [entry["kind"] for entry in timeline] == ["resolved", "acknowledged", "opened"]
        assert [entry["source"] for entry in timeline] == ["api", "api", "incidents"]
        audit = (await api.client.get("/v1/audit?limit=2")).json()
        assert [entry["action"] for entry in audit["items"]] == ["incident.resolved", "incident.acknowledged"]
        assert audit["next_cursor"] is not None

    async def test_the_chain_of_the_audit_log_is_checked(self, api: Any, incident: str) -> None:
        before = (await api.client.get("/v1/audit/integrity")).json()
        assert (before["intact"], before["first_broken_id"], before["complete"]) == (True, None, True)
        await api.client.post(f"/v1/incidents/{incident}/acknowledgements", json={})
        rest = (await api.client.get(f"/v1/audit/integrity?after={before['last_id']}")).json()
        assert (rest["intact"], rest["checked"]) == (True, 1)
        async with api.database.transaction() as session:
            await session.execute(text("ALTER TABLE audit_entries DISABLE TRIGGER USER"))
            await session.execute(text(f"UPDATE audit_entries SET actor = 'x' WHERE id = {rest['last_id']}"))
        broken = (await api.client.get("/v1/audit/integrity")).json()
        assert (broken["intact"], broken["first_broken_id"]) == (False, rest["last_id"])
        assert broken["checked"] == before["checked"] + 1

    async def test_a_verdict_does_not_reopen_what_somebody_closed(
        self, api: Any, incident: Any, make_verdict: Any
    ) -> None:
        await api.client.post(f"/v1/incidents/{incident}/resolutions", json={})
        assert await api.apply(make_verdict(2)) == "revise_closed"
        assert (await page(api, incident))["status"] == "resolved"

    async def test_if_match_protects_from_deciding_on_an_old_state(
        self, api: Any, incident: Any, make_verdict: Any
    ) -> None:
        seen = (await page(api, incident))["version"]
        await api.apply(make_verdict(2))
        path = f"/v1/incidents/{incident}/resolutions"
        stale = await api.client.post(path, json={}, headers={"If-Match": f'"{seen}"'})
        assert (stale.status_code, stale.json()["code"]) == (412, "stale_version")
        assert (await page(api, incident))["status"] == "open"
        fresh = await api.client.post(path, json={}, headers={"If-Match": f'"{seen + 1}"'})
        assert fresh.status_code == 201

    async def test_two_at_once_acknowledge_once(self, api: Any, incident: Any) -> None:
        path = f"/v1/incidents/{incident}/acknowledgements"
        answers = await asyncio.gather(*(api.client.post(path, json={}) for _ in range(6)))
        assert sorted(answer.status_code for answer in answers) == [201, 409, 409, 409, 409, 409]

    async def test_a_note_pages_nobody(self, api: Any, incident: Any) -> None:
        answer = await api.client.post(f"/v1/incidents/{incident}/notes", json={"text": "looking"})
        assert (answer.status_code, answer.json()["message"]) == (201, "looking")
        found = await page(api, incident)
        assert (found["version"], found["did_it_happen"]["timeline"][0]["kind"]) == (1, "note")
        from paceline.store.repositories.outbox import OutboxRepository

        async with api.database.transaction() as session:
            rows = await OutboxRepository(session).unpublished(10)
        assert [row.type for row in rows] == ["incident.opened"]
        only = (await api.client.get(f"/v1/incidents/{incident}/timeline?kind=note")).json()["items"]
        assert [entry["message"] for entry in only] == ["looking"]


class TestIdempotency:
    async def test_a_repeated_request_is_carried_out_once(self, api: Any, incident: Any) -> None:
        path, key = f"/v1/incidents/{incident}/notes", {"Idempotency-Key": "k-1"}
        first = await api.client.post(path, json={"text": "a"}, headers=key)
        again = await api.client.post(path, json={"text": "a"}, headers=key)
        assert first.json() == again.json()
        assert again.status_code == 201
        other = await api.client.post(path, json={"text": "b"}, headers=key)
        assert (other.status_code, other.json()["code"]) == (409, "idempotency_key_reused")
        assert len((await api.client.get(f"{path[:-6]}/timeline?kind=note")).json()["items"]) == 1

    async def test_an_acknowledgement_may_be_repeated_instead_of_conflicting(
        self, api: Any, incident: Any
    ) -> None:
        path, key = f"/v1/incidents/{incident}/acknowledgements", {"Idempotency-Key": "k-2"}
        answers = [await api.client.post(path, json={}, headers=key) for _ in range(2)]
        assert [answer.status_code for answer in answers] == [201, 201]
        assert answers[1].json()["version"] == 2

    async def test_at_the_same_moment(self, api: Any, incident: Any) -> None:
        path, key = f"/v1/incidents/{incident}/notes", {"Idempotency-Key": "k-3"}
        answers = await asyncio.gather(
            *(api.client.post(path, json={"text": "a"}, headers=key) for _ in range(5))
        )
        assert {answer.json()["id"] for answer in answers} == {answers[0].json()["id"]}

    async def test_a_failed_request_uses_no_key(self, api: Any, incident: Any) -> None:
        key = {"Idempotency-Key": "k-4"}
        missing = await api.client.post("/v1/incidents/INC-77/notes", json={"text": "a"}, headers=key)
        assert missing.status_code == 404
        found = await api.client.post(f"/v1/incidents/{incident}/notes", json={"text": "a"}, headers=key)
        assert found.status_code == 201

    async def test_secrets_are_not_shown_twice(self, api: Any) -> None:
        body, key = {"name": "x", "scopes": ["jobs:read"]}, {"Idempotency-Key": "k-5"}
        assert (await api.client.post("/v1/tokens", json=body, headers=key)).status_code == 201
        again = await api.client.post("/v1/tokens", json=body, headers=key)
        assert (again.status_code, again.json()["code"]) == (409, "secret_shown_once")
        assert len((await api.client.get("/v1/tokens")).json()["items"]) == 2
