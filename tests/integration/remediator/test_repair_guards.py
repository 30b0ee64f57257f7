"""What holds repair up, and until when it can be cancelled: real PostgreSQL, the API beside the service."""

from typing import Any

import httpx

from paceline.contracts.commands import CommandKind
from paceline.contracts.recovery import OrderOutcome
from paceline.contracts.repair import RepairCause
from paceline.remediator.model import Judged, OrderAnswer, Reason, Tick
from paceline.store.models.repair import RepairAction
from paceline.store.times import from_unix
from tests.integration.remediator.test_repair_tables import NOW, client, make_job, open_action

__all__ = ["client", "make_job"]
FAILED: dict[str, Any] = {
    "attempt": "a1", "incident_id": None, "kind": "swap", "cause": "process_exit", "status": "failed",
    "mode": "auto", "message": "", "ranks": "0", "leavers": [], "joiners": [], "generation": 1, "step": -1,
    "replayed": 0, "requested_by": "system", "decided_by": "", "note": "", "cancel_requested": False,
    "expires_at": from_unix(NOW), "decided_at": None, "dispatched_at": None, "updated_at": from_unix(NOW),
    "version": 1,
}  # fmt: skip


def ready(name: str, generation: int) -> OrderAnswer:
    """A member has prepared `generation`."""
    command = f"cmd-{generation}-0"
    return OrderAnswer(f"{name}-{generation}", NOW, name, generation, command, OrderOutcome.DONE, "")


async def test_failures_of_several_jobs_stop_repair_without_a_person(
    make_job: Any, client: httpx.AsyncClient
) -> None:
    job = await make_job()
    ended = from_unix(NOW - 60)
    async with job.store.transaction() as session:
        for number in range(6):
            row = {
                "id": f"act_{number}", "job": f"other-{number}", "ended_at": ended, "created_at": ended,
                "reason": "finished_in_order" if number == 5 else "rebuilds_exhausted",
            }  # fmt: skip
            session.add(RepairAction(**(FAILED | row)))
    step = await job.kill(1)
    assert step.job.action is not None
    assert step.job.action.reason is Reason.FLEET_BREAKER
    assert await job.commands() == []
    action = await open_action(client)
    detail = (await client.get(f"/v1/repair/actions/{action['id']}")).json()
    (check,) = [each for each in detail["checks"] if each["name"] == "fleet_breaker"]
    assert (check["state"], check["reason"]) == ("waits", "fleet_breaker")
    body = {"job": "train", "limits": {"fleet_failures_max": 6}}
    assert (await client.put("/v1/repair/policies", json=body)).status_code == 200
    assert (await job.feed(Tick())).reason is Reason.REBUILD


async def test_a_planned_replacement_is_cancelled_until_its_switch_is_ordered(
    make_job: Any, client: httpx.AsyncClient
) -> None:
    job = await make_job()
    for number, last in enumerate(("m2", "")):
        job.now_s += 1
        await job.feed(
            Judged(
                f"slow{number}",
                job.now_s,
                f"inc{number}",
                RepairCause.SLOW,
                True,
                (1,),
                (),
                "",
                job.now_s,
            )
        )
        action = await open_action(client)
        assert (action["status"], action["reason"]) == ("dispatched", "prepared")
        for name in {"m0", "m1", "m2", "s0"} - {last}:
            await job.feed(ready(name, number + 1))
        answer = await client.post(f"/v1/repair/actions/{action['id']}/cancellations", json={})
        if last:
            assert answer.status_code == 201
            # The last one is ready now, and nobody switches any more.
            await job.feed(ready(last, 1))
            assert (await open_action(client))["status"] == "rolled_back"
    assert (answer.status_code, answer.json()["code"]) == (409, "switch_ordered")
    assert "dispatched (switch)" in answer.json()["detail"]
    assert [command.kind for command in await job.commands()].count(CommandKind.SWITCH) == 3
