"""Webhook endpoints, the delivery log, the console's files, the database away."""

from pathlib import Path
from typing import Any

import pytest

from paceline.store.models.delivery import Delivery

HOOK = {"name": "pager", "url": "https://example.com/hook", "event_types": ["incident.opened"]}


async def create(api: Any, **changes: object) -> dict[str, Any]:
    answer = await api.client.post("/v1/webhook-endpoints", json=HOOK | changes)
    assert answer.status_code == 201, answer.text
    created: dict[str, Any] = answer.json()
    return created


class TestEndpoints:
    async def test_from_creation_to_deletion(self, api: Any) -> None:
        created = await create(api)
        assert created["secret"].startswith("whsec_")
        path = f"/v1/webhook-endpoints/{created['id']}"
        read = (await api.client.get(path)).json()
        assert "secret" not in read
        assert read["enabled"] is True
        off = (await api.client.patch(path, json={"enabled": False})).json()
        assert (off["enabled"], off["disabled_reason"], off["name"]) == (False, "disabled by hand", "pager")
        on = (await api.client.patch(path, json={"enabled": True, "name": "p2"})).json()
        assert (on["enabled"], on["disabled_reason"], on["name"]) == (True, "", "p2")
        assert (await api.client.delete(path)).status_code == 204
        assert (await api.client.get(path)).status_code == 404
        audit = (await api.client.get("/v1/audit")).json()["items"]
        verbs = [entry["action"].partition(".")[2] for entry in audit if entry["target_id"] == created["id"]]
        assert verbs == ["deleted", "updated", "updated", "created"]
        assert "whsec_" not in str(audit)

    async def test_pages(self, api: Any) -> None:
        for number in range(3):
            await create(api, name=f"w{number}")
            api.clock.advance(1)
        first = (await api.client.get("/v1/webhook-endpoints?limit=2")).json()
        second = (await api.client.get(f"/v1/webhook-endpoints?cursor={first['next_cursor']}")).json()
        assert [item["name"] for item in first["items"] + second["items"]] == ["w2", "w1", "w0"]

    @pytest.mark.parametrize(
        "changes",
        [
            {"url": "ftp://x/y"},
            {"url": "nonsense"},
            {"url": "https://u:p@example.com/"},
            {"event_types": ["x"]},
            {"name": ""},
        ],
    )
    async def test_bad_ones(self, api: Any, changes: dict[str, object]) -> None:
        answer = await api.client.post("/v1/webhook-endpoints", json=HOOK | changes)
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request")

    async def test_their_number_is_bounded(self, api: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("paceline.api.webhooks.service.ENDPOINTS_MAX", 1)
        await create(api)
        answer = await api.client.post("/v1/webhook-endpoints", json=HOOK)
        assert (answer.status_code, answer.json()["code"]) == (409, "too_many_endpoints")


class TestDeliveries:
    async def add(self, api: Any, incident: str, delivery_id: str, status: str) -> None:
        now = api.services.now()
        async with api.database.transaction() as session:
            session.add(
                Delivery(
                    id=delivery_id,
                    channel="webhook",
                    endpoint_id=None,
                    target="https://example.com/hook",
                    event_id="evt_1",
                    event_type="incident.opened",
                    incident_id=incident,
                    payload="{}",
                    traceparent="",
                    status=status,
                    attempts_count=3,
                    attempts=[],
                    response_status=500,
                    error="HTTP 500",
                    next_attempt_at=None,
                    created_at=now,
                    updated_at=now,
                )
            )

    async def test_the_log_the_page_and_a_replay(self, api: Any, incident: str) -> None:
        await self.add(api, incident, "del_1", "failed")
        (row,) = (await api.client.get(f"/v1/deliveries?status=failed&incident={incident}")).json()["items"]
        assert (row["id"], row["response_status"], row["attempts_count"]) == ("del_1", 500, 3)
        found = (await api.client.get(f"/v1/incidents/{incident}")).json()
        assert found["did_it_happen"]["deliveries"][0]["status"] == "failed"
        answer = await api.client.post("/v1/deliveries/del_1/replays")
        assert (answer.status_code, answer.json()["status"]) == (202, "pending")
        again = await api.client.post("/v1/deliveries/del_1/replays")
        assert (again.status_code, again.json()["code"]) == (409, "not_replayable")
        assert (await api.client.post("/v1/deliveries/none/replays")).status_code == 404
        assert (await api.client.get("/v1/deliveries?status=delivered")).json()["items"] == []


class TestConsole:
    async def test_files_routes_and_the_api_beside_each_other(self, api: Any) -> None:
        root: Path = api.settings.console_path
        missing = await api.client.get("/incidents/inc_1")
        assert (missing.status_code, missing.json()["code"]) == (404, "not_found")
        (root / "assets").mkdir()
        (root / "index.html").write_text("<title>Paceline</title>")
        (root / "assets" / "a.js").write_text("1")
        async with api.anonymous() as client:
            page = await client.get("/incidents/inc_1")
            assert (page.text, page.headers["cache-control"]) == ("<title>Paceline</title>", "no-cache")
            assert "immutable" in (await client.get("/assets/a.js")).headers["cache-control"]
            for path in ("/assets/b.js", "/v1/none", "/v1", "/..%2f..%2fetc/passwd.txt"):
                assert (await client.get(path)).status_code == 404, path

    async def test_health(self, api: Any) -> None:
        async with api.anonymous() as client:
            assert (await client.get("/healthz")).json() == {"status": "ok"}
            assert (await client.get("/readyz")).json() == {"status": "ready"}
