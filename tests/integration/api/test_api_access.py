"""Who may do what, and what happens to requests that are wrong in every way."""

from collections.abc import Callable
from typing import Any

import pytest

from paceline.api.first_token import WeakToken, ensure_first_token
from paceline.contracts.verdicts import VerdictRecord

Make = Callable[..., VerdictRecord]
READS = [  # the first six need no more than jobs:read
    "/v1/me",
    "/v1/jobs",
    "/v1/jobs/llama",
    "/v1/jobs/llama/ranks",
    "/v1/jobs/llama/communicators",
    "/v1/jobs/llama/planes/state",
    "/v1/incidents",
    "/v1/incidents/INC-1",
    "/v1/incidents/INC-1/timeline",
    "/v1/incidents/INC-1/evidence",
    "/v1/events",
    "/v1/webhook-endpoints",
    "/v1/deliveries",
    "/v1/tokens",
    "/v1/audit",
    "/v1/audit/integrity",
]
WRITES = [
    ("POST", "/v1/incidents/INC-1/acknowledgements", {}),
    ("POST", "/v1/incidents/INC-1/resolutions", {}),
    ("POST", "/v1/incidents/INC-1/notes", {"text": "x"}),
    ("POST", "/v1/webhook-endpoints", {"name": "x", "url": "https://example.com/hook"}),
    ("POST", "/v1/tokens", {"name": "x", "scopes": ["jobs:read"]}),
    ("DELETE", "/v1/tokens/tok_1", None),
    ("POST", "/v1/deliveries/d/replays", None),
    ("DELETE", "/v1/session", None),
]


def assert_problem(answer: Any, status: int, code: str) -> dict[str, Any]:
    assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["trace_id"] == answer.headers["x-trace-id"]
    problem: dict[str, Any] = answer.json()
    return problem


class TestAuthentication:
    @pytest.mark.parametrize("path", READS)
    async def test_no_token_no_read(self, api: Any, path: str) -> None:
        async with api.anonymous() as client:
            answer = await client.get(path)
        assert_problem(answer, 401, "unauthenticated")
        assert answer.headers["www-authenticate"].startswith("Bearer")

    @pytest.mark.parametrize(("method", "path", "body"), WRITES)
    async def test_no_token_no_write(
        self, api: Any, incident: Any, method: Any, path: Any, body: Any
    ) -> None:
        async with api.anonymous() as client:
            answer = await client.request(method, path, json=body)
        assert_problem(answer, 401, "unauthenticated")

    @pytest.mark.parametrize("secret", ["plt_wrong", "x", "\u00e9", "plt_" + "A" * 4000])
    async def test_wrong_tokens(self, api: Any, secret: str) -> None:
        headers = {"Authorization": f"Bearer {secret}".encode()}
        async with api.anonymous() as client:
            assert_problem(await client.get("/v1/jobs", headers=headers), 401, "unauthenticated")

    @pytest.mark.parametrize(("method", "path", "body"), WRITES[:7])
    async def test_a_reader_writes_nothing(
        self, api: Any, incident: Any, method: Any, path: Any, body: Any
    ) -> None:
        token = await api.create_token("jobs:read", "incidents:read", "webhooks:read", "audit:read")
        async with api.anonymous(Authorization=f"Bearer {token}") as client:
            problem = assert_problem(await client.request(method, path, json=body), 403, "missing_scope")
        assert "needs the scope" in str(problem["detail"])

    async def test_each_scope_opens_its_own_door_only(self, api: Any, incident: Any) -> None:
        token = await api.create_token("jobs:read")
        async with api.anonymous(Authorization=f"Bearer {token}") as client:
            statuses = {path: (await client.get(path)).status_code for path in READS if path != "/v1/events"}
        allowed = [path for path, status in statuses.items() if status == 200]
        assert allowed == READS[:6]
        assert set(statuses.values()) == {200, 403}

    async def test_only_the_hash_is_stored(self, api: Any) -> None:
        from sqlalchemy import text

        async with api.database.transaction() as session:
            dump = str((await session.execute(text("SELECT * FROM tokens"))).all())
        assert api.token not in dump
        assert api.token[:10] in dump


