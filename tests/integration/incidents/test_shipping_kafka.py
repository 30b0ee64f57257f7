"""From a verdict to logs in the bundle: real Kafka, real PostgreSQL, an agent and a training process."""

import argparse
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import text

from paceline.agent.app import AgentApp
from paceline.agent.evidence import EvidenceApp, make_agent
from paceline.agent.settings import AgentSettings
from paceline.analysis import commands, dump_bundle, load_judged
from paceline.analysis.judge import judge
from paceline.api.app import create_app
from paceline.api.first_token import ensure_first_token
from paceline.api.services import Services, Streams
from paceline.api.settings import ApiSettings
from paceline.contracts.events import EventType
from paceline.contracts.ids import derived_id, new_id
from paceline.contracts.topics import VERDICTS
from paceline.contracts.verdicts import Root, RootKind, VerdictRecord
from paceline.incidents.app import IncidentsApp
from paceline.incidents.relay import OutboxRelay
from paceline.incidents.settings import IncidentsSettings
from paceline.runtime.app import App
from paceline.runtime.clock import SystemClock
from paceline.runtime.producer import Producer
from paceline.runtime.settings import CommandSettings, KafkaSettings
from paceline.store import Database
from paceline.store.outbox_watch import OutboxWatch
from paceline.store.repositories.jobs import JobRepository
from paceline.store.settings import StoreSettings
from tests.unit.analysis.injections import inject
from tests.unit.analysis.simulated_job import Shape, SimulatedJob

Eventually = Callable[..., Any]
RANK_SCRIPT = Path(__file__).parents[2] / "unit" / "agent" / "rank_process.py"
KEY = "a key of the whole cluster"
NODE = "node-of-the-test"
INCIDENT = derived_id("inc", "shipped", "a1", "epi_shipped")
WAIT_S = 90.0  # the machine may be busy

pytestmark = pytest.mark.timeout(300)


class TrainingProcess:
    """A rank with a real page, whose standard error is a log file."""

    def __init__(self, socket: Path, job: str, log: Path) -> None:
        with log.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, str(RANK_SCRIPT), str(socket), job, "a1", "0", "1", str(os.getuid())],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, bufsize=1,
                env={**os.environ, "RANK": "0", "WORLD_SIZE": "1"},
            )  # fmt: skip
        assert self.process.stdout is not None
        self.process.stdout.readline()

    def state(self) -> str:
        return Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.fixture
def folder() -> Path:
    """A short path, for the socket."""
    return Path(tempfile.mkdtemp(prefix="pe-"))


@pytest.fixture
def rank(folder: Path) -> Iterator[TrainingProcess]:
    log = folder / "rank0.log"
    found = TrainingProcess(folder / "agent.sock", "shipped", log)
    with log.open("a") as stream:
        stream.write("[rank0]: Traceback (most recent call last):\nRuntimeError: CUDA error: an illegal\n")
    yield found
    found.process.kill()
    found.process.communicate()


@pytest.fixture
async def platform(
    database: str, kafka_bootstrap: str, folder: Path
) -> AsyncIterator[tuple[Producer, AgentApp, EvidenceApp]]:
    """Incidents service, relay, agent and shipper, as `paceline up --with-agent` runs them."""
    kafka = KafkaSettings(bootstrap=kafka_bootstrap, group_prefix=folder.name, send_timeout_s=60.0)
    settings = IncidentsSettings(
        kafka=kafka, database=StoreSettings(url=database), console_url="http://console",
        command=CommandSettings(key=KEY), shipping_wait_s=WAIT_S, shipping_collect_s=20.0,
    )  # fmt: skip
    node = AgentSettings(socket=folder / "agent.sock", state_dir=folder / "state", node=NODE, interval_s=0.2)
    agents = make_agent(node, kafka, KEY.encode(), SystemClock())
    apps: list[App] = [IncidentsApp(settings), OutboxRelay(settings), *agents]
    producer = Producer(kafka, "test")
    await producer.start()
    for app in apps:
        await app.start()
    agent, shipper = agents
    assert isinstance(agent, AgentApp)
    assert isinstance(shipper, EvidenceApp)
    yield producer, agent, shipper
    for app in reversed(apps):
        await app.stop()
    await producer.stop()


