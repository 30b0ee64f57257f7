"""The API in this process over a migrated database with one job and one incident."""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from pathlib import Path

import httpx
import pytest

from paceline.api.app import create_app
from paceline.api.first_token import ensure_first_token
from paceline.api.services import Services, Streams
from paceline.api.settings import ApiSettings
from paceline.contracts.ids import derived_id, format_communicator, new_id
from paceline.contracts.registry import CommunicatorRecord, JobRecord, JobState, NodeRecord, RankRecord
from paceline.contracts.verdicts import (
    Action,
    ActionKind,
    Coverage,
    Evidence,
    Operation,
    Owner,
    Root,
    RootKind,
    SubReason,
    Verdict,
    VerdictClass,
    VerdictRecord,
)
from paceline.incidents.decide import IncidentPolicy
from paceline.incidents.registry import write_job, write_nodes
from paceline.incidents.verdicts import VerdictContext, apply_verdict
from paceline.runtime.clock import ManualClock
from paceline.store import Database
from paceline.store.outbox_watch import OutboxWatch
from paceline.store.settings import StoreSettings

NOW = 1_767_323_045.0
TP = format_communicator(0xAA)
WORLD = format_communicator(0xBB)
POLICY = VerdictContext(IncidentPolicy(), "http://console", bundles_max=4)


@dataclass
class Api:
    """A client with the admin token, and what is behind it."""

    client: httpx.AsyncClient
    services: Services
    clock: ManualClock
    token: str
    settings: ApiSettings

    @property
    def database(self) -> Database:
        return self.services.database

    async def create_token(self, *scopes: str) -> str:
        answer = await self.client.post("/v1/tokens", json={"name": "bot", "scopes": list(scopes)})
        assert answer.status_code == 201, answer.text
        return str(answer.json()["token"])

    def anonymous(self, **headers: str) -> httpx.AsyncClient:
        """A client without the token."""
        transport = self.client._transport
        return httpx.AsyncClient(transport=transport, base_url="http://api", headers=headers)

    async def apply(self, record: VerdictRecord) -> str:
        async with self.database.transaction() as session:
            decision = await apply_verdict(session, record, self.services.now(), "", POLICY)
        return decision.reason.value


@pytest.fixture
def make_verdict() -> Callable[..., VerdictRecord]:
    """A verdict of `llama` about one rank that never entered."""

    def make(revision: int = 1, *, episode: str = "epi_1", rank: int = 5, **changes: object) -> VerdictRecord:
        verdict = Verdict(
            verdict_class=VerdictClass.H1,
            sub_reason=SubReason.MISSING_ENTER,
            roots=(Root(RootKind.RANK, rank=rank, node="n0", gpu=rank),),
            victims=tuple(other for other in range(8) if other != rank),
            victims_count=7,
            operation=Operation(TP, "tp_1", "all_reduce", 412, 4),
            owner=Owner.USER_CODE,
            action=Action(ActionKind.FIX_CODE, f"rank {rank}", "it never entered"),
            confidence=0.9,
            coverage=Coverage(8, 8, 2, 2, sources=("torch_hook",)),
            evidence=(Evidence("h1.missing", f"rank {rank} is behind", {"round": "412"}, "1 round"),),
            summary=f"rank {rank} never entered all_reduce round 412 of tp_1",
            communicators_waiting=2,
        )
        name = derived_id("ver", "llama", "a1", episode, revision)
        record = VerdictRecord(
            name, "llama", "a1", episode, revision, verdict, NOW - 10, NOW, evidence_bundle="ZXZpZGVuY2U="
        )
        return replace(record, **changes)  # type: ignore[arg-type]

    return make


@pytest.fixture
async def api(database: str, tmp_path: Path) -> AsyncIterator[Api]:
    """Nothing but the admin token in the database."""
    clock = ManualClock(unix_s=NOW)
    settings = ApiSettings(database=StoreSettings(url=database), console_path=tmp_path)
    services = Services(
        settings=settings,
        database=settings.database.open(),
        clock=clock,
        new_id=new_id,
        watch=OutboxWatch(database),
        streams=Streams(settings.streams_max),
        console_url="http://console",
    )
    token = await ensure_first_token(services)
    assert token is not None
    transport = httpx.ASGITransport(create_app(services), raise_app_exceptions=False)
    headers = {"Authorization": f"Bearer {token}"}
    async with httpx.AsyncClient(transport=transport, base_url="http://api", headers=headers) as client:
        yield Api(client, services, clock, token, settings)
    await services.database.stop()


@pytest.fixture
async def job(api: Api) -> JobRecord:
    """Job `llama`: 8 ranks on two nodes, tp of 4, one communicator of all."""
    record = JobRecord(
        job="llama", attempt="a1", cluster="c", tenant="t", user="lia", name="Llama", world_size=8, shards=1,
        state=JobState.RUNNING, id_source="declared", attempt_source="store", started_unix_s=NOW - 600,
        versions={"torch": "2.13"},
    )  # fmt: skip
    nodes = [
        NodeRecord(
            "llama", "a1", f"n{node}", f"ag{node}",
            tuple(
                RankRecord(4 * node + local, local, 100 + local, 1, local, {"tp": local, "dp": node})
                for local in range(4)
            ),
        )
        for node in range(2)
    ]  # fmt: skip
    groups = [
        CommunicatorRecord("llama", "a1", TP, "tp_1", "4-7", 0, 0, "gloo", "tp"),
        CommunicatorRecord("llama", "a1", WORLD, "world", "0-7", 0, 0, "gloo", "world"),
    ]
    async with api.database.transaction() as session:
        await write_job(session, record, api.services.now(), "http://console")
        await write_nodes(session, [*nodes, *groups], api.services.now())
    return record


@pytest.fixture
async def incident(api: Api, job: JobRecord, make_verdict: Callable[..., VerdictRecord]) -> str:
    """INC-1: rank 5 of `llama` never entered. Returns its id."""
    record = make_verdict()
    assert await api.apply(record) == "open"
    return derived_id("inc", record.job, record.attempt, record.episode)
