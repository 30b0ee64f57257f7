"""Supervisors at the agent's socket: registry, exits as health, orders there and answers back."""

import asyncio
import json
import os
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paceline.agent.app import AgentApp
from paceline.agent.collecting import Answer
from paceline.agent.evidence import EvidenceApp
from paceline.agent.process import ProcReader
from paceline.contracts.commands import Command, CommandKind, CommandResult, sign
from paceline.contracts.recovery import (
    ChildError,
    ChildExit,
    Member,
    OrderOutcome,
    OrderResult,
    PhaseReport,
    RecoveryMessage,
    RecoveryPhase,
    Role,
    SupervisorHello,
    encode_recovery,
    format_members,
)
from paceline.contracts.registry import HealthEvent, HealthKind, JobRecord, JobState, NodeRecord
from paceline.contracts.repair import MemberRecord, RecoveryReport, ReportKind
from paceline.runtime.clock import SystemClock
from paceline.runtime.settings import KafkaSettings

KEY = b"a key of the whole cluster"
Eventually = Callable[..., Awaitable[Any]]
HELLO = SupervisorHello(
    job="train", attempt="a1", member="m2", role=Role.MEMBER, rank=2, pid=os.getpid(), child_pid=4242,
    child_pid_start=77, generation=3, step=40, store="h:1", replica="h:2", failure_domain="rack", ready=True,
)  # fmt: skip


class Supervisor:
    """A blocking client whose calls run in threads."""

    def __init__(self, folder: Path) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(5)
        self.sock.connect(str(folder / "agent.sock"))

    async def say(self, *messages: RecoveryMessage) -> None:
        data = b"".join(map(encode_recovery, messages))
        await asyncio.to_thread(self.sock.sendall, data)

    async def hear(self) -> dict[str, Any] | None:
        head = await asyncio.to_thread(self.sock.recv, 4, socket.MSG_WAITALL)
        if not head:
            return None
        (length,) = struct.unpack("<I", head)
        text = b""
        while len(text) < length:  # a socket with a timeout returns parts
            part = await asyncio.to_thread(self.sock.recv, length - len(text))
            if not part:
                return None
            text += part
        body: dict[str, Any] = json.loads(text)
        return body


@pytest.fixture
async def connect(agent_folder: Path) -> AsyncIterator[Callable[..., Awaitable[Supervisor]]]:
    """Supervisors that have said hello and were welcomed."""
    made: list[Supervisor] = []

    async def new(hello: SupervisorHello = HELLO) -> Supervisor:
        made.append(Supervisor(agent_folder))
        await made[-1].say(hello)
        assert (await made[-1].hear() or {})["type"] == "welcome"
        return made[-1]

    yield new
    for supervisor in made:
        supervisor.sock.close()


@pytest.fixture
async def relay(start_agent: Any, publisher: Any) -> tuple[AgentApp, EvidenceApp]:
    """An agent that obeys commands; Kafka is not there."""
    agent = await start_agent(lease_s=0.6)
    kafka = KafkaSettings(bootstrap="127.0.0.1:1", request_timeout_s=1.0)
    app = EvidenceApp(agent._settings, kafka, KEY, agent, publisher, SystemClock())
    return agent, app


def command(kind: CommandKind = CommandKind.REBUILD, *targets: str, **changes: object) -> Command:
    arguments = {
        "targets": json.dumps(targets or ["m2"]), "attempt_no": "1", "store": "h:1", "members": "[]",
    }  # fmt: skip
    plain = Command(
        "cmd_1-4-1", kind, "n1", "train", "a1", 4, SystemClock().unix_s() + 60, arguments=arguments
    )
    return sign(replace(plain, **changes), KEY)  # type: ignore[arg-type]