def verdict() -> VerdictRecord:
    """The verdict on simulated evidence, about the process that is really there."""
    packed = dump_bundle(inject("h1", SimulatedJob(Shape(4, 2, 1), 3)).job.evidence())
    found = judge(load_judged(packed).evidence)
    roots = (Root(RootKind.RANK, rank=0, node=NODE),)
    now = SystemClock().unix_s()
    record_id = derived_id("ver", NODE, now)
    return VerdictRecord(
        record_id, "shipped", "a1", "epi_shipped", 1, replace(found, roots=roots), now - 9, now
    )


async def bundle_of(database: str) -> tuple[dict[str, Any], bytes]:
    """The incident page and the bundle, through the API."""
    settings = ApiSettings(database=StoreSettings(url=database))
    services = Services(
        settings,
        settings.database.open(),
        SystemClock(),
        new_id,
        OutboxWatch(database),
        Streams(1),
        "http://c",
    )
    token = await ensure_first_token(services)
    transport, headers = httpx.ASGITransport(create_app(services)), {"Authorization": f"Bearer {token}"}
    async with httpx.AsyncClient(transport=transport, base_url="http://api", headers=headers) as client:
        page = (await client.get(f"/v1/incidents/{INCIDENT}")).json()
        content = (await client.get(f"/v1/incidents/{INCIDENT}/bundle")).content
    await services.database.stop()
    return page, content


async def test_what_the_node_shows_is_in_the_bundle(
    platform: tuple[Producer, AgentApp, EvidenceApp],
    rank: TrainingProcess,
    database: str,
    folder: Path,
    eventually: Eventually,
    capsys: pytest.CaptureFixture[str],
) -> None:
    producer, agent, shipper = platform
    store = Database(database)

    async def registered() -> bool:
        async with store.transaction() as session:
            return bool(await JobRepository(session).places_of("shipped", "a1", [0]))

    await eventually(registered, WAIT_S)
    record = verdict()
    await producer.send_event(
        VERDICTS, record.job, EventType.VERDICT.value, record, event_id=record.id, traceparent=""
    )
    states: set[str] = set()

    async def settled() -> bool:
        states.add(rank.state())
        async with store.transaction() as session:
            query = "SELECT evidence, message FROM incidents JOIN shipments ON incident_id = incidents.id"
            mine = text(f"{query} WHERE incidents.id = :id")  # other tests' verdicts are in the topic as well
            found = (await session.execute(mine, {"id": INCIDENT})).all()
        return [state for state, message in found if message] == ["complete"]

    await eventually(settled, WAIT_S)
    await store.stop()
    assert shipper.answers["accept"] == 1
    assert shipper.answers["unsigned"] == 0
    assert not states & {"T", "t", "Z"}  # nobody was stopped for it
    assert agent.roster.living_count == 1

    page, content = await bundle_of(database)
    shipped = page["why"]["shipped"]
    assert shipped["state"] == "complete"
    (node,) = shipped["nodes"]
    assert (node["node"], node["reason"], node["state"]) == (NODE, "root", "shipped")
    assert "training processes: 1" in node["message"]
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        (name,) = [name for name in archive.getnames() if "/shipped/" in name]
        inner = archive.extractfile(name)
        assert inner is not None
        packed = inner.read()
    assert len(packed) == node["bytes_count"]
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        names = archive.getnames()
    assert any(name.endswith("/rank_0/rank0.log") for name in names), names
    assert any(name.endswith("/collect.json") for name in names)

    path = folder / "INC-1.bundle"
    path.write_bytes(content)
    parser = argparse.ArgumentParser()
    commands.add_diagnose(parser.add_subparsers())
    capsys.readouterr()
    commands.run_diagnose(parser.parse_args(["diagnose", "--json", "--quiet", str(path)]))
    answer = json.loads(capsys.readouterr().out)
    assert "paceline collect" in answer["coverage"]["sources"]
