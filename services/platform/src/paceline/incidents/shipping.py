"""Asks nodes for what they show when an incident opens, and keeps what they ship.

The request is a signed command in the outbox, written in the transaction of the verdict: it is asked
exactly where the incident was written, and once. What comes back is bounded, checked, and idempotent.
"""

import base64
import binascii
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from sqlalchemy.ext.asyncio import AsyncSession

from paceline.contracts.commands import Command, CommandKind, CommandOutcome, CommandResult, sign
from paceline.contracts.events import EvidenceState, ShipmentState
from paceline.contracts.evidence import ARCHIVE_BYTES_MAX, PART_BYTES_MAX, EvidencePart, parts_of
from paceline.contracts.ids import derived_id
from paceline.contracts.schemas import ContractError
from paceline.contracts.verdicts import Verdict
from paceline.incidents.commands import append_command
from paceline.incidents.witnesses import NodeWanted, ShippingPolicy, choose_nodes, ranks_wanted
from paceline.store.actors import system
from paceline.store.base import JsonObject
from paceline.store.incident_changes import (
    ChangeContext,
    add_timeline_entry,
    append_stream_event,
    event_summary,
)
from paceline.store.models.incident import Incident
from paceline.store.models.shipment import Shipment
from paceline.store.repositories.incidents import IncidentRepository
from paceline.store.repositories.jobs import JobRepository
from paceline.store.repositories.outbox import OutboxRepository
from paceline.store.repositories.shipments import ShipmentRepository, evidence_state
from paceline.store.times import from_unix, to_unix

SOURCE = "incidents"
MESSAGE_CHARS_MAX = 1000
OVERDUE_AT_ONCE_MAX = 200


@dataclass(frozen=True)
class Shipping:
    """How nodes are asked. `key` is the cluster's command key."""

    key: bytes = field(repr=False)
    policy: ShippingPolicy = field(default_factory=ShippingPolicy)


async def ask_for_evidence(
    session: AsyncSession,
    incident: Incident,
    verdict: Verdict,
    record_id: str,
    at: datetime,
    traceparent: str,
    shipping: Shipping,
    *,
    opens: bool,
) -> list[NodeWanted]:
    """Write the requests that follow from a verdict. `opens`: the incident was opened, or opened again."""
    shipments = ShipmentRepository(session)
    known = await shipments.of_incident(incident.id)
    # Where the opening named no node that is known, the first verdict that does is the one that asks.
    number = max(1, max((shipment.round for shipment in known), default=0) + (1 if opens else 0))
    asked = [shipment.node for shipment in known if shipment.round == number]
    jobs = JobRepository(session)
    ranks = [rank for part in ranks_wanted(verdict) for rank in part]
    places = await jobs.places_of(incident.job, incident.attempt, ranks)
    wanted = choose_nodes(verdict, places, asked, len(known), shipping.policy)
    for each in wanted:
        await _ask(session, incident, each, number, verdict, record_id, at, traceparent, shipping)
    if wanted:
        await session.flush()
        incident.evidence = EvidenceState.PENDING.value
    return wanted


async def _ask(
    session: AsyncSession,
    incident: Incident,
    wanted: NodeWanted,
    number: int,
    verdict: Verdict,
    record_id: str,
    at: datetime,
    traceparent: str,
    shipping: Shipping,
) -> None:
    policy = shipping.policy
    deadline_at = at + timedelta(seconds=policy.deadline_s)
    command_id = derived_id("cmd", record_id, wanted.node, "evidence")
    command = sign(
        Command(
            id=command_id,
            kind=CommandKind.FREEZE_EVIDENCE,
            node=wanted.node,
            job=incident.job,
            attempt=incident.attempt,
            generation=0,
            expires_unix_s=to_unix(deadline_at),
            arguments={
                "incident": incident.id,
                "collect_s": f"{policy.collect_s:g}",
                "bytes_max": str(policy.archive_bytes_max),
                # A slow job goes on: nobody is asked to write a dump.
                "ask": "no" if verdict.verdict_class.is_slow else "yes",
            },
        ),
        shipping.key,
    )
    ShipmentRepository(session).add(
        Shipment(
            id=command_id, incident_id=incident.id, round=number, node=wanted.node,
            reason=wanted.reason.value, state=ShipmentState.PENDING.value, message="", asked_at=at,
            deadline_at=deadline_at, collected_at=None, received_at=None, parts=0, bytes_count=0, sha256="",
        )
    )  # fmt: skip
    await append_command(session, command, incident, at, traceparent)


async def keep_part(
    session: AsyncSession, part: EvidencePart, at: datetime, policy: ShippingPolicy, console_url: str
) -> None:
    """Keep a part; with the last one the shipment is there. ContractError for what was not asked for."""
    data = _check_part(part)
    shipments = ShipmentRepository(session)
    shipment = await _locked(session, part.command)
    if shipment is None or shipment.state in (ShipmentState.SHIPPED.value, ShipmentState.DROPPED.value):
        return  # the incident was cleaned away, or the part came twice
    if (part.node, part.incident) != (shipment.node, shipment.incident_id):
        raise ContractError(
            f"EvidencePart: node {part.node[:80]!r} of {part.incident[:80]!r} answers a command to "
            f"{shipment.node[:80]!r} of {shipment.incident_id!r}"
        )
    if shipment.sha256 not in ("", part.sha256):  # an agent that was restarted collected anew
        await shipments.forget_parts(shipment.id)
    shipment.parts, shipment.bytes_count, shipment.sha256 = part.parts, part.bytes_count, part.sha256
    shipment.collected_at = from_unix(part.collected_unix_s)
    await shipments.put_part(shipment.id, part.part, data)
    if await shipments.is_whole(shipment):
        shipment.state, shipment.received_at = ShipmentState.SHIPPED.value, at
        await session.flush()
        await shipments.drop_over_of(shipment.incident_id, policy.incident_bytes_max)
        await _settle(session, shipment.incident_id, at, console_url)


