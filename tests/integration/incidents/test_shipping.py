"""Requests for evidence in the transaction of the verdict, and what becomes of what nodes ship."""

import base64
import hashlib
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from sqlalchemy import text

from paceline.contracts.commands import Command, CommandKind, CommandOutcome, CommandResult, is_signed
from paceline.contracts.events import EvidenceState
from paceline.contracts.evidence import PART_BYTES_MAX, EvidencePart, parts_of
from paceline.contracts.registry import NodeRecord, RankRecord
from paceline.contracts.schemas import ContractError, load_json
from paceline.contracts.verdicts import Root, RootKind, VerdictClass, VerdictRecord
from paceline.incidents.decide import IncidentPolicy
from paceline.incidents.registry import write_nodes
from paceline.incidents.shipping import Shipping, expire_requests, keep_part, note_result
from paceline.incidents.verdicts import VerdictContext, apply_verdict
from paceline.incidents.witnesses import ShippingPolicy
from paceline.store import Database
from paceline.store.models.shipment import Shipment
from paceline.store.repositories.shipments import ShipmentRepository, evidence_state
from paceline.store.times import from_unix
from tests.integration.incidents.conftest import NOW

Make = Callable[..., VerdictRecord]
KEY = b"a key of the whole cluster"
SHIPPING = Shipping(KEY, ShippingPolicy(deadline_s=60.0, incident_bytes_max=1500))
CONTEXT = VerdictContext(IncidentPolicy(), "http://console", bundles_max=4, shipping=SHIPPING)


