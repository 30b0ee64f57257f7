"""From a fault to rows, commands, audit log and timeline: real PostgreSQL, the API beside the service."""

import json
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import httpx
import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError

from paceline.api.app import create_app
from paceline.api.first_token import ensure_first_token
from paceline.api.services import Services, Streams
from paceline.api.settings import ApiSettings
from paceline.contracts.commands import Command, CommandKind, is_signed
from paceline.contracts.ids import new_id
from paceline.contracts.recovery import OrderOutcome, RecoveryPhase, Role, Support
from paceline.contracts.repair import (
    MemberRecord,
    RecoveryReport,
    RepairMode,
    RepairState,
    ReportKind,
)
from paceline.contracts.schemas import load_json
from paceline.remediator.app import RemediatorApp
from paceline.remediator.deciding import apply
from paceline.remediator.model import (
    Event,
    MemberError,
    Policy,
    ProcessExit,
    Reason,
    Step,
    Tick,
)
from paceline.remediator.reading import event_of_report, member_values, phase_values
from paceline.remediator.settings import RemediatorSettings
from paceline.remediator.writing import Context
from paceline.runtime.clock import ManualClock
from paceline.runtime.settings import CommandSettings, KafkaSettings
from paceline.store import Database
from paceline.store.models.repair import Recovery
from paceline.store.outbox_watch import OutboxWatch
from paceline.store.repositories.audit import AuditRepository
from paceline.store.repositories.repair import RepairRepository
from paceline.store.settings import StoreSettings
from paceline.store.times import from_unix

NOW = 1_767_323_045.0
KEY = b"a key of the whole cluster"
NODES = {"m0": "n0", "m1": "n0", "m2": "n1", "s0": "n2"}


def member(name: str, rank: int, node: str, **changes: object) -> MemberRecord:
    pid = 1000 + rank if rank >= 0 else 2000 + int(name[1:])
    record = MemberRecord(
        job="train", attempt="a1", member=name, node=node, role=Role.MEMBER if rank >= 0 else Role.STANDBY,
        rank=rank, pid=pid + 5000, child_pid=pid, child_pid_start=pid * 3, generation=0, step=40,
        store=f"{node}:1{rank}", replica=f"{node}:2{rank}", failure_domain=node, ready=True, world_size=3,
        support=Support.VERIFIED, lease_s=0.0, left=False, at_unix_s=NOW,
    )  # fmt: skip
    return replace(record, **changes)  # type: ignore[arg-type]


class Job:
    """A job of three ranks and a standby in the tables, and what happens to it."""

    def __init__(
        self, store: Database, mode: RepairMode, key: bytes | None = KEY, name: str = "train"
    ) -> None:
        self.store = store
        self.name = name
        self.context = Context(key, Policy(mode), "http://console")
        self.now_s = NOW

    async def register(self, *records: MemberRecord) -> None:
        async with self.store.transaction() as session:
            own = [replace(record, job=self.name) for record in records]
            rows = [member_values(record) | {"updated_at": from_unix(self.now_s)} for record in own]
            await RepairRepository(session).put_members(rows)

    async def feed(self, event: Event) -> Step:
        async with self.store.transaction() as session:
            return await apply(session, self.name, "a1", event, self.now_s, self.context, "")

    async def kill(self, rank: int, event_id: str = "exit") -> Step:
        return await self.feed(
            ProcessExit(event_id, self.now_s, rank, "", 1000 + rank, (1000 + rank) * 3, -9)
        )

    async def report(self, name: str, phase: RecoveryPhase, generation: int = 1) -> Step:
        report = RecoveryReport(
            f"rep_{name}_{phase.value}", ReportKind.PHASE, NODES[name], self.name, "a1", name, 0, generation,
            self.now_s, phase=phase, duration_ms=12.5, step=41, replayed=1,
        )  # fmt: skip
        async with self.store.transaction() as session:
            await RepairRepository(session).add_phases([phase_values(report)])
        event = event_of_report(report)
        return await self.feed(event)

    async def commands(self) -> list[Command]:
        async with self.store.transaction() as session:
            rows = (
                await session.execute(text("SELECT payload FROM outbox WHERE topic <> '' ORDER BY sequence"))
            ).all()
        return [load_json(Command, payload) for (payload,) in rows]

    async def audit(self) -> list[str]:
        async with self.store.transaction() as session:
            return [entry.action for entry in reversed(await AuditRepository(session).page(None, 100))]


