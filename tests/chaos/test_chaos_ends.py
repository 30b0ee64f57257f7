"""Ends and pauses of jobs that are meant: no incident. And a restart while the old one is open."""

import asyncio
import signal
from typing import Any

import pytest

from tests.chaos.conftest import Chaos, roots

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def state_of(chaos: Chaos, job: str) -> str:
    answer: dict[str, Any] = await chaos.stack.get(f"/v1/jobs/{job}")
    return str(answer["state"])


async def test_ends_and_pauses_open_no_incident(chaos: Chaos, eventually: Any) -> None:
    """Ragged end, cancelled job, suspended job, declared checkpoint, orderly end, side by side.

    The sentinel hangs after each step and is found after it: what the others had to report by then
    would have been reported before.
    """
    names = ("ragged", "cancelled", "suspended", "checkpoint", "orderly")
    jobs = dict(zip(names, await asyncio.gather(*(chaos.launch() for _ in names)), strict=True))
    for rank in (2, 3):
        jobs["ragged"].tell(rank, "finish", step=30)
    jobs["orderly"].tell(-1, "finish", step=40)
    jobs["cancelled"].kill(-1, signal.SIGTERM)
    jobs["suspended"].kill(-1, signal.SIGSTOP)
    await jobs["checkpoint"].stuck(1, "hold", phase="checkpoint")
    for rank in (2, 3):
        await jobs["ragged"].place(rank, "ended")
    sentinel = await chaos.sentinel()
    jobs["suspended"].kill(-1, signal.SIGCONT)
    jobs["checkpoint"].tell(1, "go")
    jobs["ragged"].tell(-1, "leave")
    await asyncio.gather(jobs["suspended"].progress(), jobs["checkpoint"].progress())
    assert await jobs["ragged"].exits() == [0] * 4
    assert await jobs["orderly"].exits() == [0] * 4
    assert await jobs["cancelled"].exits() == [-signal.SIGTERM] * 4
    sentinel.tell(1, "go")
    await chaos.incident(sentinel, "resolved")
    await sentinel.stuck(1, "hold")
    await chaos.incident(sentinel, reopened=1)
    found = {name: await chaos.stack.incidents(job.job) for name, job in jobs.items()}
    assert {name: [i["summary"] for i in some] for name, some in found.items()} == {
        name: [] for name in names
    }
    assert await state_of(chaos, jobs["ragged"].job) == "finished"
    assert await state_of(chaos, jobs["orderly"].job) == "finished"
    assert await state_of(chaos, jobs["cancelled"].job) == "cancelled"
    assert await state_of(chaos, jobs["suspended"].job) == "running"


async def test_cancelled_one_rank_after_the_other(chaos: Chaos) -> None:
    """SIGTERM reaches the ranks over some seconds, while the others wait for the first to go."""
    job = await chaos.launch()
    job.kill(0, signal.SIGTERM)
    sentinel = await chaos.sentinel()
    for rank in (1, 2, 3):
        job.kill(rank, signal.SIGTERM)
    assert await job.exits() == [-signal.SIGTERM] * 4
    sentinel.tell(1, "go")
    await chaos.incident(sentinel, "resolved")
    await sentinel.stuck(1, "hold")
    await chaos.incident(sentinel, reopened=1)
    assert await chaos.stack.incidents(job.job) == []


async def test_undeclared_pause_resolves_by_itself(chaos: Chaos) -> None:
    job = await chaos.launch()
    await job.stuck(3, "hold", "dp", seconds=6.0)
    incident = await chaos.incident(job)
    assert (incident["verdict_class"], roots(incident)) == ("H1", [3])
    await chaos.incident(job, "resolved")


async def test_restart_under_the_same_name(chaos: Chaos) -> None:
    """The old attempt's incident ends with it and stays what it was; the new attempt has its own."""
    old = await chaos.launch()
    await old.stuck(1, "hold")
    incident = await chaos.incident(old)
    old.kill(-1, signal.SIGKILL)
    new = await chaos.launch(old.job, attempt="a2")
    closed = await chaos.incident(old, "resolved")
    assert (closed["verdict_class"], roots(closed)) == (incident["verdict_class"], [1])
    await new.progress()
    await new.stuck(2, "hold")
    other = await chaos.incident(new)
    assert (other["verdict_class"], roots(other), other["attempt"]) == ("H1", [2], "a2")
    assert [i["id"] for i in await chaos.stack.incidents(old.job)] == [incident["id"], other["id"]]
    new.tell(2, "go")
    await chaos.incident(new, "resolved")


async def test_started_again_before_the_verdict(chaos: Chaos) -> None:
    """All ranks die at once and the job is back within a second: told, and over."""
    old = await chaos.launch()
    old.kill(-1, signal.SIGKILL)
    new = await chaos.launch(old.job, attempt="a2")
    incident = await chaos.incident(old, "resolved")
    assert incident["verdict_class"] == "DEAD_PROCESS"
    changes = [kind for kind in await chaos.changes(incident) if kind != "updated"]
    assert changes == ["opened", "resolved"]
    await new.progress()
    assert [i["attempt"] for i in await chaos.stack.incidents(old.job)] == ["a1"]