class Lab:
    """A database with job `llama` on two nodes, and a clock."""

    def __init__(self, store: Database) -> None:
        self.store = store
        self.now = from_unix(NOW)

    def wait(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    async def verdict(self, record: VerdictRecord, context: VerdictContext = CONTEXT) -> str:
        async with self.store.transaction() as session:
            decision = await apply_verdict(session, record, self.now, "", context)
        return decision.reason.value

    async def commands(self) -> list[Command]:
        query = "SELECT payload FROM outbox WHERE topic = 'paceline.commands.v1' ORDER BY sequence"
        async with self.store.transaction() as session:
            rows = (await session.execute(text(query))).scalars().all()
        return [load_json(Command, row) for row in rows]

    async def ship(self, command: Command, content: bytes, **changes: object) -> None:
        for part in parts(command, content, self.now.timestamp()):
            await self.part(replace(part, **changes))  # type: ignore[arg-type]

    async def part(self, part: EvidencePart) -> None:
        async with self.store.transaction() as session:
            await keep_part(session, part, self.now, SHIPPING.policy, "http://console")

    async def result(self, command: Command, outcome: CommandOutcome, message: str = "") -> None:
        result = CommandResult(
            command.id, command.node, command.job, command.attempt, 0, outcome, message, self.now.timestamp()
        )
        async with self.store.transaction() as session:
            await note_result(session, result, self.now, "http://console")

    async def expire(self) -> int:
        async with self.store.transaction() as session:
            return await expire_requests(session, self.now, "http://console")

    async def shipments(self) -> list[Shipment]:
        async with self.store.transaction() as session:
            incident = (await session.execute(text("SELECT id FROM incidents"))).scalar_one()
            return list(await ShipmentRepository(session).of_incident(incident))

    async def state(self) -> tuple[str, str]:
        """(as stored, as computed now)."""
        async with self.store.transaction() as session:
            row = (await session.execute(text("SELECT id, evidence FROM incidents"))).one()
            found = await ShipmentRepository(session).of_incident(row[0])
        return row[1], evidence_state(found, self.now).value

    async def archive(self, command: Command) -> bytes:
        async with self.store.transaction() as session:
            return await ShipmentRepository(session).archive(command.id)

    async def timeline(self) -> list[str]:
        query = "SELECT message FROM timeline_entries WHERE kind = 'evidence' ORDER BY id"
        async with self.store.transaction() as session:
            return list((await session.execute(text(query))).scalars().all())


def parts(command: Command, content: bytes, unix_s: float = NOW) -> list[EvidencePart]:
    """The archive as an agent sends it."""
    pieces = [content[at : at + PART_BYTES_MAX] for at in range(0, len(content), PART_BYTES_MAX)]
    return [
        EvidencePart(
            id=f"p{number}",
            command=command.id,
            incident=command.arguments["incident"],
            job=command.job,
            attempt=command.attempt,
            node=command.node,
            part=number,
            parts=parts_of(len(content)),
            bytes_count=len(content),
            sha256=hashlib.sha256(content).hexdigest(),
            data=base64.b64encode(piece).decode(),
            collected_unix_s=unix_s,
        )
        for number, piece in enumerate(pieces)
    ]


@pytest.fixture
async def lab(database: str) -> AsyncIterator[Lab]:
    store = Database(database)
    lab = Lab(store)
    nodes = [
        NodeRecord(
            "llama", "a1", f"n{node}", "ag",
            tuple(RankRecord(4 * node + local, local, 100 + local, 1) for local in range(4)),
        )
        for node in range(3)
    ]  # fmt: skip
    async with store.transaction() as session:
        await write_nodes(session, nodes, lab.now)
    yield lab
    await store.stop()


@pytest.fixture
def record(make_record: Make) -> VerdictRecord:
    """Rank 5 on n1 never entered; those of n0 and n1 wait."""
    found = make_record()
    return replace(found, verdict=replace(found.verdict, roots=(Root(RootKind.RANK, rank=5, node="n1"),)))


class TestAsking:
    async def test_the_cause_and_a_witness_are_asked_with_the_verdict(
        self, lab: Lab, record: VerdictRecord
    ) -> None:
        assert await lab.verdict(record) == "open"
        commands = await lab.commands()
        assert [command.node for command in commands] == ["n1", "n0"]
        assert all(command.kind is CommandKind.FREEZE_EVIDENCE for command in commands)
        assert all(is_signed(command, KEY) for command in commands)
        assert commands[0].expires_unix_s == NOW + 60
        assert commands[0].arguments["ask"] == "yes"
        assert [(each.node, each.reason, each.state) for each in await lab.shipments()] == [
            ("n1", "root", "pending"),
            ("n0", "witness", "pending"),
        ]
        assert await lab.state() == ("pending", "pending")

    async def test_the_same_verdict_asks_once(self, lab: Lab, record: VerdictRecord) -> None:
        await lab.verdict(record)
        await lab.verdict(record)
        assert len(await lab.commands()) == 2

    async def test_a_better_verdict_asks_its_new_cause(
        self, lab: Lab, record: VerdictRecord, make_record: Make
    ) -> None:
        await lab.verdict(record)
        better = make_record(2, rank=9)
        roots = (Root(RootKind.RANK, rank=9, node="n2"),)
        assert await lab.verdict(replace(better, verdict=replace(better.verdict, roots=roots))) == "revise"
        assert [command.node for command in await lab.commands()] == ["n1", "n0", "n2"]

    async def test_a_slow_job_is_asked_for_no_dumps(self, lab: Lab, record: VerdictRecord) -> None:
        slow = replace(record, verdict=replace(record.verdict, verdict_class=VerdictClass.S1))
        await lab.verdict(slow)
        assert {command.arguments["ask"] for command in await lab.commands()} == {"no"}

    async def test_a_slow_nccl_job_is_asked_for_detail_once(self, lab: Lab, record: VerdictRecord) -> None:
        coverage = replace(record.verdict.coverage, sources=("nccl_profiler",))
        verdict = replace(record.verdict, verdict_class=VerdictClass.S1, coverage=coverage)
        await lab.verdict(replace(record, verdict=verdict))
        await lab.verdict(replace(record, id="ver_2", revision=2, verdict=verdict))
        asked = [each for each in await lab.commands() if each.kind is CommandKind.SET_DETAIL]
        assert [(each.node, each.arguments["level"]) for each in asked] == [("n1", "edges"), ("n0", "edges")]
        assert all(is_signed(each, KEY) and each.expires_unix_s == NOW + 180 for each in asked)
        query = "SELECT message FROM timeline_entries WHERE kind = 'detail'"
        async with lab.store.transaction() as session:
            (message,) = (await session.execute(text(query))).scalars().all()
        assert message.startswith("NCCL detail raised to edges for 180 s on 2 node(s)")

    async def test_without_a_key_nobody_is_asked(self, lab: Lab, record: VerdictRecord) -> None:
        await lab.verdict(record, replace(CONTEXT, shipping=None))
        assert await lab.commands() == []
        assert await lab.state() == ("none", "none")

    async def test_the_first_verdict_that_names_known_nodes_asks(
        self, lab: Lab, record: VerdictRecord, make_record: Make
    ) -> None:
        unknown = replace(record.verdict, roots=(), victims=(77,))
        assert await lab.verdict(replace(record, verdict=unknown)) == "open"
        assert (await lab.commands(), await lab.state()) == ([], ("none", "none"))
        better = replace(make_record(2), verdict=record.verdict)
        assert await lab.verdict(better) == "revise"
        assert [command.node for command in await lab.commands()] == ["n1", "n0"]
        assert await lab.state() == ("pending", "pending")

    async def test_what_comes_back_is_asked_again(
        self, lab: Lab, record: VerdictRecord, make_record: Make
    ) -> None:
        await lab.verdict(record)
        await lab.verdict(replace(record, resolved=True))
        lab.wait(30)
        again = replace(make_record(1, episode="epi_2"), verdict=record.verdict)
        assert await lab.verdict(again) == "reopen"
        assert [command.node for command in await lab.commands()] == ["n1", "n0", "n1", "n0"]
        assert [each.round for each in await lab.shipments()] == [2, 2, 1, 1]


class TestShipping:
    async def test_complete_when_every_node_has_answered(self, lab: Lab, record: VerdictRecord) -> None:
        await lab.verdict(record)
        root, witness = await lab.commands()
        content = bytes(range(256)) * 4
        await lab.ship(root, content)
        assert (await lab.state())[0] == "pending"
        await lab.result(witness, CommandOutcome.FAILED, "the disk is full")
        assert await lab.state() == ("complete", "complete")
        assert await lab.archive(root) == content
        shipped, failed = await lab.shipments()
        assert (shipped.state, shipped.bytes_count, shipped.received_at) == ("shipped", 1024, lab.now)
        assert (failed.state, failed.message) == ("failed", "the disk is full")
        assert await lab.timeline() == ["nodes that shipped logs, stacks and dumps: 1 of 2 (1,024 bytes)"]

    async def test_what_was_shipped_keeps_its_words(self, lab: Lab, record: VerdictRecord) -> None:
        """An agent that was restarted reads the command again, when it has expired."""
        await lab.verdict(record)
        root, _ = await lab.commands()
        await lab.ship(root, b"content")
        await lab.result(root, CommandOutcome.DONE, "7 bytes")
        await lab.result(root, CommandOutcome.EXPIRED, "not collected: expired")
        shipped, _ = await lab.shipments()
        assert (shipped.state, shipped.message) == ("shipped", "7 bytes")

    async def test_parts_in_any_order_and_twice(self, lab: Lab, record: VerdictRecord) -> None:
        await lab.verdict(record)
        root, _ = await lab.commands()
        content = hashlib.sha256(b"x").digest() * (PART_BYTES_MAX // 32 * 2) + b"end"
        found = parts(root, content)
        assert len(found) == 3
        for part in (found[2], found[0], found[0]):
            await lab.part(part)
        assert (await lab.shipments())[0].state == "pending"
        await lab.part(found[1])
        await lab.part(found[1])
        assert (await lab.shipments())[0].state == "shipped"
        assert await lab.archive(root) == content

    async def test_an_agent_that_started_anew_replaces_its_parts(
        self, lab: Lab, record: VerdictRecord
    ) -> None:
        await lab.verdict(record)
        root, _ = await lab.commands()
        await lab.part(parts(root, b"a" * (PART_BYTES_MAX + 1))[0])
        await lab.ship(root, b"b" * (PART_BYTES_MAX + 9))
        assert await lab.archive(root) == b"b" * (PART_BYTES_MAX + 9)

    async def test_expired_after_the_deadline_and_late_evidence_still_counts(
        self, lab: Lab, record: VerdictRecord
    ) -> None:
        await lab.verdict(record)
        root, witness = await lab.commands()
        await lab.ship(root, b"kernel")
        lab.wait(59)
        assert await lab.expire() == 0
        lab.wait(1)
        assert await lab.state() == ("pending", "expired")  # nobody waits for the writer of the state
        assert await lab.expire() == 1
        assert await lab.state() == ("expired", "expired")
        assert "no answer in time from n0" in (await lab.timeline())[-1]
        await lab.ship(witness, b"late")
        assert await lab.state() == ("complete", "complete")

    async def test_a_part_that_was_not_asked_for_is_refused(self, lab: Lab, record: VerdictRecord) -> None:
        await lab.verdict(record)
        root, _ = await lab.commands()
        (part,) = parts(root, b"content")
        wrong: list[dict[str, object]] = [
            {"node": "n9"},
            {"incident": "inc_other"},
            {"bytes_count": 1 << 30},
            {"parts": 2},
            {"part": 1},
            {"part": -1},
            {"data": "%%"},
            {"data": base64.b64encode(b"longer than said").decode()},
            {"sha256": "short"},
        ]
        for changes in wrong:
            with pytest.raises(ContractError, match="EvidencePart"):
                await lab.part(replace(part, **changes))  # type: ignore[arg-type]
        await lab.part(replace(part, command="cmd_unknown"))  # its incident was cleaned away
        assert (await lab.shipments())[0].parts == 0

    async def test_content_that_is_not_what_was_announced_is_never_shipped(
        self, lab: Lab, record: VerdictRecord
    ) -> None:
        await lab.verdict(record)
        root, _ = await lab.commands()
        await lab.ship(root, b"content", sha256=hashlib.sha256(b"other").hexdigest())
        assert (await lab.shipments())[0].state == "pending"


class TestBounds:
    async def test_of_one_incident_the_newest_stay(self, lab: Lab, record: VerdictRecord) -> None:
        await lab.verdict(record)
        root, witness = await lab.commands()
        await lab.ship(root, b"r" * 1000)
        lab.wait(1)
        await lab.ship(witness, b"w" * 1000)
        assert [each.state for each in await lab.shipments()] == ["dropped", "shipped"]
        assert (await lab.archive(root), len(await lab.archive(witness))) == (b"", 1000)
        assert (await lab.state())[0] == EvidenceState.COMPLETE.value

    async def test_in_all_and_with_age_the_oldest_go(self, lab: Lab, record: VerdictRecord) -> None:
        await lab.verdict(record)
        root, witness = await lab.commands()
        await lab.ship(root, b"r" * 500)
        lab.wait(1)
        await lab.ship(witness, b"w" * 500)

        async def drop(bytes_max: int, before: datetime) -> tuple[int, int]:
            async with lab.store.transaction() as session:
                shipments = ShipmentRepository(session)
                return await shipments.drop_over(bytes_max, 10), await shipments.drop_before(before, 10)

        long_ago = lab.now - timedelta(days=1)
        assert await drop(1000, long_ago) == (0, 0)
        assert await drop(999, long_ago) == (1, 0)
        assert [each.state for each in await lab.shipments()] == ["dropped", "shipped"]
        assert await drop(1000, lab.now + timedelta(seconds=1)) == (0, 1)
        assert await lab.archive(witness) == b""

    async def test_fragments_do_not_stay_for_ever(self, lab: Lab, record: VerdictRecord) -> None:
        await lab.verdict(record)
        root, _ = await lab.commands()
        await lab.part(parts(root, b"a" * (PART_BYTES_MAX + 1))[0])
        lab.wait(61)
        await lab.expire()
        async with lab.store.transaction() as session:
            assert await ShipmentRepository(session).drop_fragments(lab.now - timedelta(hours=1), 10) == 0
            assert await ShipmentRepository(session).drop_fragments(lab.now, 10) == 1
        assert await lab.archive(root) == b""