class TestTokens:
    async def test_revoked_and_expired_tokens_are_dead(self, api: Any) -> None:
        created = (await api.client.post("/v1/tokens", json={"name": "a", "scopes": ["jobs:read"]})).json()
        soon = {"name": "b", "scopes": ["jobs:read"], "expires_at": "2026-01-02T04:00:00Z"}
        expiring = (await api.client.post("/v1/tokens", json=soon)).json()["token"]
        first = api.anonymous(Authorization=f"Bearer {created['token']}")
        second = api.anonymous(Authorization=f"Bearer {expiring}")
        assert (await first.get("/v1/jobs")).status_code == (await second.get("/v1/jobs")).status_code == 200
        assert (await api.client.delete(f"/v1/tokens/{created['id']}")).status_code == 204
        assert (await api.client.delete(f"/v1/tokens/{created['id']}")).status_code == 204
        api.clock.advance(7200)
        assert_problem(await first.get("/v1/jobs"), 401, "unauthenticated")
        assert_problem(await second.get("/v1/jobs"), 401, "unauthenticated")

    async def test_nobody_gives_more_than_they_have(self, api: Any) -> None:
        token = await api.create_token("tokens:write", "jobs:read")
        async with api.anonymous(Authorization=f"Bearer {token}") as client:
            more = await client.post("/v1/tokens", json={"name": "x", "scopes": ["incidents:write"]})
            less = await client.post("/v1/tokens", json={"name": "x", "scopes": ["jobs:read"]})
        assert_problem(more, 403, "missing_scope")
        assert less.status_code == 201

    async def test_nobody_revokes_a_token_that_may_do_more(self, api: Any) -> None:
        token = await api.create_token("tokens:write", "jobs:read")
        tokens = {}
        for scope in ("jobs:read", "incidents:write"):
            made = await api.client.post("/v1/tokens", json={"name": "x", "scopes": [scope]})
            tokens[scope] = made.json()
        async with api.anonymous(Authorization=f"Bearer {token}") as client:
            more = await client.delete(f"/v1/tokens/{tokens['incidents:write']['id']}")
            less = await client.delete(f"/v1/tokens/{tokens['jobs:read']['id']}")
        assert_problem(more, 403, "missing_scope")
        assert less.status_code == 204
        async with api.anonymous(Authorization=f"Bearer {tokens['incidents:write']['token']}") as client:
            assert (await client.get("/v1/me")).status_code == 200

    @pytest.mark.parametrize("expires", ["2020-01-01T00:00:00Z", "2027-01-01T00:00:00"])
    async def test_an_end_in_the_past_or_without_zone(self, api: Any, expires: str) -> None:
        body = {"name": "x", "scopes": ["jobs:read"], "expires_at": expires}
        problem = assert_problem(await api.client.post("/v1/tokens", json=body), 422, "invalid_request")
        assert problem["fields"][0]["field"] == "body.expires_at"

    async def test_the_first_token_is_made_once(self, api: Any) -> None:
        assert await ensure_first_token(api.services) is None
        declared = "plt_" + "d" * 40
        assert await ensure_first_token(api.services, declared) is None
        async with api.anonymous(Authorization=f"Bearer {declared}") as client:
            assert (await client.get("/v1/me")).json()["name"] == "admin"
        with pytest.raises(WeakToken, match="7 characters"):
            await ensure_first_token(api.services, "plt_abc")


class TestSession:
    async def sign_in(self, api: Any, client: Any) -> Any:
        return await client.post(
            "/v1/session", json={"token": api.token}, headers={"X-Paceline-Console": "1"}
        )

    async def test_the_cookie_reads_and_writes_only_from_our_own_page(self, api: Any, incident: Any) -> None:
        note, body = f"/v1/incidents/{incident}/notes", {"text": "x"}
        async with api.anonymous() as client:
            answer = await self.sign_in(api, client)
            assert answer.status_code == 201
            flags = answer.headers["set-cookie"].lower()
            assert "httponly" in flags
            assert "samesite=strict" in flags
            assert (await client.get("/v1/me")).json()["kind"] == "session"
            assert_problem(await client.post(note, json=body), 403, "cross_site_request")
            ours = {"X-Paceline-Console": "1", "Origin": "http://api"}
            theirs = ours | {"Origin": "http://evil.example"}
            assert_problem(await client.post(note, json=body, headers=theirs), 403, "cross_site_request")
            assert (await client.post(note, json=body, headers=ours)).status_code == 201

    async def test_signing_in_needs_the_header_and_a_token(self, api: Any) -> None:
        async with api.anonymous() as client:
            assert_problem(
                await client.post("/v1/session", json={"token": api.token}), 403, "cross_site_request"
            )
            wrong = await client.post(
                "/v1/session", json={"token": "plt_x"}, headers={"X-Paceline-Console": "1"}
            )
            assert_problem(wrong, 401, "unauthenticated")

    async def test_it_ends_by_signing_out_by_time_and_with_its_token(self, api: Any) -> None:
        async with api.anonymous() as client:
            await self.sign_in(api, client)
            cookie = client.cookies["paceline_session"]
            headers = {"X-Paceline-Console": "1"}
            assert (await client.delete("/v1/session", headers=headers)).status_code == 204
            stale = await client.get("/v1/me", headers={"Cookie": f"paceline_session={cookie}"})
            assert_problem(stale, 401, "unauthenticated")
            await self.sign_in(api, client)
            api.clock.advance(12 * 3600 + 1)
            assert_problem(await client.get("/v1/me"), 401, "unauthenticated")


