"""Around every request: a bound on the body, a trace id, security headers, the duration."""

import re
import secrets

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from paceline.api.errors import PROBLEM_MEDIA_TYPE, ApiError, BodyTooLarge
from paceline.runtime.clock import Clock
from paceline.runtime.metrics import observe

TRACEPARENT = re.compile(r"^[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}$")
SECURITY_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; img-src 'self' data: blob:; style-src 'self' 'unsafe-inline'; "
        "connect-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self'; "
        "frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}


def problem_response(error: ApiError, trace_id: str) -> JSONResponse:
    """The answer to an error."""
    return JSONResponse(
        error.problem(trace_id).model_dump(mode="json"),
        status_code=error.status,
        headers=error.headers,
        media_type=PROBLEM_MEDIA_TYPE,
    )


class RequestFrame:
    """Outermost: trace id and security headers on every answer, request durations."""

    def __init__(self, app: ASGIApp, clock: Clock) -> None:
        self._app = app
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        trace_id = read_trace_id(Headers(scope=scope).get("traceparent", ""))
        scope.setdefault("state", {})["trace_id"] = trace_id
        began_ns = self._clock.monotonic_ns()
        status = 500

        async def framed(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers["X-Trace-Id"] = trace_id
                for name, value in SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
                if scope["path"].startswith("/v1"):
                    headers.setdefault("Cache-Control", "no-store")
            await send(message)

        try:
            await self._app(scope, receive, framed)
        finally:
            route = getattr(scope.get("route"), "path", "other")
            elapsed_s = (self._clock.monotonic_ns() - began_ns) / 1e9
            observe("paceline.api.request", elapsed_s, route=route, status=str(status))


def read_trace_id(traceparent: str) -> str:
    """Trace id of a W3C traceparent, else a fresh one."""
    found = TRACEPARENT.match(traceparent)
    return found.group(1) if found and found.group(1) != "0" * 32 else secrets.token_hex(16)


class BodyLimit:
    """413 for a body above `bytes_max`, before it is read as far as its length is declared."""

    def __init__(self, app: ASGIApp, bytes_max: int) -> None:
        self._app = app
        self._bytes_max = bytes_max

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        declared = Headers(scope=scope).get("content-length", "")
        if declared.isdigit() and int(declared) > self._bytes_max:
            await self._refuse(scope, receive, send, int(declared))
            return
        body: list[bytes] = []
        size = 0
        more = scope["method"] not in {"GET", "HEAD", "OPTIONS"}
        while more:
            message = await receive()
            if message["type"] != "http.request":
                return  # the client has gone
            body.append(message.get("body", b""))
            size += len(body[-1])
            if size > self._bytes_max:
                await self._refuse(scope, receive, send, size)
                return
            more = message.get("more_body", False)
        await self._app(scope, _replay(b"".join(body), receive) if body else receive, send)

    async def _refuse(self, scope: Scope, receive: Receive, send: Send, size: int) -> None:
        error = BodyTooLarge(f"the body has {size} bytes or more, at most {self._bytes_max} are read")
        response = problem_response(error, scope["state"]["trace_id"])
        response.headers["Connection"] = "close"
        await response(scope, receive, send)


def _replay(body: bytes, receive: Receive) -> Receive:
    """A receive that gives the whole body once, then what follows."""
    sent = False

    async def replay() -> Message:
        nonlocal sent
        if sent:
            return await receive()
        sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay
