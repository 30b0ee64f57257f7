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
    """An agent that can be killed; it outlives the jobs of its test."""
    agent = AgentProcess(chaos.stack, "node-b")
    await agent.start()
    yield agent
    await chaos.close()
    await agent.end()


def localizer_of(chaos: Chaos) -> LocalizerApp:
    return cast(LocalizerApp, chaos.stack.parts["localizer"][0])


def heard(chaos: Chaos, job: FakeJob, kind: HealthKind) -> bool:
    """Whether the localizer knows of such an event of the job."""
    memory = localizer_of(chaos).core.memory.attempt(job.job, job.attempt)
    return any(event.kind is kind for event in memory.health)


async def changes_of(chaos: Chaos, incident: Incident) -> list[str]:
    return [kind for kind in await chaos.changes(incident) if kind != "updated"]


async def test_agent_is_killed_and_restarted(chaos: Chaos, agent: AgentProcess, eventually: Any) -> None:
    """Before the verdict, and after it for so long that its node counts as lost: the cause stays."""
    job = await chaos.launch("", agent.socket)
    await job.stuck(1, "hold")
    await agent.end(signal.SIGKILL)
    await agent.start()
    incident = await chaos.incident(job, within_s=RECOVERY_S_MAX)
    assert (incident["verdict_class"], roots(incident)) == ("H1", [1])
    await agent.end(signal.SIGKILL)
    await eventually(lambda: heard(chaos, job, HealthKind.HEARTBEAT_LOST), 30)
    await agent.start()
    await eventually(lambda: heard(chaos, job, HealthKind.HEARTBEAT_BACK), 30)
    now = await chaos.incident(job)
    assert (now["verdict_class"], roots(now)) == ("H1", [1])
    job.tell(1, "go")
    await chaos.incident(job, "resolved", within_s=RECOVERY_S_MAX)
    assert await changes_of(chaos, incident) == ["opened", "resolved"]


async def test_frozen_rank_is_known_to_the_next_agent(chaos: Chaos, agent: AgentProcess) -> None:
    """A stopped process cannot say hello again."""
    job = await chaos.launch("", agent.socket)
    await job.stuck(3, "linger")
    job.kill(3, signal.SIGSTOP)
    await agent.end(signal.SIGKILL)
    await agent.start()
    incident = await chaos.incident(job, within_s=RECOVERY_S_MAX)
    assert (roots(incident), incident["sub_reason"]) == ([3], "frozen_process")
    job.kill(3, signal.SIGCONT)
    job.tell(3, "go")
    await chaos.incident(job, "resolved", within_s=RECOVERY_S_MAX)


async def test_agent_is_away_from_a_healthy_job(chaos: Chaos, agent: AgentProcess, eventually: Any) -> None:
    """Half of the job is not seen for a while and trains on: no incident, and the next hang is found."""
    job = await chaos.launch("", chaos.stack.socket, agent.socket)
    await agent.end(signal.SIGKILL)
    await eventually(lambda: heard(chaos, job, HealthKind.HEARTBEAT_LOST), 30)
    await job.progress()
    await agent.start()
    await eventually(lambda: heard(chaos, job, HealthKind.HEARTBEAT_BACK), 30)
    await job.stuck(3, "hold")
    incident = await chaos.incident(job)
    assert (incident["verdict_class"], roots(incident)) == ("H1", [3])
    assert await changes_of(chaos, incident) == ["opened"]


async def test_node_dies(chaos: Chaos, agent: AgentProcess) -> None:
    """Agent and ranks at once, as when a machine loses power: the node is the cause, no rank of it."""
    job = await chaos.launch("", chaos.stack.socket, agent.socket)
    await agent.end(signal.SIGKILL)
    job.kill(2, signal.SIGKILL)
    job.kill(3, signal.SIGKILL)
    incident = await chaos.incident(job, within_s=RECOVERY_S_MAX)
    assert (incident["verdict_class"], incident["sub_reason"]) == ("DEAD_PROCESS", "node_lost")
    assert [(root["kind"], root["node"]) for root in incident["roots"]] == [("node", "node-b")]


def kafka_clients() -> int:
    """Clients of aiokafka that are alive in this process: each keeps its metadata fresh."""
    names = [getattr(task.get_coro(), "__qualname__", "") for task in asyncio.all_tasks()]
    return names.count("AIOKafkaClient._md_synchronizer")


async def test_kafka_is_restarted(chaos: Chaos, eventually: Any) -> None:
    """Down when the hang begins; down again when it ends. No client is left behind."""
    job = await chaos.launch()
    before = kafka_clients()
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
    assert await changes_of(chaos, incident) == ["opened", "resolved", "reopened"]
    await eventually(lambda: kafka_clients() <= before, 30)


async def test_postgres_is_restarted(chaos: Chaos, eventually: Any) -> None:
    """Away while the verdict comes, and while the hang ends; both wait in Kafka."""
    job = await chaos.launch()
    decisions = localizer_of(chaos).core.decisions
    first, resolved = decisions["first"], decisions["resolved"]
    await chaos.stack.stop_postgres()
    await job.stuck(2, "hold")
    await eventually(lambda: decisions["first"] > first, 30)
    await chaos.stack.start_postgres()
    incident = await chaos.incident(job, within_s=RECOVERY_S_MAX)
    assert (incident["verdict_class"], roots(incident)) == ("H1", [2])
    await chaos.stack.stop_postgres()
    job.tell(2, "go")
    await eventually(lambda: decisions["resolved"] > resolved, 30)
    await chaos.stack.start_postgres()
    await chaos.incident(job, "resolved", within_s=RECOVERY_S_MAX)
    await chaos.stack.ready()
    assert await changes_of(chaos, incident) == ["opened", "resolved"]


async def test_services_are_restarted(chaos: Chaos) -> None:
    """Each of them before the verdict, and again while the incident is open."""
    job = await chaos.launch()
    await job.stuck(3, "hold")
    for name in ("detector", "localizer"):
        await chaos.stack.restart(name)
    incident = await chaos.incident(job, within_s=RECOVERY_S_MAX)
    assert (incident["verdict_class"], roots(incident)) == ("H1", [3])
    for name in ("localizer", "detector", "incidents", "notifier"):
        await chaos.stack.restart(name)
        await chaos.stack.ready()
    job.tell(3, "go")
    await chaos.incident(job, "resolved", within_s=RECOVERY_S_MAX)
    await job.stuck(3, "hold")
    await chaos.incident(job, reopened=1)
    assert await changes_of(chaos, incident) == ["opened", "resolved", "reopened"]