class TestBadRequests:
    async def test_malformed_json(self, api: Any, incident: Any) -> None:
        answer = await api.client.post(
            f"/v1/incidents/{incident}/notes",
            content=b'{"text": ',
            headers={"Content-Type": "application/json"},
        )
        assert_problem(answer, 422, "invalid_request")

    @pytest.mark.parametrize("body", [b"\xff\xfe", b"[]", b"null", b'"x"', b'{"text": 1}', b"[" * 5000])
    async def test_other_bodies(self, api: Any, incident: Any, body: bytes) -> None:
        answer = await api.client.post(
            f"/v1/incidents/{incident}/notes", content=body, headers={"Content-Type": "application/json"}
        )
        assert_problem(answer, 422, "invalid_request")

    async def test_the_field_the_value_and_what_was_expected(self, api: Any, incident: Any) -> None:
        answer = await api.client.post(f"/v1/incidents/{incident}/notes", json={"text": "a", "colour": "red"})
        problem = assert_problem(answer, 422, "invalid_request")
        (field,) = problem["fields"]
        assert (field["field"], field["value"]) == ("body.colour", "'red'")
        assert "not permitted" in field["expected"]

    async def test_a_secret_in_a_wrong_body_is_not_repeated(self, api: Any) -> None:
        answer = await api.client.post(
            "/v1/session", json={"token": ["plt_secret"]}, headers={"X-Paceline-Console": "1"}
        )
        assert "plt_secret" not in answer.text

    async def test_huge_bodies_with_and_without_a_length(self, api: Any, incident: Any) -> None:
        async def pieces() -> Any:
            for _ in range(40):
                yield b"x" * 10_000

        path = f"/v1/incidents/{incident}/notes"
        for content in (b"x" * 300_000, pieces()):
            answer = await api.client.post(
                path, content=content, headers={"Content-Type": "application/json"}
            )
            assert_problem(answer, 413, "body_too_large")

    @pytest.mark.parametrize(
        ("path", "status"),
        [
            ("/v1/nothing", 404),
            ("/v1/incidents/INC-999", 404),
            ("/v1/incidents/%00", 422),
            ("/v1/jobs/nope", 404),
            ("/v1/incidents?limit=0", 422),
            ("/v1/incidents?limit=201", 422),
            ("/v1/incidents?status=closed", 422),
            ("/v1/incidents?cursor=zzz", 422),
            ("/v1/incidents?job=a%00b", 422),
            ("/v1/jobs/a%00b", 422),
            ("/v1/jobs/llama/planes/heat", 422),
            ("/v1/jobs/llama/ranks?attempt=zz", 404),
            ("/v1/events?after=-1", 422),
            ("/v1/incidents/INC-99999999999999999999999", 404),
        ],
    )
    async def test_paths_and_queries(self, api: Any, incident: Any, path: str, status: int) -> None:
        answer = await api.client.get(path)
        assert_problem(answer, status, "not_found" if status == 404 else "invalid_request")

    async def test_a_wrong_method(self, api: Any) -> None:
        assert_problem(await api.client.put("/v1/jobs"), 405, "method_not_allowed")

    async def test_every_answer_has_the_security_headers(self, api: Any) -> None:
        for path in ("/v1/jobs", "/healthz", "/v1/nothing"):
            headers = (await api.client.get(path)).headers
            assert headers["x-content-type-options"] == "nosniff"
            assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert (await api.client.get("/v1/jobs")).headers["cache-control"] == "no-store"
