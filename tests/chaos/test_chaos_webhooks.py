"""Receivers that are away or slow: each event arrives once, and nobody waits for somebody else's."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import pytest_asyncio

from tests.chaos.conftest import Chaos
from tests.chaos.hook import Hook

pytestmark = pytest.mark.asyncio(loop_scope="module")
DELIVERY_S_MAX = 60.0  # attempts after 0, 2, 7, 17 and 37 s
StartHook = Callable[..., Awaitable[tuple[Hook, str]]]


@pytest_asyncio.fixture(loop_scope="module")
async def register(chaos: Chaos) -> AsyncIterator[StartHook]:
    """A hook, registered as an endpoint; it listens unless told otherwise."""
    registered: list[tuple[Hook, str]] = []

    async def start(*, listens: bool = True) -> tuple[Hook, str]:
        hook = Hook()
        answer = await chaos.stack.client.post("/v1/webhook-endpoints", json={"name": "h", "url": hook.url})
        assert answer.status_code == 201, answer.text
        hook.secret = answer.json()["secret"]
        registered.append((hook, answer.json()["id"]))
        if listens:
            await hook.start()
        return registered[-1]

    yield start
    for hook, endpoint in registered:
        await hook.stop()
        await chaos.stack.client.delete(f"/v1/webhook-endpoints/{endpoint}")


async def log_of(chaos: Chaos, endpoint: str) -> list[dict[str, Any]]:
    """Deliveries of one endpoint, oldest first."""
    page = await chaos.stack.get("/v1/deliveries", endpoint=endpoint)
    return list(reversed(page["items"]))


async def test_endpoint_is_down_and_comes_up(chaos: Chaos, register: StartHook, eventually: Any) -> None:
    """The notifier is restarted in between, too."""
    hook, endpoint = await register(listens=False)
    job = await chaos.launch()
    await job.stuck(1, "hold")
    incident = await chaos.incident(job)

    async def tried_twice() -> bool:
        return any(row["attempts_count"] >= 2 for row in await log_of(chaos, endpoint))

    await eventually(tried_twice, 30)
    (row,) = await log_of(chaos, endpoint)
    assert (row["status"], row["event_type"]) == ("pending", "incident.opened")
    assert "Connect" in row["error"]
    await chaos.stack.restart("notifier")
    await hook.start()
    job.tell(1, "go")
    await chaos.incident(job, "resolved")

    async def all_delivered() -> bool:
        return [row["status"] for row in await log_of(chaos, endpoint)] == ["delivered"] * 2

    await eventually(all_delivered, DELIVERY_S_MAX)
    opened, resolved = await log_of(chaos, endpoint)
    assert (opened["event_type"], resolved["event_type"]) == ("incident.opened", "incident.resolved")
    assert opened["attempts_count"] >= 3
    assert opened["response_status"] == 204
    receipts = hook.of_incident(incident["id"])
    assert sorted(receipt.event_type for receipt in receipts) == ["incident.opened", "incident.resolved"]
    assert {receipt.message_id for receipt in receipts} == {opened["event_id"], resolved["event_id"]}
    assert all(receipt.is_signed for receipt in receipts)


async def test_slow_endpoint_delays_nobody_else(chaos: Chaos, register: StartHook, eventually: Any) -> None:
    """One receiver holds every call; the other has all events meanwhile."""
    slow, slow_endpoint = await register()
    fast, fast_endpoint = await register()
    slow.answers.clear()
    jobs = await asyncio.gather(*(chaos.launch(world=2) for _ in range(4)))
    await asyncio.gather(*(job.stuck(1, "hold") for job in jobs))
    incidents = [await chaos.incident(job) for job in jobs]
    await eventually(lambda: len(fast.receipts) == len(jobs), 15)
    assert {receipt.incident for receipt in fast.receipts} == {incident["id"] for incident in incidents}
    assert slow.arrived > 0
    assert slow.receipts == []

    async def fast_is_settled() -> bool:
        return [row["status"] for row in await log_of(chaos, fast_endpoint)] == ["delivered"] * len(jobs)

    await eventually(fast_is_settled, 10)
    assert slow.receipts == []

    async def timed_out() -> bool:
        rows = await log_of(chaos, slow_endpoint)
        return all(row["status"] == "pending" for row in rows) and any(
            "no response" in row["error"] for row in rows
        )

    await eventually(timed_out, 20)
    slow.answers.set()

    async def all_delivered() -> bool:
        return [row["status"] for row in await log_of(chaos, slow_endpoint)] == ["delivered"] * len(jobs)

    await eventually(all_delivered, DELIVERY_S_MAX)
    assert sorted(r.message_id for r in slow.receipts) == sorted(r.message_id for r in fast.receipts)
