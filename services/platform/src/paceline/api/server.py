"""The API as an app: uvicorn inside the event loop that it is given."""

import asyncio
import contextlib
import socket
import sys
from collections.abc import Callable, Iterator

import uvicorn

from paceline.api.app import create_app
from paceline.api.first_token import ensure_first_token
from paceline.api.services import Services, Streams
from paceline.api.settings import ApiSettings
from paceline.contracts.ids import NewId, new_id
from paceline.runtime.app import BackgroundTasks, Readiness
from paceline.runtime.clock import Clock, SystemClock
from paceline.runtime.logging import get_logger
from paceline.runtime.retry import Backoff
from paceline.store import is_transient
from paceline.store.outbox_watch import OutboxWatch

log = get_logger(__name__)
BACKLOG_COUNT = 128
KEEPALIVE_S = 20


class PortTaken(OSError):
    """The address cannot be listened on; the message says which and how to choose another."""


class _Server(uvicorn.Server):
    """Leaves signals to whoever runs the loop, and says when it listens."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listening.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class ApiApp:
    """`on_first_token` is called once, with the admin token, when the database has none yet and none
    is declared; by default it is printed. It is never logged."""

    name = "api"

    def __init__(
        self,
        settings: ApiSettings,
        clock: Clock | None = None,
        make_id: NewId = new_id,
        *,
        on_first_token: Callable[[str], None] | None = None,
    ) -> None:
        self._settings = settings
        self._clock = clock or SystemClock()
        self._on_first_token = on_first_token or print_token
        self._database = settings.database.open()
        self._watch = OutboxWatch(settings.database.url, poll_s=settings.outbox_poll_s)
        self._services = Services(
            settings=settings,
            database=self._database,
            clock=self._clock,
            new_id=make_id,
            watch=self._watch,
            streams=Streams(settings.streams_max),
            console_url=settings.console_url,
        )
        self._tasks = BackgroundTasks()
        self._server: _Server | None = None
        self._socket: socket.socket | None = None
        self._serving: asyncio.Task[None] | None = None
        self._token_ready = False
        self.first_token: str | None = None

    @property
    def port(self) -> int:
        """The port listened on, 0 before start."""
        return 0 if self._socket is None else int(self._socket.getsockname()[1])

    @property
    def url(self) -> str:
        """Base address, for a browser on this machine."""
        return f"http://{self._settings.host}:{self.port}"

    async def start(self) -> None:
        """Listen. PortTaken where the address is in use; the database is not waited for."""
        self._socket = self._bind()
        await self._watch.start()
        config = uvicorn.Config(
            create_app(self._services),
            log_config=None,
            access_log=False,
            lifespan="off",
            server_header=False,
            limit_concurrency=self._settings.connections_max,
            timeout_keep_alive=KEEPALIVE_S,
            timeout_graceful_shutdown=max(1, int(self._settings.stop_timeout_s)),
        )
        self._server = _Server(config)
        self._serving = self._tasks.spawn("api-server", self._server.serve(sockets=[self._socket]))
        self._tasks.spawn("api-first-token", self._make_first_token())
        listening = asyncio.create_task(self._server.listening.wait())
        await asyncio.wait({listening, self._serving}, return_when=asyncio.FIRST_COMPLETED)
        listening.cancel()
        log.info("api_listening", url=self.url)

    async def stop(self) -> None:
        """End the event streams, finish what is under way within `stop_timeout_s`, let go."""
        await self._watch.stop()
        if self._server is not None and self._serving is not None:
            self._server.should_exit = True
            await asyncio.wait({self._serving}, timeout=self._settings.stop_timeout_s + 1)
        await self._tasks.cancel()
        if self._socket is not None:
            self._socket.close()
        await self._database.stop()

    async def crashed(self) -> BaseException:
        return await self._tasks.crashed()

    def readiness(self) -> Readiness:
        if not self._token_ready:
            return Readiness(False, "api: the database has not answered yet")
        return Readiness(True)

    def _bind(self) -> socket.socket:
        host, port = self._settings.host, self._settings.port
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.socket(family, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((host, port))
        except OSError as error:
            listening.close()
            raise PortTaken(
                f"cannot listen on {host}:{port}: {error.strerror}; set PACELINE_API_PORT to a free port"
            ) from error
        listening.listen(BACKLOG_COUNT)
        listening.setblocking(False)
        return listening

    async def _make_first_token(self) -> None:
        backoff = Backoff(first_s=0.2, max_s=5.0)
        attempt = 0
        declared = self._settings.admin_token
        while not self._token_ready:
            try:
                self.first_token = await ensure_first_token(
                    self._services, None if declared is None else declared.get_secret_value()
                )
                self._token_ready = True
            except Exception as error:
                if not is_transient(error):
                    raise
                await asyncio.sleep(backoff.delay_s(attempt))
                attempt += 1
        if self.first_token is not None:
            self._on_first_token(self.first_token)


def print_token(token: str) -> None:
    """For whoever started the service: the token is shown nowhere else."""
    sys.stdout.write(f"first API token (shown once, all scopes): {token}\n")
    sys.stdout.flush()