async def test_a_supervisor_is_in_the_registry_until_it_is_gone(
    relay: Any, connect: Any, publisher: Any, eventually: Eventually
) -> None:
    supervisor = await connect()
    (record,) = await eventually(lambda: publisher.values(MemberRecord))
    assert (record.member, record.node, record.rank, record.child_pid, record.left) == (
        "m2", "n1", 2, 4242, False,
    )  # fmt: skip
    assert record.lease_s == 0.6
    for step in range(41, 60):
        await supervisor.say(replace(HELLO, step=step))
    await eventually(lambda: publisher.values(MemberRecord)[-1].step == 59)
    assert len(publisher.values(MemberRecord)) <= 4, "a step alone is told once a second"
    supervisor.sock.close()
    last = await eventually(lambda: next((r for r in publisher.values(MemberRecord) if r.left), None))
    assert (last.child_pid, last.ready) == (0, False)


async def test_a_connection_that_ends_is_no_death_of_a_child_that_lives(
    relay: Any, connect: Any, publisher: Any, eventually: Eventually
) -> None:
    start = ProcReader().read(os.getpid()).start_ticks
    supervisor = await connect(replace(HELLO, child_pid=os.getpid(), child_pid_start=start))
    supervisor.sock.close()
    last = await eventually(lambda: next((r for r in publisher.values(MemberRecord) if r.left), None))
    assert (last.child_pid, last.child_pid_start, last.ready) == (os.getpid(), start, False)


async def test_an_order_larger_than_the_socket_buffer_arrives(relay: Any, connect: Any) -> None:
    agent, _ = relay
    supervisor = await connect()
    rows = [Member(rank, f"member-{rank}-{'x' * 60}", "host:1", "rack") for rank in range(4000)]
    members = format_members(rows)
    arguments = {"targets": json.dumps(["m2"]), "attempt_no": "1", "store": "h:1", "members": members}
    assert agent.supervisors.take(command(arguments=arguments), KEY) is Answer.ACCEPT
    while (message := await supervisor.hear() or {})["type"] == "lease":
        pass
    assert message["arguments"]["members"] == members


async def test_the_end_of_a_child_is_health_at_once(
    relay: Any, connect: Any, publisher: Any, eventually: Eventually
) -> None:
    supervisor = await connect()
    await supervisor.say(ChildExit("m2", 4242, 77, -9))
    (event,) = await eventually(lambda: publisher.values(HealthEvent))
    assert (event.rank, event.pid, event.pid_start, event.exit_code, event.member) == (2, 4242, 77, -9, "m2")
    record = await eventually(
        lambda: next((r for r in publisher.values(MemberRecord) if r.child_pid == 0), None)
    )
    assert not record.left


async def test_orders_reach_whom_they_name_and_answers_come_back(
    relay: Any, connect: Any, publisher: Any, eventually: Eventually
) -> None:
    _, app = relay
    supervisor = await connect()
    assert app.take(command(CommandKind.REBUILD, "m2", "m9")) is Answer.ACCEPT
    order = await supervisor.hear()
    assert order is not None
    assert (order["type"], order["kind"], order["id"]) == ("order", "rebuild", "cmd_1-4-1")
    assert (order["generation"], order["attempt_no"]) == (4, 1)
    assert order["arguments"] == {"store": "h:1", "members": "[]"}
    assert app.take(command(CommandKind.REBUILD, "m2", "m9")) is Answer.DUPLICATE
    await supervisor.say(
        OrderResult("cmd_1-4-1", "m2", OrderOutcome.DONE, "", 4),
        PhaseReport("m2", 2, 4, RecoveryPhase.FIRST_STEP, 3.5, 41, 1, attempt_no=1),
        ChildError("m2", 4, 42, "connection closed"),
    )
    reports: list[RecoveryReport] = await eventually(
        lambda: publisher.values(RecoveryReport) if len(publisher.values(RecoveryReport)) == 4 else []
    )
    by_kind = {(report.kind, report.member): report for report in reports}
    assert by_kind[ReportKind.RESULT, "m2"].command == "cmd_1-4-1"
    assert by_kind[ReportKind.RESULT, "m9"].outcome is OrderOutcome.FAILED  # nobody of that name is here
    phase = by_kind[ReportKind.PHASE, "m2"]
    assert (phase.phase, phase.attempt_no) == (RecoveryPhase.FIRST_STEP, 1)
    assert by_kind[ReportKind.ERROR, "m2"].message == "connection closed"
    assert len({report.id for report in reports}) == 4


