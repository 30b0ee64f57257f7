"""Each hang: one incident, the right class, the right rank, and its end."""

import signal

import pytest

from tests.chaos.conftest import Chaos, Incident, roots

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def victims(chaos: Chaos, incident: Incident) -> str:
    page = await chaos.stack.get(f"/v1/incidents/{incident['id']}")
    text: str = page["what_happened"]["victims"]
    return text


async def test_rank_that_never_enters_goes_on_and_stops_again(chaos: Chaos) -> None:
    """Resolved by itself; the same rank within ten minutes is the same incident."""
    job = await chaos.launch(world=8)
    await job.stuck(5, "hold")
    incident = await chaos.incident(job)
    assert (incident["verdict_class"], roots(incident)) == ("H1", [5])
    assert incident["operation"]["communicator_name"] == "world"
    assert await victims(chaos, incident) == "0-4,6-7"
    job.tell(5, "go")
    await chaos.incident(job, "resolved")
    await job.stuck(5, "hold", "tp")
    again = await chaos.incident(job, reopened=1)
    assert (again["id"], again["verdict_class"], roots(again)) == (incident["id"], "H1", [5])
    assert again["operation"]["communicator_name"] in ("tp_2", "dp_1", "world")
    assert (await victims(chaos, again), again["communicators_waiting"]) == ("0-4,6-7", 3)
    job.tell(5, "go")
    await chaos.incident(job, "resolved", reopened=1)
    changes = [kind for kind in await chaos.changes(incident) if kind != "updated"]
    assert changes == ["opened", "resolved", "reopened", "resolved"]


async def test_rank_that_calls_another_operation(chaos: Chaos) -> None:
    job = await chaos.launch()
    await job.stuck(2, "mismatch")
    incident = await chaos.incident(job)
    assert (incident["verdict_class"], incident["sub_reason"]) == ("H2", "operation_mismatch")
    assert roots(incident) == [2]
    assert await victims(chaos, incident) == "0-1,3"
    job.tell(2, "go")
    await chaos.incident(job, "resolved")


@pytest.mark.parametrize(("where", "verdict"), [("linger", "H3"), ("hold", "H1")])
async def test_frozen_rank(chaos: Chaos, where: str, verdict: str) -> None:
    """Stopped inside an operation or before it; SIGCONT ends the incident."""
    job = await chaos.launch()
    await job.stuck(3, where)
    job.kill(3, signal.SIGSTOP)
    incident = await chaos.incident(job)
    assert (incident["verdict_class"], incident["sub_reason"]) == (verdict, "frozen_process")
    assert roots(incident) == [3]
    assert await victims(chaos, incident) == "0-2"
    job.kill(3, signal.SIGCONT)
    job.tell(3, "go")
    await job.progress()
    await chaos.incident(job, "resolved")


async def test_killed_process(chaos: Chaos) -> None:
    """The launcher ends the others and starts the job again: the incident is over with that."""
    job = await chaos.launch()
    job.kill(1, signal.SIGKILL)
    incident = await chaos.incident(job)
    assert (incident["verdict_class"], incident["sub_reason"]) == ("DEAD_PROCESS", "process_killed")
    assert roots(incident) == [1]
    assert await victims(chaos, incident) == "0,2-3"
    for rank in (0, 2, 3):
        job.kill(rank, signal.SIGTERM)
    await job.exits()
    await chaos.launch(job.job, attempt="a2")
    closed = await chaos.incident(job, "resolved")
    assert (closed["verdict_class"], roots(closed)) == ("DEAD_PROCESS", [1])
    await chaos.stack.restart("localizer")  # it reads the deaths of the last hour
    await chaos.sentinel()
    await chaos.incident(job, "resolved")
    assert [i["id"] for i in await chaos.stack.incidents(job.job)] == [incident["id"]]


async def test_process_that_exits_with_an_error(chaos: Chaos) -> None:
    job = await chaos.launch()
    job.tell(0, "exit", code=3)
    incident = await chaos.incident(job)
    assert (incident["verdict_class"], incident["sub_reason"]) == ("DEAD_PROCESS", "process_exited")
    assert roots(incident) == [0]


async def test_one_of_two_jobs_on_a_node_hangs(chaos: Chaos) -> None:
    healthy, hanging = await chaos.launch(), await chaos.launch()
    await hanging.stuck(2, "hold")
    incident = await chaos.incident(hanging)
    assert (incident["verdict_class"], roots(incident)) == ("H1", [2])
    await healthy.progress()
    assert await chaos.stack.incidents(healthy.job) == []