async def note_result(session: AsyncSession, result: CommandResult, at: datetime, console_url: str) -> None:
    """What a node says of its work; only a request that waits can fail by it."""
    shipment = await _locked(session, result.command)
    if shipment is None or result.node != shipment.node:
        return
    waits = shipment.state in (ShipmentState.PENDING.value, ShipmentState.EXPIRED.value)
    if waits or result.outcome is CommandOutcome.DONE:  # an agent that was restarted refuses what it has done
        shipment.message = result.message[:MESSAGE_CHARS_MAX]
    if waits and result.outcome is not CommandOutcome.DONE:
        shipment.state = ShipmentState.FAILED.value
        await session.flush()
        await _settle(session, shipment.incident_id, at, console_url)


async def expire_requests(session: AsyncSession, now: datetime, console_url: str) -> int:
    """Give up on those whose deadline has passed; returns how many."""
    expired: list[Shipment] = []
    for overdue in await ShipmentRepository(session).overdue(now, OVERDUE_AT_ONCE_MAX):
        shipment = await _locked(session, overdue.id)
        if shipment is not None and shipment.state == ShipmentState.PENDING.value:
            shipment.state = ShipmentState.EXPIRED.value
            expired.append(shipment)
    await session.flush()
    for incident_id in dict.fromkeys(shipment.incident_id for shipment in expired):
        await _settle(session, incident_id, now, console_url)
    return len(expired)


async def _locked(session: AsyncSession, shipment_id: str) -> Shipment | None:
    """The incident first: whoever writes a verdict locks in the same order."""
    shipments = ShipmentRepository(session)
    found = await shipments.get(shipment_id)
    if found is None:
        return None
    await IncidentRepository(session).get(found.incident_id, for_update=True)
    return await shipments.get(shipment_id, for_update=True)


async def _settle(session: AsyncSession, incident_id: str, at: datetime, console_url: str) -> None:
    """The state of the whole, and one line of the timeline when nothing is waited for any more."""
    incident = await IncidentRepository(session).get(incident_id, for_update=True)
    if incident is None:
        return
    found = await ShipmentRepository(session).of_incident(incident_id)
    state = evidence_state(found, at)
    if state.value == incident.evidence:
        return
    incident.evidence = state.value
    newest = [shipment for shipment in found if shipment.round == found[0].round]
    event_id = derived_id("evt", incident_id, newest[0].round, state.value, len(newest))
    if await OutboxRepository(session).has(event_id):
        return
    context = ChangeContext(system(SOURCE), at, event_id, console_url)
    await tell_evidence(session, incident, "evidence", _words(state, newest), context)


async def tell_evidence(
    session: AsyncSession,
    incident: Incident,
    kind: str,
    words: str,
    context: ChangeContext,
    details: JsonObject | None = None,
) -> None:
    """A line of the timeline about what nodes shipped, and the event that makes open pages look again."""
    add_timeline_entry(session, incident.id, kind, words, context, details)
    await session.flush()
    await append_stream_event(
        session,
        event_id=context.event_id,
        event_type="incident.evidence",
        job=incident.job,
        at=context.at,
        incident_id=incident.id,
        summary=event_summary(incident),
    )


def _words(state: EvidenceState, shipments: Sequence[Shipment]) -> str:
    shipped = [each for each in shipments if each.state == ShipmentState.SHIPPED.value]
    size = sum(each.bytes_count for each in shipped)
    words = f"nodes that shipped logs, stacks and dumps: {len(shipped)} of {len(shipments)} ({size:,} bytes)"
    if state is EvidenceState.EXPIRED:
        silent = [each.node for each in shipments if each.state == ShipmentState.EXPIRED.value]
        words += f"; no answer in time from {', '.join(silent[:8])}"
    return words


def _check_part(part: EvidencePart) -> bytes:
    whole = 0 < part.bytes_count <= ARCHIVE_BYTES_MAX and part.parts == parts_of(part.bytes_count)
    if not whole or not 0 <= part.part < part.parts:
        raise ContractError(
            f"EvidencePart: part {part.part} of {part.parts} of {part.bytes_count} bytes, expected at most "
            f"{ARCHIVE_BYTES_MAX} bytes in parts of {PART_BYTES_MAX}"
        )
    if len(part.data) > PART_BYTES_MAX * 4 // 3 + 4 or len(part.sha256) != hashlib.sha256().digest_size * 2:
        raise ContractError(
            f"EvidencePart: data of {len(part.data)} characters, expected {PART_BYTES_MAX} bytes"
        )
    try:
        data = base64.b64decode(part.data, validate=True)
    except (binascii.Error, ValueError):
        raise ContractError(f"EvidencePart: data is {part.data[:40]!r}..., expected base64") from None
    expected = min(PART_BYTES_MAX, part.bytes_count - part.part * PART_BYTES_MAX)
    if len(data) != expected:
        raise ContractError(f"EvidencePart: part {part.part} has {len(data)} bytes, expected {expected}")
    return data