@pytest.mark.parametrize(
    ("changes", "answer"),
    [
        ({"signature": "0" * 64}, Answer.UNSIGNED),
        ({"expires_unix_s": 1.0}, Answer.EXPIRED),
        ({"node": "n2"}, Answer.OTHER_NODE),
        ({"arguments": {"targets": "m2"}}, Answer.BAD_ARGUMENT),
        ({"attempt": "a0"}, Answer.NO_JOB),
    ],
)
async def test_what_is_forged_old_or_foreign_reaches_nobody(
    relay: Any, connect: Any, changes: dict[str, object], answer: Answer
) -> None:
    _, app = relay
    supervisor = await connect()
    forged: Command = replace(command(), **changes)  # type: ignore[arg-type]
    if "signature" not in changes:
        forged = sign(forged, KEY)
    assert app.take(forged) is answer
    supervisor.sock.setblocking(False)
    with pytest.raises(BlockingIOError):
        supervisor.sock.recv(1)


async def test_an_older_generation_is_refused_here(
    relay: Any, connect: Any, publisher: Any, eventually: Eventually
) -> None:
    _, app = relay
    await connect(replace(HELLO, generation=9))
    app.take(command())
    (report,) = await eventually(lambda: publisher.values(RecoveryReport))
    assert (report.outcome, report.message) == (OrderOutcome.REFUSED, "generation 4 is older than 9")
    assert report.generation == 9, "the remediator opens the next one above it"


async def test_a_generation_counts_once_it_was_handed_on(
    relay: Any, connect: Any, publisher: Any, eventually: Eventually
) -> None:
    """The supervisor says it only when its child is there."""
    _, app = relay
    await connect()
    app.take(sign(replace(command(), id="cmd_newer", generation=5), KEY))
    app.take(command())
    (report,) = await eventually(lambda: publisher.values(RecoveryReport))
    assert (report.outcome, report.message) == (OrderOutcome.REFUSED, "generation 4 is older than 5")


async def test_what_is_to_be_killed_is_looked_at_before(
    relay: Any, connect: Any, publisher: Any, eventually: Eventually
) -> None:
    _, app = relay
    supervisor = await connect()
    arguments = {"targets": '["m2"]', "pid": str(os.getpid()), "pid_start": "1"}
    app.take(command(CommandKind.FENCE, arguments=arguments))
    order = await supervisor.hear()
    assert order is not None
    await supervisor.say(OrderResult(order["id"], "m2", OrderOutcome.DONE, "killed", 4))
    (report,) = await eventually(lambda: publisher.values(RecoveryReport))
    assert report.message.startswith(f"killed; before: pid {os.getpid()}, state ")


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (ChildExit("m2", 1, 1, 0), "came before supervisor_hello"),
        (replace(HELLO, pid=1), "the socket belongs to pid"),
    ],
)
async def test_who_is_not_believed_is_told_why(
    start_agent: Any, agent_folder: Path, message: RecoveryMessage, words: str
) -> None:
    await start_agent()
    supervisor = Supervisor(agent_folder)
    await supervisor.say(message)
    answer = await supervisor.hear()
    supervisor.sock.close()
    assert answer is not None
    assert answer["type"] == "refused"
    assert words in answer["reason"]


async def test_leases_are_renewed_where_they_are_on(relay: Any, connect: Any) -> None:
    agent, _ = relay
    supervisor = await connect()
    agent.supervisors.lease()
    lease = await supervisor.hear()
    assert lease == {"type": "lease", "generation": 3, "until_monotonic_s_from_now": 0.6}


