"""The API over a socket: event streams, restarts of PostgreSQL, starting and stopping."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from paceline.api.server import ApiApp, PortTaken
from paceline.api.settings import ApiSettings
from paceline.contracts.verdicts import VerdictRecord
from paceline.store import Database
from paceline.store.incident_changes import append_stream_event
from paceline.store.settings import StoreSettings
from paceline.store.times import from_unix

Make = Callable[..., VerdictRecord]
NOW = 1_767_323_045.0


class Stream:
    """Reads server-sent events from an open response."""

    def __init__(self, lines: AsyncIterator[str]) -> None:
        self._lines = lines

    async def next(self) -> dict[str, str]:
        """The next event or comment as its fields."""
        fields: dict[str, str] = {}
        async with asyncio.timeout(10):
            async for line in self._lines:
                if not line:
                    if fields:
                        return fields
                    continue
                name, _, value = line.partition(":")
                fields[name or "comment"] = value.strip()
        return fields

    async def event(self) -> dict[str, str]:
        """The next one that is not a comment."""
        while "event" not in (fields := await self.next()):
            if not fields:
                raise EOFError("the stream has ended")
        return fields


@asynccontextmanager
async def serve(url: str, **changes: object) -> AsyncIterator[ApiApp]:
    settings = ApiSettings(database=StoreSettings(url=url), port=0, **changes)  # type: ignore[arg-type]
    app = ApiApp(settings)
    await app.start()
    try:
        yield app
    finally:
        await app.stop()


@asynccontextmanager
async def listen(app: ApiApp, token: str, query: str = "", **headers: str) -> AsyncIterator[Stream]:
    auth = {"Authorization": f"Bearer {token}"} | headers
    async with (
        httpx.AsyncClient(base_url=app.url, headers=auth, timeout=10) as client,
        client.stream("GET", f"/v1/events{query}") as response,
    ):
        assert response.status_code == 200, await response.aread()
        assert response.headers["content-type"].startswith("text/event-stream")
        yield Stream(response.aiter_lines())


async def put(database: Database, name: str, job: str = "llama", type_: str = "job.x") -> None:
    async with database.transaction() as session:
        await append_stream_event(
            session,
            event_id=f"evt_{name}",
            event_type=type_,
            job=job,
            at=from_unix(NOW),
            summary={"summary": name},
        )


def name_of(event: dict[str, str]) -> str:
    return str(json.loads(event["data"])["summary"])


class TestEvents:
    async def test_live_then_resumed_without_loss_or_repetition(self, api: Any, incident: str) -> None:
        async with serve(api.settings.database.url) as app:
            async with listen(app, api.token) as stream:
                ready = await stream.event()
                assert ready["event"] == "ready"
                await api.client.post(f"/v1/incidents/{incident}/acknowledgements", json={})
                event = await stream.event()
            data = json.loads(event["data"])
            assert (event["event"], data["label"], data["status"]) == (
                "incident.acknowledged",
                "INC-1",
                "acknowledged",
            )
            assert event["id"] == str(data["sequence"])
            for name in ("b", "c"):
                await put(api.database, name)
            async with listen(app, api.token, **{"Last-Event-ID": event["id"]}) as stream:
                assert (await stream.event())["event"] == "ready"
                assert [name_of(await stream.event()) for _ in range(2)] == ["b", "c"]
                await put(api.database, "d")
                assert name_of(await stream.event()) == "d"

    async def test_what_cannot_be_resumed_is_reset(self, api: Any) -> None:
        for number in range(4):
            await put(api.database, f"e{number}")
        async with serve(api.settings.database.url, stream_gap_max=2) as app:
            async with listen(app, api.token, "?after=1") as stream:
                reset = await stream.event()
                assert (reset["event"], reset["id"]) == ("reset", "4")
                await put(api.database, "new")
                assert name_of(await stream.event()) == "new"
            async with listen(app, api.token, "?after=99") as stream:
                assert "ahead" in json.loads((await stream.event())["data"])["reason"]

    async def test_filters_and_scopes(self, api: Any) -> None:
        token = await api.create_token("jobs:read")
        async with serve(api.settings.database.url) as app:
            async with listen(app, token, "?job=llama") as stream:
                await stream.event()
                await put(api.database, "other", job="other")
                await put(api.database, "secret", type_="incident.noted")
                await put(api.database, "mine")
                assert name_of(await stream.event()) == "mine"
            denied = await api.create_token("audit:read")
            async with httpx.AsyncClient(base_url=app.url) as client:
                answer = await client.get("/v1/events", headers={"Authorization": f"Bearer {denied}"})
            assert (answer.status_code, answer.json()["code"]) == (403, "missing_scope")

    async def test_it_keeps_alive_ends_with_its_token_and_after_its_life(self, api: Any) -> None:
        created = (await api.client.post("/v1/tokens", json={"name": "x", "scopes": ["jobs:read"]})).json()
        quick = {"stream_keepalive_s": 0.1, "outbox_poll_s": 0.05}
        url = api.settings.database.url
        async with serve(url, **quick) as app, listen(app, created["token"]) as stream:
            await stream.event()
            assert (await stream.next())["comment"] == "keepalive"
            await api.client.delete(f"/v1/tokens/{created['id']}")
            with pytest.raises(EOFError):
                await stream.event()
        short = {"stream_life_s": 0.2, "outbox_poll_s": 0.05}
        async with serve(url, **short) as app, listen(app, api.token) as stream:
            await stream.event()
            with pytest.raises(EOFError):
                await stream.event()

    async def test_their_number_is_bounded(self, api: Any) -> None:
        url = api.settings.database.url
        async with serve(url, streams_max=1) as app, listen(app, api.token) as stream:
            await stream.event()
            async with httpx.AsyncClient(base_url=app.url) as client:
                answer = await client.get("/v1/events", headers={"Authorization": f"Bearer {api.token}"})
            assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")

    async def test_stopping_ends_the_streams(self, api: Any) -> None:
        async with serve(api.settings.database.url) as app, listen(app, api.token) as stream:
            await stream.event()
            began = asyncio.get_running_loop().time()
            await app.stop()
            assert asyncio.get_running_loop().time() - began < 3
            with pytest.raises(EOFError):
                await stream.event()


class TestPostgresRestart:
    async def test_requests_and_streams_outlive_it(
        self, api: Any, incident: str, postgres_server: Any, eventually: Any
    ) -> None:
        auth = {"Authorization": f"Bearer {api.token}"}
        async with serve(api.settings.database.url) as app, listen(app, api.token) as stream:
            await stream.event()
            async with httpx.AsyncClient(base_url=app.url, headers=auth) as client:
                assert (await client.get("/v1/incidents")).status_code == 200
                postgres_server.stop()
                down = await client.get("/v1/incidents")
                assert (down.status_code, down.json()["code"]) == (503, "unavailable")
                postgres_server.launch()
                await asyncio.to_thread(postgres_server.wait_ready)

                async def acknowledged() -> bool:
                    path = f"/v1/incidents/{incident}/acknowledgements"
                    return (await client.post(path, json={})).status_code == 201

                await eventually(acknowledged)
            assert (await stream.event())["event"] == "incident.acknowledged"


class TestLife:
    async def test_the_first_start_makes_one_token(self, database: str, eventually: Any) -> None:
        async with serve(database) as app:
            token = await eventually(lambda: app.first_token)
            assert app.readiness().ready
            async with httpx.AsyncClient(base_url=app.url) as client:
                answer = await client.get("/v1/me", headers={"Authorization": f"Bearer {token}"})
            assert answer.json()["name"] == "admin"
        async with serve(database) as app:
            await eventually(lambda: app.readiness().ready)
            assert app.first_token is None

    async def test_a_taken_port_is_told_clearly(self, database: str) -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            app = ApiApp(ApiSettings(database=StoreSettings(url=database), port=port))
            with pytest.raises(PortTaken, match=f"127.0.0.1:{port}.*PACELINE_API_PORT"):
                await app.start()
            await app.stop()

    async def test_without_a_database_it_starts_and_answers_503(self, eventually: Any) -> None:
        async with serve("postgresql://nobody@127.0.0.1:1/none") as app:
            assert not app.readiness().ready
            async with httpx.AsyncClient(base_url=app.url) as client:
                assert (await client.get("/healthz")).status_code == 200
                for path in ("/readyz", "/v1/jobs"):
                    answer = await client.get(path, headers={"Authorization": "Bearer plt_x"})
                    assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
                    assert answer.headers["retry-after"] == "2"
