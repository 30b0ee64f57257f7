"""A webhook receiver that can be away, or hold its callers."""

import asyncio
import json
import socket
from dataclasses import dataclass

from standardwebhooks.webhooks import Webhook, WebhookVerificationError

HOST = "127.0.0.1"


@dataclass(frozen=True)
class Receipt:
    message_id: str
    event_type: str
    incident: str
    is_signed: bool


class Hook:
    """Keeps a port of its own from construction on; listens between `start` and `stop`."""

    def __init__(self) -> None:
        self.receipts: list[Receipt] = []
        self.secret = ""
        self.arrived = 0  # requests, answered or not
        self.answers = asyncio.Event()  # cleared: requests are read and never answered
        self.answers.set()
        self._server: asyncio.Server | None = None
        self._handlers: set[asyncio.Task[None]] = set()
        with socket.socket() as probe:
            probe.bind((HOST, 0))
            self._port = int(probe.getsockname()[1])

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self._port}/hook"

    def of_incident(self, incident: str) -> list[Receipt]:
        return [receipt for receipt in self.receipts if receipt.incident == incident]

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, HOST, self._port)

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for handler in list(self._handlers):
            handler.cancel()
        await asyncio.gather(*self._handlers, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._handlers.add(task)
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            headers = {
                name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])
            }
            body = await reader.readexactly(int(headers["content-length"]))
            self.arrived += 1
            if not self.answers.is_set():
                await self.answers.wait()
                return  # the sender gave up long ago
            self._keep(headers, body)
            writer.write(b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n")
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._handlers.discard(task)
            writer.close()

    def _keep(self, headers: dict[str, str], body: bytes) -> None:
        message = json.loads(body)
        try:
            Webhook(self.secret).verify(body, headers)
            is_signed = True
        except WebhookVerificationError:
            is_signed = False
        self.receipts.append(
            Receipt(headers["webhook-id"], message["type"], message["data"]["id"], is_signed)
        )
