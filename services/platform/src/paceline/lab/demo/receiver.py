"""A webhook receiver on loopback: what a user's own endpoint would see, with its signature checked."""

import asyncio
import time
from dataclasses import dataclass

from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from paceline.contracts.ids import new_id

HOST = "127.0.0.1"
BODY_BYTES_MAX = 1 << 20
READ_TIMEOUT_S = 5.0
RECEIPTS_MAX = 1000


@dataclass(frozen=True)
class Receipt:
    """One delivery."""

    received_ns: int  # CLOCK_MONOTONIC
    message_id: str
    is_signed: bool
    body: bytes


class Receiver:
    """Answers 204 to every POST and keeps the newest RECEIPTS_MAX."""

    def __init__(self) -> None:
        self.receipts: list[Receipt] = []
        self.secret = ""
        self._server: asyncio.Server | None = None
        self._path = f"/{new_id('hook')}"

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"http://{HOST}:{self._server.sockets[0].getsockname()[1]}{self._path}"

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, HOST, 0)

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(READ_TIMEOUT_S):
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
                headers = {
                    name.strip().lower(): value.strip()
                    for name, _, value in (line.partition(":") for line in head[1:])
                }
                length = min(int(headers.get("content-length", "0")), BODY_BYTES_MAX)
                body = await reader.readexactly(length)
                self._keep(headers, body)
                writer.write(b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n")
                await writer.drain()
        except (TimeoutError, OSError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            writer.close()

    def _keep(self, headers: dict[str, str], body: bytes) -> None:
        receipt = Receipt(
            received_ns=time.monotonic_ns(),
            message_id=headers.get("webhook-id", ""),
            is_signed=self._verify(headers, body),
            body=body,
        )
        self.receipts = [*self.receipts, receipt][-RECEIPTS_MAX:]

    def _verify(self, headers: dict[str, str], body: bytes) -> bool:
        if not self.secret:
            return False
        try:
            Webhook(self.secret).verify(body, headers)
        except (WebhookVerificationError, ValueError):
            return False
        return True