@pytest.fixture
async def make_job(store: Database) -> Callable[..., Any]:
    async def make(mode: RepairMode = RepairMode.AUTO, key: bytes | None = KEY) -> Job:
        job = Job(store, mode, key)
        await job.register(
            member("m0", 0, "n0"), member("m1", 1, "n0"), member("m2", 2, "n1"), member("s0", -1, "n2")
        )
        return job

    return make


@pytest.fixture
async def client(database: str) -> AsyncIterator[httpx.AsyncClient]:
    """The API over the same database, at the same time."""
    settings = ApiSettings(database=StoreSettings(url=database), console_path=None)
    services = Services(
        settings, settings.database.open(), ManualClock(unix_s=NOW), new_id, OutboxWatch(database),
        Streams(1), "http://console",
    )  # fmt: skip
    token = await ensure_first_token(services)
    transport, headers = httpx.ASGITransport(create_app(services)), {"Authorization": f"Bearer {token}"}
    async with httpx.AsyncClient(transport=transport, base_url="http://api", headers=headers) as opened:
        yield opened
    await services.database.stop()


async def test_a_kill_becomes_signed_commands_for_each_node_and_the_proof_ends_it(make_job: Any) -> None:
    job = await make_job()
    assert (await job.kill(1)).reason is Reason.REBUILD
    commands = await job.commands()
    assert {command.node for command in commands} == {"n0", "n1", "n2"}
    for command in commands:
        assert is_signed(command, KEY)
        assert (command.kind, command.generation) == (CommandKind.REBUILD, 1)
        assert command.id.endswith("-1-0")
        assert command.expires_unix_s > NOW
    (own,) = [command for command in commands if command.node == "n0"]
    assert json.loads(own.arguments["targets"]) == ["m0", "m1"], "its supervisor hears that it is replaced"
    assert [row["member"] for row in json.loads(own.arguments["members"])] == ["m0", "s0", "m2"]
    job.now_s += 0.4
    for name in ("m0", "s0", "m2"):
        await job.report(name, RecoveryPhase.RENDEZVOUS)
    for name in ("m0", "s0", "m2"):
        last = await job.report(name, RecoveryPhase.FIRST_STEP)
    assert last.reason is Reason.RESUMED
    async with job.store.transaction() as session:
        repairs = RepairRepository(session)
        (row,) = await repairs.recoveries(["train"], [], None, 10)
        assert (row.state, row.generation, row.step, row.replayed) == ("resumed", 1, 41, 1)
        assert row.ended_at is not None
        state = await repairs.job("train", "a1")
        assert state is not None
        assert (state.state, state.due_at, state.action_id) == (RepairState.RESUMED.value, None, None)
        check = await AuditRepository(session).check_chain(0, 1000)
        assert check.first_broken_id is None
    assert await job.audit() == ["repair.dispatched", "repair.observing", "repair.succeeded"]


async def test_a_replay_of_everything_writes_nothing_again(make_job: Any) -> None:
    job = await make_job()
    for _ in range(2):
        await job.kill(1)
        for name in ("m0", "s0", "m2"):
            await job.report(name, RecoveryPhase.FIRST_STEP)
    assert len(await job.commands()) == 3
    assert len(await job.audit()) == 3
    async with job.store.transaction() as session:
        assert len(await RepairRepository(session).recoveries(["train"], [], None, 10)) == 1


async def test_the_database_admits_one_recovery_at_a_time(make_job: Any) -> None:
    job = await make_job()
    await job.kill(1)
    async with job.store.transaction() as session:
        (row,) = await RepairRepository(session).recoveries(["train"], [], None, 10)
    second = Recovery(
        id="rcv_2", action_id=row.action_id, job="train", attempt="a1", generation=2, attempt_no=0,
        state="rebuilding", store="", seats=[], step=0, replayed=0, reason="", started_at=row.started_at,
        ended_at=None,
    )  # fmt: skip
    with pytest.raises(IntegrityError):
        await insert(job.store, second)


async def insert(store: Database, row: Recovery) -> None:
    async with store.transaction() as session:
        session.add(row)


