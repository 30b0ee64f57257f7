"""Parts go away and come back while a job hangs: one incident, not lost, not doubled."""

import asyncio
import signal
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest
import pytest_asyncio

from paceline.contracts.registry import HealthKind
from paceline.localizer import LocalizerApp
from tests.chaos.conftest import Chaos, Incident, roots
from tests.chaos.driver import FakeJob
from tests.chaos.stack import AgentProcess

pytestmark = pytest.mark.asyncio(loop_scope="module")
RECOVERY_S_MAX = 60.0  # reconnects back off up to 5 s, a group is balanced again after its session


@pytest_asyncio.fixture(loop_scope="module")
async def agent(chaos: Chaos) -> AsyncIterator[AgentProcess]:
    agent = AgentProcess(chaos.stack, "node-b")
    await agent.start()
    yield agent
    await chaos.close()
    await agent.end()


async def check_story(chaos: Chaos, job: FakeJob, incident: Incident, rank: int) -> None:
    """The hang ends, comes back and ends: still one incident, each step told once."""
    job.tell(rank, "go")
    await chaos.incident(job, "resolved", within_s=RECOVERY_S_MAX)
    await job.stuck(rank, "hold")
    await chaos.incident(job, reopened=1)
    job.tell(rank, "go")
    await chaos.incident(job, "resolved", reopened=1)
    changes = [kind for kind in await chaos.changes(incident) if kind != "updated"]
    assert changes == ["opened", "resolved", "reopened", "resolved"]


async def test_agent_is_killed_and_restarted(chaos: Chaos, agent: AgentProcess) -> None:
    """Before the verdict, and again after it."""
    job = await chaos.launch(socket=agent.socket)
    await job.stuck(1, "hold")
    await agent.end(signal.SIGKILL)
    await agent.start()
    incident = await chaos.incident(job, within_s=RECOVERY_S_MAX)
    assert (incident["verdict_class"], roots(incident)) == ("H1", [1])
    await agent.end(signal.SIGKILL)
    await agent.start()
    await check_story(chaos, job, incident, 1)


async def test_agent_is_away_for_longer_than_silence(
    chaos: Chaos, agent: AgentProcess, eventually: Any
) -> None:
    """The node counts as lost in the meantime; the hang remains the cause."""
    job = await chaos.launch(socket=agent.socket)
    await job.stuck(2, "hold")
    incident = await chaos.incident(job)
    await agent.end(signal.SIGKILL)
    localizer = cast(LocalizerApp, chaos.stack.parts["localizer"][0])
    memory = localizer.core.memory.attempt(job.job, job.attempt)
    await eventually(lambda: any(e.kind is HealthKind.HEARTBEAT_LOST for e in memory.health), 30)
    await agent.start()
    await eventually(lambda: any(e.kind is HealthKind.HEARTBEAT_BACK for e in memory.health), 30)
    now = await chaos.incident(job)
    assert (now["verdict_class"], roots(now)) == ("H1", [2])
    await check_story(chaos, job, incident, 2)


async def test_frozen_rank_is_known_to_the_next_agent(chaos: Chaos, agent: AgentProcess) -> None:
    """A stopped process cannot say hello again."""
    job = await chaos.launch(socket=agent.socket)
    await job.stuck(3, "linger")
    job.kill(3, signal.SIGSTOP)
    await agent.end(signal.SIGKILL)
    await agent.start()
    incident = await chaos.incident(job, within_s=RECOVERY_S_MAX)
    assert roots(incident) == [3]
    assert incident["sub_reason"] == "frozen_process"
    job.kill(3, signal.SIGCONT)
    job.tell(3, "go")
    await chaos.incident(job, "resolved", within_s=RECOVERY_S_MAX)


async def test_kafka_is_restarted(chaos: Chaos) -> None:
    """Down when the hang begins; down again when it ends."""
    job = await chaos.launch()
    await job.stuck(1, "hold")
    await chaos.stack.stop_kafka()
    await chaos.stack.start_kafka()
    incident = await chaos.incident(job, within_s=RECOVERY_S_MAX)
    assert (incident["verdict_class"], roots(incident)) == ("H1", [1])
    await chaos.stack.stop_kafka()
    job.tell(1, "go")
    await job.progress()
    await chaos.stack.start_kafka()
    await chaos.incident(job, "resolved", within_s=RECOVERY_S_MAX)
    await chaos.stack.ready()
    await job.stuck(1, "hold")
    await chaos.incident(job, reopened=1)
    changes = [kind for kind in await chaos.changes(incident) if kind != "updated"]
    assert changes == ["opened", "resolved", "reopened"]


async def test_postgres_is_restarted(chaos: Chaos, eventually: Any) -> None:
    """Away while the verdict comes; it waits in Kafka."""
    job = await chaos.launch()
    localizer = cast(LocalizerApp, chaos.stack.parts["localizer"][0])
    first = localizer.core.decisions["first"]
    await chaos.stack.stop_postgres()
    await job.stuck(2, "hold")
    await eventually(lambda: localizer.core.decisions["first"] > first, 20)
    await chaos.stack.start_postgres()
    incident = await chaos.incident(job, within_s=RECOVERY_S_MAX)
    assert (incident["verdict_class"], roots(incident)) == ("H1", [2])
    await chaos.stack.stop_postgres()
    job.tell(2, "go")
    await job.progress()
    await chaos.stack.start_postgres()
    await chaos.incident(job, "resolved", within_s=RECOVERY_S_MAX)
    await chaos.stack.ready()
    assert [kind for kind in await chaos.changes(incident) if kind != "updated"] == ["opened", "resolved"]


@pytest.mark.parametrize(
    "names", [("detector",), ("localizer",), ("incidents", "notifier"), ("detector", "localizer")]
)
async def test_service_is_restarted(chaos: Chaos, names: tuple[str, ...]) -> None:
    job = await chaos.launch()
    await job.stuck(3, "hold")
    incident = await chaos.incident(job)
    await asyncio.gather(*(chaos.stack.restart(name) for name in names))
    await chaos.stack.ready()
    await check_story(chaos, job, incident, 3)


async def test_service_is_restarted_before_the_verdict(chaos: Chaos) -> None:
    job = await chaos.launch()
    await job.stuck(0, "hold", "tp")
    for name in ("detector", "localizer", "incidents"):
        await chaos.stack.restart(name)
    incident = await chaos.incident(job, within_s=RECOVERY_S_MAX)
    assert (incident["verdict_class"], roots(incident)) == ("H1", [0])
    await check_story(chaos, job, incident, 0)
