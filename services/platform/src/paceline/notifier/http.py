"""One POST: bounded in time and size, redirects not followed."""

import asyncio
import ssl
from collections.abc import Mapping

import httpcore

from paceline.notifier.decisions import AttemptReason, Outcome, parse_retry_after, reason_of_status
from paceline.notifier.guard import AddressPolicy, ForbiddenAddress, GuardedBackend, Resolve, resolve
from paceline.notifier.settings import NotifierSettings
from paceline.runtime.clock import Clock
from paceline.store.times import from_unix

ERROR_LENGTH_MAX = 300
EXCERPT_BYTES_MAX = 500  # of a refusing response, for the delivery log
ERRORS = (
    httpcore.NetworkError,
    httpcore.ProtocolError,
    httpcore.UnsupportedProtocol,
    httpcore.ProxyError,
    OSError,
    ValueError,
)


class Sender:
    """Posts bodies. `guarded` senders refuse private addresses as the settings say."""

    def __init__(
        self,
        settings: NotifierSettings,
        clock: Clock,
        *,
        timeout_s: float,
        guarded: bool,
        resolve: Resolve = resolve,
    ) -> None:
        policy = AddressPolicy(settings.allow_private_addresses, settings.networks)
        ca_file = settings.webhook_ca_file
        self._clock = clock
        self._timeout_s = timeout_s
        self._pool = httpcore.AsyncConnectionPool(
            ssl_context=ssl.create_default_context(cafile=str(ca_file) if ca_file else None),
            max_connections=None,  # bounded by the dispatcher's slots
            max_keepalive_connections=settings.concurrency_max,
            keepalive_expiry=30.0,
            network_backend=GuardedBackend(policy, resolve) if guarded else None,
        )

    async def stop(self) -> None:
        await self._pool.aclose()

    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> Outcome:
        """How one attempt ended; never raises for what the receiver or the network does."""
        started_ns = self._clock.monotonic_ns()
        outcome = await self._post(url, headers, body)
        seconds = (self._clock.monotonic_ns() - started_ns) / 1e9
        return Outcome(
            outcome.status, outcome.reason, outcome.error[:ERROR_LENGTH_MAX], outcome.retry_after_s, seconds
        )

    async def _post(self, url: str, headers: Mapping[str, str], body: bytes) -> Outcome:
        try:
            async with (
                asyncio.timeout(self._timeout_s),
                self._pool.stream("POST", url, headers=list(headers.items()), content=body) as response,
            ):
                return await self._read(response)
        except ForbiddenAddress as error:
            return Outcome(None, AttemptReason.FORBIDDEN, str(error))
        except (TimeoutError, httpcore.TimeoutException):
            return Outcome(None, AttemptReason.TIMED_OUT, f"no response within {self._timeout_s:g} s")
        except ERRORS as error:
            return Outcome(None, AttemptReason.UNREACHABLE, f"{type(error).__name__}: {error}")

    async def _read(self, response: httpcore.Response) -> Outcome:
        reason = reason_of_status(response.status)
        if reason is AttemptReason.DELIVERED:
            return Outcome(response.status, reason)
        retry_after_s = None
        for name, value in response.headers:
            if name.lower() == b"retry-after":
                now = from_unix(self._clock.unix_s())
                retry_after_s = parse_retry_after(value.decode("latin-1"), now)
        excerpt = await _excerpt(response)
        error = f"HTTP {response.status}" + (f": {excerpt}" if excerpt else "")
        return Outcome(response.status, reason, error, retry_after_s)


async def _excerpt(response: httpcore.Response) -> str:
    """The beginning of the body, printable; the rest is not read."""
    received = b""
    async for part in response.aiter_stream():
        received += part[:EXCERPT_BYTES_MAX]
        if len(received) >= EXCERPT_BYTES_MAX:
            break
    text = received[:EXCERPT_BYTES_MAX].decode(errors="replace")
    return "".join(letter if letter.isprintable() else " " for letter in text).strip()