async def test_a_restarted_service_goes_on_where_it_stood(make_job: Any) -> None:
    job = await make_job()
    await job.kill(1)
    again = Job(job.store, RepairMode.AUTO)
    again.now_s = NOW + 20
    step = await again.feed(Tick())
    assert step.reason is Reason.REBUILD_AGAIN
    assert {command.id.rpartition("-")[2] for command in await job.commands()} == {"0", "1"}


async def test_a_verdict_on_the_attempt_finds_supervisors_that_know_its_first_name(make_job: Any) -> None:
    job = await make_job()
    event = ProcessExit("exit", NOW, 1, "", 1001, 3003, -9)
    async with job.store.transaction() as session:
        step = await apply(session, "train", "its-final-name", event, NOW, job.context, "")
    assert (step.reason, step.job.attempt) == (Reason.REBUILD, "a1")


async def test_a_loss_of_state_is_a_fallback(make_job: Any) -> None:
    job = await make_job()
    await job.kill(1)
    report = RecoveryReport(
        "rep_lost", ReportKind.RESULT, "n1", "train", "a1", "m2", 2, 1, NOW, outcome=OrderOutcome.LOST,
        message="no copy of shard 1",
    )  # fmt: skip
    event = event_of_report(report)
    assert event is not None
    assert (await job.feed(event)).reason is Reason.STATE_LOST
    falls = [command for command in await job.commands() if command.kind is CommandKind.FALLBACK]
    assert {command.arguments["requeue"] for command in falls} == {"1"}


async def test_without_a_key_and_by_default_it_only_observes(make_job: Any) -> None:
    for number, (mode, key) in enumerate(((RepairMode.AUTO, None), (RepairMode.OBSERVE, KEY))):
        job = await make_job(mode, key)
        step = await job.kill(number, f"exit {number}")
        assert step.job.action is not None
        assert step.job.action.reason is Reason.OBSERVED_ONLY
        assert await job.commands() == []


async def test_supervisors_of_another_user_get_no_seat_and_no_state(make_job: Any) -> None:
    job = await make_job()
    later = NOW + 1
    await job.register(
        member("s9", -1, "b0", uid=1001, at_unix_s=later),
        member("x3", 2, "b0", uid=1001, generation=1 << 40, at_unix_s=later),
        member("m2", 2, "b1", uid=1001, at_unix_s=later),
    )
    step = await job.kill(1)
    assert step.reason is Reason.REBUILD
    (order,) = [command for command in await job.commands() if command.node == "n1"]
    rows = json.loads(order.arguments["members"])
    assert [row["member"] for row in rows] == ["m0", "s0", "m2"]
    assert rows[2]["replica"] == "n1:22"


async def test_what_waits_for_a_person_is_not_due_at_every_look(make_job: Any) -> None:
    job = await make_job(RepairMode.OBSERVE)
    await job.kill(1)
    job.now_s += 10
    await job.feed(Tick())
    async with job.store.transaction() as session:
        assert await RepairRepository(session).due(from_unix(job.now_s + 0.3), 10) == []
        assert await RepairRepository(session).due(from_unix(job.now_s + 3), 10) == [("train", "a1")]


async def test_a_job_that_cannot_be_decided_about_holds_up_no_other(make_job: Any, database: str) -> None:
    job = await make_job(RepairMode.APPROVE)
    await job.kill(1)
    broken = {
        "job": "other", "attempt": "a1", "state": "healthy", "generation": 0, "action_id": None,
        "due_at": from_unix(NOW - 60), "data": {"job": 3}, "updated_at": from_unix(NOW),
    }  # fmt: skip
    async with job.store.transaction() as session:
        await RepairRepository(session).put_job(broken)
        await session.execute(text("UPDATE repair_actions SET status = 'approved'"))
    settings = RemediatorSettings(
        kafka=KafkaSettings(bootstrap="localhost:1"), database=StoreSettings(url=database),
        command=CommandSettings(key=KEY.decode()), mode=RepairMode.APPROVE,
    )  # fmt: skip
    app = RemediatorApp(settings, ManualClock(unix_s=NOW + 20))
    await app.look_at_due()
    assert {command.kind for command in await job.commands()} == {CommandKind.REBUILD}
    async with job.store.transaction() as session:
        assert await RepairRepository(session).due(from_unix(NOW + 21), 10) == []


