"""Supervisors at an agent's socket, and a platform around them whose remediator the test starts."""

import asyncio
import json
import os
import struct
import tempfile
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paceline.agent.evidence import make_agent
from paceline.agent.settings import AgentSettings
from paceline.contracts.agent_socket import LENGTH
from paceline.contracts.recovery import (
    ChildExit,
    OrderOutcome,
    OrderResult,
    PhaseReport,
    RecoveryMessage,
    RecoveryPhase,
    Role,
    SupervisorHello,
    Support,
    encode_recovery,
    parse_members,
)
from paceline.contracts.repair import RepairMode
from paceline.incidents.relay import OutboxRelay
from paceline.incidents.settings import IncidentsSettings
from paceline.remediator.settings import RemediatorSettings
from paceline.runtime.app import App
from paceline.runtime.clock import SystemClock
from paceline.runtime.settings import CommandSettings, KafkaSettings
from paceline.store import Database, is_transient
from paceline.store.repositories.repair import RepairRepository
from paceline.store.settings import StoreSettings

KEY = "a key of the whole cluster"
NODE = "node-of-the-test"


class FakeSupervisor:
    """Speaks the protocol and carries every order out at once; `mute` lets it forget its phases."""

    def __init__(self, folder: Path, job: str, name: str, rank: int, number: int) -> None:
        self.hello = SupervisorHello(
            job=job, attempt="a1", member=name, role=Role.MEMBER if rank >= 0 else Role.STANDBY, rank=rank,
            pid=os.getpid(), child_pid=900_000 + number, child_pid_start=number + 1, generation=0, step=40,
            store=f"h:{number + 1}", replica=f"h:{number + 1000}", failure_domain=f"rack-{number}",
            ready=True, world_size=3, support=Support.VERIFIED,
        )  # fmt: skip
        self.mute = False
        self.outcome = OrderOutcome.DONE
        self.orders: list[dict[str, Any]] = []
        self.ordered_ns = 0  # when the newest one came
        self._path = str(folder / "agent.sock")
        self._task: asyncio.Task[None] | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def start(self) -> None:
        reader, self._writer = await asyncio.open_unix_connection(self._path)
        await self.say(self.hello)
        self._task = asyncio.create_task(self._listen(reader))

    async def say(self, message: RecoveryMessage) -> None:
        assert self._writer is not None
        self._writer.write(encode_recovery(message))
        await self._writer.drain()

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        while True:
            try:
                (length,) = struct.unpack("<I", await reader.readexactly(LENGTH.size))
                message = json.loads(await reader.readexactly(length))
            except (asyncio.IncompleteReadError, ConnectionError):
                return
            if message["type"] == "order":
                self.ordered_ns = SystemClock().monotonic_ns()
                self.orders.append(message)
                await self.obey(message)

    async def obey(self, order: dict[str, Any]) -> None:
        generation, name = order["generation"], self.hello.member
        await self.say(OrderResult(order["id"], name, self.outcome, "", generation))
        if order["kind"] != "rebuild" or self.mute or self.outcome is not OrderOutcome.DONE:
            return
        ranks = {row.member: row.rank for row in parse_members(order["arguments"]["members"])}
        if name not in ranks:
            return  # it has been replaced
        self.hello = replace(
            self.hello, role=Role.MEMBER, rank=ranks[name], generation=generation, step=41, ready=True
        )
        for phase in (RecoveryPhase.RENDEZVOUS, RecoveryPhase.RESUME, RecoveryPhase.FIRST_STEP):
            await self.say(PhaseReport(name, ranks[name], generation, phase, 1.0, 41, 1))
        await self.say(self.hello)

    async def die(self, code: int = -9) -> None:
        """Its training process is killed, or ends with `code`; nothing is restored in it any more."""
        self.mute = True
        await self.say(ChildExit(self.hello.member, self.hello.child_pid, self.hello.child_pid_start, code))

    async def stop(self) -> None:
        if self._writer is not None:
            self._writer.close()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)


@pytest.fixture
def folder() -> Path:
    """A short path, for the socket."""
    return Path(tempfile.mkdtemp(prefix="pr-"))


@pytest.fixture
def settings(database: str, kafka_bootstrap: str, folder: Path) -> RemediatorSettings:
    return RemediatorSettings(
        kafka=KafkaSettings(bootstrap=kafka_bootstrap, group_prefix=folder.name, send_timeout_s=60.0),
        database=StoreSettings(url=database), command=CommandSettings(key=KEY), mode=RepairMode.AUTO,
    )  # fmt: skip


@pytest.fixture
async def platform(settings: RemediatorSettings, folder: Path) -> AsyncIterator[list[App]]:
    """Relay and agent; the test starts the remediator itself."""
    relay = IncidentsSettings(kafka=settings.kafka, database=settings.database, command=settings.command)
    node = AgentSettings(socket=folder / "agent.sock", state_dir=folder / "state", node=NODE, interval_s=0.2)
    apps: list[App] = [OutboxRelay(relay), *make_agent(node, settings.kafka, KEY.encode(), SystemClock())]
    for app in apps:
        await app.start()
    yield apps
    for app in reversed(apps):
        await app.stop()


@pytest.fixture
async def crew(platform: list[App], folder: Path) -> AsyncIterator[list[FakeSupervisor]]:
    """Three ranks and a standby of a job of this test's own."""
    job = f"train-{folder.name}"
    made = [
        FakeSupervisor(folder, job, name, rank, number)
        for number, (name, rank) in enumerate((("m0", 0), ("m1", 1), ("m2", 2), ("s0", -1)))
    ]
    for supervisor in made:
        await supervisor.start()
    yield made
    for supervisor in made:
        await supervisor.stop()


async def registered(store: Database, job: str) -> int:
    async with store.transaction() as session:
        return len(await RepairRepository(session).members(job, "a1"))


async def state_of(store: Database, job: str) -> str:
    async with store.transaction() as session:
        row = await RepairRepository(session).job(job, "a1")
    return "" if row is None else row.state


async def has(value: Any, wanted: object) -> bool:
    """Whether it is `wanted` by now; a database that is away says no."""
    try:
        return bool(await value == wanted)
    except Exception as error:
        if not is_transient(error):
            raise
        return False