async def test_a_lease_names_the_generation_that_was_ordered(relay: Any, connect: Any) -> None:
    agent, app = relay
    supervisor = await connect()
    app.take(command())
    agent.supervisors.lease()
    heard = [await supervisor.hear() or {} for _ in range(2)]
    assert [message["generation"] for message in heard if message["type"] == "order"] == [4]
    assert heard[-1]["type"] == "lease"
    assert heard[-1]["generation"] == 4, "the child tells its own only after the restore"


async def test_nobody_speaks_for_another(relay: Any, connect: Any, publisher: Any) -> None:
    agent, _ = relay
    supervisor = await connect()
    await supervisor.say(ChildExit("m1", 5, 5, -9), replace(HELLO, step=44))
    for _ in range(100):
        if agent.drops["bad_message"]:
            break
        await asyncio.sleep(0.02)
    assert agent.drops["bad_message"] == 1
    assert publisher.values(HealthEvent) == []
    assert publisher.values(CommandResult) == []


async def test_a_rank_that_goes_on_elsewhere_is_no_end_of_the_job(
    relay: Any, connect: Any, start_rank: Any, publisher: Any, eventually: Eventually
) -> None:
    _, app = relay
    hello = replace(HELLO, job="job", member="m1", rank=1)
    supervisor = await connect(hello)
    rank = await start_rank(1)
    await eventually(lambda: publisher.job() is not None)
    await rank.end()
    await eventually(lambda: publisher.health(HealthKind.PROCESS_EXIT))
    members = format_members([Member(0, "m0"), Member(1, "elsewhere")])
    arguments = {"targets": '["m1"]', "store": "h:1", "members": members}
    assert app.take(command(job="job", arguments=arguments)) is Answer.ACCEPT
    await eventually(lambda: publisher.values(NodeRecord)[-1].ranks == (), deadline_s=30)
    assert publisher.job().ended_unix_s is None, "its supervisor is still here"
    supervisor.sock.close()
    await eventually(lambda: publisher.values(NodeRecord)[-1].left, deadline_s=30)
    assert {record.state for record in publisher.values(JobRecord)} == {JobState.STARTING}


async def test_a_switch_that_is_cancelled_leaves_every_rank_where_it_was(relay: Any, connect: Any) -> None:
    agent, app = relay
    supervisor = await connect()
    targets = {"targets": '["m2"]', "store": "h:1"}

    async def order(kind: CommandKind, generation: int, *members: str) -> None:
        rows = [Member(rank, name) for rank, name in enumerate(members)]
        arguments = {**targets, "members": format_members(rows)}
        sent = command(kind, generation=generation, id=f"cmd_{kind.value}-{generation}", arguments=arguments)
        assert app.take(sent) is Answer.ACCEPT
        assert (await supervisor.hear() or {})["kind"] == kind.value

    await order(CommandKind.REBUILD, 4, "x", "y", "m2")
    assert dict(agent.supervisors.moved()) == {"train": (0, 1)}
    await order(CommandKind.SWITCH, 5, "x", "y", "z")
    assert dict(agent.supervisors.moved()) == {"train": (0, 1, 2)}
    await order(CommandKind.CANCEL, 5, "x", "y", "z")
    assert dict(agent.supervisors.moved()) == {"train": (0, 1)}, "m2 is still here, and its end is the job's"
    await order(CommandKind.SWITCH, 6, "x", "y", "z")
    late = {**targets, "members": format_members([Member(0, "m2")])}
    app.take(command(CommandKind.REBUILD, generation=4, id="cmd_late", arguments=late))
    assert dict(agent.supervisors.moved()) == {"train": (0, 1, 2)}, "it is of an older generation"
    await supervisor.say(replace(HELLO, generation=6))
    for _ in range(100):
        if agent.supervisors._guests and next(iter(agent.supervisors._guests.values())).hello.generation == 6:
            break
        await asyncio.sleep(0.02)
    await order(CommandKind.CANCEL, 6, "x", "y", "z")
    assert dict(agent.supervisors.moved()) == {"train": (0, 1, 2)}, "it took place before"