async def test_jobs_without_supervisors_leave_no_row(store: Database) -> None:
    job = Job(store, RepairMode.AUTO)
    assert (await job.kill(1)).reason is Reason.UNKNOWN_MEMBER
    async with store.transaction() as session:
        assert await RepairRepository(session).job("train", "a1") is None


async def open_action(client: httpx.AsyncClient) -> dict[str, Any]:
    page = (await client.get("/v1/repair/actions", params={"job": "train"})).json()
    found: dict[str, Any] = page["items"][0]
    return found


class TestDecisions:
    async def test_an_approval_of_what_was_read_is_carried_out_once(
        self, make_job: Any, client: httpx.AsyncClient
    ) -> None:
        job = await make_job(RepairMode.APPROVE)
        await job.kill(1)
        action = await open_action(client)
        assert (action["status"], action["reason"], action["ranks"]) == ("proposed", "needs_approval", "1")
        detail = await client.get(f"/v1/repair/actions/{action['id']}")
        assert detail.json()["preconditions"] == {
            "standbys_ready": 1, "members_known": 3, "least_support": "verified", "blast_ranks": 1,
            "replayed_steps_at_most": 1, "expected_pause_s": None,
        }  # fmt: skip
        waiting = [each for each in detail.json()["checks"] if each["state"] != "met"]
        assert [(each["name"], each["state"], each["reason"]) for each in waiting] == [
            ("approval", "waits", "needs_approval"), ("settled", "not_asked", ""),
            ("evidence", "not_asked", ""),
        ]  # fmt: skip
        assert detail.json()["places"] == [
            {"rank": 1, "leaver": "m1", "leaver_node": "n0", "joiner": "s0", "joiner_node": "n2"}
        ]
        url, etag = f"/v1/repair/actions/{action['id']}/approvals", detail.headers["ETag"]
        assert (await client.post(url, json={})).json()["code"] == "version_required"
        assert (await client.post(url, json={}, headers={"If-Match": '"99"'})).json()[
            "code"
        ] == "stale_version"
        headers = {"If-Match": etag, "Idempotency-Key": "k1"}
        for _ in range(2):
            answer = await client.post(url, json={"note": "go"}, headers=headers)
            assert answer.status_code == 201, answer.text
            assert answer.json()["status"] == "approved"
        whatever = await client.post(url, json={}, headers={"If-Match": "*"})
        assert whatever.json()["code"] == "stale_version"
        again = {"If-Match": answer.headers["ETag"]}
        assert (await client.post(url, json={}, headers=again)).json()["code"] == "action_not_open"
        assert (await job.feed(Tick())).reason is Reason.REBUILD
        assert len(await job.commands()) == 3
        assert await job.audit() == [
            "token.created", "repair.proposed", "repair.approved", "repair.dispatched",
        ]  # fmt: skip

    async def test_rejected_cancelled_and_observed(self, make_job: Any, client: httpx.AsyncClient) -> None:
        job = await make_job(RepairMode.APPROVE)
        await job.kill(1)
        action = await open_action(client)
        answer = await client.post(f"/v1/repair/actions/{action['id']}/rejections", json={"note": "no"})
        assert answer.json()["status"] == "rejected"
        step = await job.feed(Tick())
        assert (step.job.action, step.job.state) == (None, RepairState.HEALTHY)
        job.now_s += 1
        await job.feed(MemberError("err", job.now_s, "m2", 0, "timed out"))
        second = await open_action(client)
        assert second["kind"] == "retry"
        await client.post(f"/v1/repair/actions/{second['id']}/cancellations", json={})
        assert (await job.feed(Tick())).job.action is None
        assert (await open_action(client))["status"] == "expired"
        assert await job.commands() == []

    async def test_a_policy_and_the_stop_switch_hold_from_the_next_decision_on(
        self, make_job: Any, client: httpx.AsyncClient
    ) -> None:
        job = await make_job(RepairMode.OBSERVE)
        body = {"job": "train", "cause": "process_exit", "mode": "auto", "limits": {"ranks_max": 2}}
        answer = await client.put("/v1/repair/policies", json=body)
        assert answer.status_code == 200, answer.text
        assert answer.json()["limits"]["ranks_max"] == 2
        await client.put("/v1/repair/stop", json={"stopped": True, "note": "maintenance"})
        await job.kill(1)
        assert (await open_action(client))["reason"] == "stop_switch"
        await client.put("/v1/repair/stop", json={"stopped": False})
        assert (await job.feed(Tick())).reason is Reason.REBUILD
        listed = (await client.get("/v1/repair/policies")).json()
        assert [(row["job"], row["mode"]) for row in listed] == [(None, None), ("train", "auto")]
        bad = await client.put("/v1/repair/policies", json={"limits": {"colour": 1}})
        assert bad.status_code == 422

    async def test_a_policy_that_is_written_does_not_lift_the_stop_switch(
        self, make_job: Any, client: httpx.AsyncClient
    ) -> None:
        job = await make_job(RepairMode.AUTO)
        stop = await client.put("/v1/repair/stop", json={"stopped": True})
        answer = await client.put("/v1/repair/policies", json={"limits": {"ranks_max": 2}})
        assert answer.json()["stopped"] is True
        await job.kill(1)
        assert (await open_action(client))["reason"] == "stop_switch"
        stale = {"If-Match": f'"{stop.json()["version"]}"'}
        for path, body in (("policies", {"mode": "auto"}), ("stop", {"stopped": False})):
            refused = await client.put(f"/v1/repair/{path}", json=body, headers=stale)
            assert refused.json()["code"] == "stale_version"
        fresh = {"If-Match": answer.headers["ETag"]}
        lifted = await client.put("/v1/repair/stop", json={"stopped": False}, headers=fresh)
        assert lifted.json()["stopped"] is False

    async def test_a_planned_replacement_that_somebody_asks_for(
        self, make_job: Any, client: httpx.AsyncClient
    ) -> None:
        job = await make_job(RepairMode.OBSERVE)
        assert (await client.get("/v1/repair/state", params={"job": "other"})).json()["code"] == "not_found"
        healthy = (await client.get("/v1/repair/state", params={"job": "train"})).json()
        assert (healthy["state"], healthy["generation"], healthy["standbys_ready"]) == ("healthy", 0, 1)
        none = await client.post("/v1/repair/proposals", json={"job": "train", "rank": 9})
        assert none.json()["code"] == "no_supervisors"
        made = await client.post("/v1/repair/proposals", json={"job": "train", "rank": 2, "note": "hot"})
        assert made.status_code == 201, made.text
        again = await client.post("/v1/repair/proposals", json={"job": "train", "rank": 1})
        assert again.json()["code"] == "action_not_open"
        step = await job.feed(Tick())
        assert step.job.action is not None
        assert step.job.action.reason is Reason.NEEDS_APPROVAL
        detail = await client.get(f"/v1/repair/actions/{made.json()['id']}")
        headers = {"If-Match": detail.headers["ETag"]}
        url = f"/v1/repair/actions/{made.json()['id']}/approvals"
        assert (await client.post(url, json={}, headers=headers)).status_code == 201
        assert (await job.feed(Tick())).reason is Reason.PREPARED
        assert {command.kind for command in await job.commands()} == {CommandKind.PREPARE}
        standbys = (await client.get("/v1/repair/members", params={"role": "standby"})).json()["items"]
        assert [row["member"] for row in standbys] == ["s0"]
        recoveries = (await client.get("/v1/repair/recoveries", params={"job": "train"})).json()["items"]
        assert [(row["generation"], row["state"]) for row in recoveries] == [(1, "preparing")]
        state = (await client.get("/v1/repair/state", params={"job": "train"})).json()
        assert (state["state"], state["standbys_ready"]) == ("preparing", 1)

    async def test_a_token_without_the_scope_reads_and_decides_nothing(
        self, make_job: Any, client: httpx.AsyncClient
    ) -> None:
        await make_job()
        made = await client.post("/v1/tokens", json={"name": "bot", "scopes": ["incidents:read"]})
        headers = {"Authorization": f"Bearer {made.json()['token']}"}
        assert (await client.get("/v1/repair/actions", headers=headers)).status_code == 200
        answer = await client.put("/v1/repair/stop", json={"stopped": True}, headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (403, "missing_scope")
