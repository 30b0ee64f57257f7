import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

import pytest

from paceline.notifier.decisions import AttemptReason
from paceline.notifier.http import Sender
from paceline.notifier.settings import NotifierSettings
from paceline.runtime.clock import SystemClock
from tests.unit.notifier.http_receiver import HttpReceiver, Request, reply


@dataclass
class Setup:
    receiver: HttpReceiver
    sender: Sender


@pytest.fixture
async def local() -> AsyncIterator[Setup]:
    receiver = HttpReceiver()
    await receiver.start()
    settings = NotifierSettings(allow_private_addresses=True)
    sender = Sender(settings, SystemClock(), timeout_s=1.0, guarded=True)
    yield Setup(receiver, sender)
    await sender.stop()
    await receiver.stop()


async def test_posts_headers_and_body(local: Setup) -> None:
    outcome = await local.sender.post(local.receiver.url + "/hook?x=1", {"webhook-id": "evt_1"}, b'{"a":1}')
    assert (outcome.status, outcome.reason) == (204, AttemptReason.DELIVERED)
    request = local.receiver.requests[0]
    assert (request.path, request.headers["webhook-id"], request.body) == ("/hook?x=1", "evt_1", b'{"a":1}')


async def test_a_redirect_is_a_failure_and_is_not_followed(local: Setup) -> None:
    elsewhere = HttpReceiver()
    await elsewhere.start()
    local.receiver.answers = [reply(302, f"location: {elsewhere.url}/\r\n")]
    outcome = await local.sender.post(local.receiver.url, {}, b"{}")
    assert (outcome.status, outcome.reason) == (302, AttemptReason.REDIRECTED)
    assert elsewhere.requests == []
    await elsewhere.stop()


async def test_an_error_brings_its_words_and_its_retry_after(local: Setup) -> None:
    local.receiver.answers = [reply(429, "Retry-After: 7\r\n", b"slow\x00down" + b"x" * 100_000)]
    outcome = await local.sender.post(local.receiver.url, {}, b"{}")
    assert (outcome.status, outcome.reason, outcome.retry_after_s) == (429, AttemptReason.THROTTLED, 7.0)
    assert outcome.error.startswith("HTTP 429: slow down")
    assert len(outcome.error) <= 300


async def test_a_silent_receiver_times_out(local: Setup) -> None:
    async def never(request: Request) -> bytes:
        await asyncio.Event().wait()
        return b""

    local.receiver.answers = [never]
    outcome = await local.sender.post(local.receiver.url, {}, b"{}")
    assert (outcome.status, outcome.reason) == (None, AttemptReason.TIMED_OUT)
    assert outcome.seconds >= 1.0


async def test_a_receiver_that_drips_its_answer_times_out(local: Setup) -> None:
    async def half(request: Request) -> bytes:
        return b"HTTP/1.1 500 X\r\ncontent-length: 100\r\n\r\nhalf"

    local.receiver.answers = [half]
    outcome = await local.sender.post(local.receiver.url, {}, b"{}")
    assert outcome.reason is not AttemptReason.DELIVERED


async def test_nobody_listens(local: Setup) -> None:
    url = local.receiver.url
    await local.receiver.stop()
    outcome = await local.sender.post(url, {}, b"{}")
    assert (outcome.status, outcome.reason) == (None, AttemptReason.UNREACHABLE)


async def test_not_http_at_all(local: Setup) -> None:
    local.receiver.answers = [b"SSH-2.0-OpenSSH\r\n"]
    outcome = await local.sender.post(local.receiver.url, {}, b"{}")
    assert outcome.reason is AttemptReason.UNREACHABLE


@pytest.mark.parametrize("url", ["ftp://127.0.0.1/x", "http://", "not a url", "http://[::1"])
async def test_an_url_that_is_none_is_unreachable(local: Setup, url: str) -> None:
    outcome = await local.sender.post(url, {}, b"{}")
    assert outcome.reason is AttemptReason.UNREACHABLE


async def test_loopback_is_refused_unless_allowed() -> None:
    receiver = HttpReceiver()
    await receiver.start()
    sender = Sender(NotifierSettings(), SystemClock(), timeout_s=1.0, guarded=True)
    outcome = await sender.post(receiver.url, {}, b"{}")
    assert outcome.reason is AttemptReason.FORBIDDEN
    assert "PACELINE_NOTIFIER_ALLOW_PRIVATE_ADDRESSES" in outcome.error
    assert receiver.requests == []
    await sender.stop()
    await receiver.stop()


async def test_a_public_name_that_leads_home_is_refused_and_resolved_once() -> None:
    asked: list[str] = []

    async def resolve(host: str, port: int) -> Sequence[str]:
        asked.append(host)
        return ["203.0.113.7", "169.254.169.254"] if len(asked) == 1 else ["203.0.113.7"]

    settings = NotifierSettings(allow_private_addresses=True)
    sender = Sender(settings, SystemClock(), timeout_s=1.0, guarded=True, resolve=resolve)
    outcome = await sender.post("http://hooks.example/", {}, b"{}")
    assert outcome.reason is AttemptReason.FORBIDDEN
    assert asked == ["hooks.example"]
    await sender.stop()
