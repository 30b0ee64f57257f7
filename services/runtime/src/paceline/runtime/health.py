"""/healthz, /readyz and /metrics on a small HTTP server of its own.

/healthz answers while the event loop turns; /readyz asks each app; a request is bounded in size and
time, connections in number, so a slow or hostile client costs nothing.
"""

import asyncio
import contextlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from paceline.runtime.app import Readiness
from paceline.runtime.logging import get_logger
from paceline.runtime.metrics import gauge
from paceline.runtime.settings import HttpSettings

REQUEST_BYTES_MAX = 8_192
REASONS = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    503: "Service Unavailable",
}
log = get_logger(__name__)

Check = Callable[[], Readiness]


@dataclass(frozen=True)
class Reply:
    status: int
    body: bytes
    content_type: str = "application/json"


class HealthServer:
    """An app of its own; `checks` maps an app's name to its word on readiness."""

    name = "health"

    def __init__(
        self, settings: HttpSettings, checks: Mapping[str, Check], scrape: Callable[[], bytes] | None = None
    ) -> None:
        self._settings = settings
        self._checks = checks
        self._scrape = scrape
        self._server: asyncio.Server | None = None
        self._open = 0

    @property
    def port(self) -> int:
        """The port listened on, 0 before start."""
        return int(self._server.sockets[0].getsockname()[1]) if self._server else 0

    async def start(self) -> None:
        self._server = await asyncio.start_server(
            self._serve, self._settings.host, self._settings.port, limit=REQUEST_BYTES_MAX
        )
        log.info("health_listening", host=self._settings.host, port=self.port)

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()
            self._server = None

    def reply(self, method: str, path: str) -> Reply:
        """Answer to one request; pure but for what the checks look at."""
        path = path.partition("?")[0]
        if path not in ("/healthz", "/readyz", "/metrics"):
            return Reply(404, b'{"title":"expected /healthz, /readyz or /metrics"}\n')
        if method not in ("GET", "HEAD"):
            return Reply(405, b'{"title":"expected GET"}\n')
        if path == "/metrics":
            body = self._scrape() if self._scrape else b""
            return Reply(200, body, "text/plain; version=0.0.4; charset=utf-8")
        if path == "/healthz":
            return Reply(200, b'{"status":"alive"}\n')
        states = {name: check() for name, check in self._checks.items()}
        for name, state in states.items():
            gauge("paceline.app.ready", float(state.ready), app=name)
        ready = all(state.ready for state in states.values())
        summary = {
            "status": "ready" if ready else "not ready",
            "apps": {name: {"ready": state.ready, "detail": state.detail} for name, state in states.items()},
        }
        return Reply(200 if ready else 503, json.dumps(summary).encode() + b"\n")

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            if self._open <= self._settings.connections_max:
                async with asyncio.timeout(self._settings.request_timeout_s):
                    await self._answer(reader, writer)
        except (TimeoutError, OSError, asyncio.IncompleteReadError):
            pass
        finally:
            self._open -= 1
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            method, path, _ = head.split(b"\r\n", 1)[0].decode("ascii").split(" ", 2)
        except (asyncio.LimitOverrunError, ValueError):
            method, reply = "GET", Reply(400, b'{"title":"expected an HTTP/1.1 request of at most 8 KiB"}\n')
        else:
            reply = self.reply(method, path)
        lines = (
            f"HTTP/1.1 {reply.status} {REASONS[reply.status]}",
            f"content-type: {reply.content_type}",
            f"content-length: {len(reply.body)}",
            "connection: close",
            "\r\n",
        )
        writer.write("\r\n".join(lines).encode() + (b"" if method == "HEAD" else reply.body))
        await writer.drain()
