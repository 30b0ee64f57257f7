"""Requests for evidence and what came of them, bounded per incident, in total and in age."""

import hashlib
from collections.abc import Sequence
from datetime import datetime
from itertools import accumulate
from typing import Any

from sqlalchemy import Select, delete, func, or_, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from paceline.contracts.events import EvidenceState, ShipmentState
from paceline.store.models.incident import Incident
from paceline.store.models.shipment import Shipment, ShipmentPart
from paceline.store.models.timeline import TimelineEntry

SHIPPED_FILES = "shipped_files"  # kind of the timeline entry: what the files of nodes say


def evidence_state(shipments: Sequence[Shipment], now: datetime) -> EvidenceState:
    """Of the newest round. What waits past its deadline counts as expired, whether that is written or not."""
    newest = max((shipment.round for shipment in shipments), default=0)
    mine = [shipment for shipment in shipments if shipment.round == newest]
    if not mine:
        return EvidenceState.NONE
    waiting = [shipment for shipment in mine if shipment.state == ShipmentState.PENDING.value]
    if any(shipment.deadline_at > now for shipment in waiting):
        return EvidenceState.PENDING
    if waiting or any(shipment.state == ShipmentState.EXPIRED.value for shipment in mine):
        return EvidenceState.EXPIRED
    return EvidenceState.COMPLETE


class ShipmentRepository:
    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    def add(self, shipment: Shipment) -> None:
        self._session.add(shipment)

    async def get(self, shipment_id: str, *, for_update: bool = False) -> Shipment | None:
        query = select(Shipment).where(Shipment.id == shipment_id)
        if for_update:
            query = query.with_for_update().execution_options(populate_existing=True)
        return await self._session.scalar(query)

    async def of_incident(self, incident_id: str) -> Sequence[Shipment]:
        """Newest round first, causes before witnesses, then by node."""
        query = (
            select(Shipment)
            .where(Shipment.incident_id == incident_id)
            .order_by(Shipment.round.desc(), Shipment.reason, Shipment.node, Shipment.id)
        )
        return (await self._session.scalars(query)).all()

    async def overdue(self, now: datetime, limit: int) -> Sequence[Shipment]:
        """Those that wait past their deadline, the longest first."""
        query = (
            select(Shipment)
            .where(Shipment.state == ShipmentState.PENDING.value, Shipment.deadline_at <= now)
            .order_by(Shipment.deadline_at)
            .limit(limit)
        )
        return (await self._session.scalars(query)).all()

    async def unread(self, since: datetime, limit: int) -> Sequence[str]:
        """Incidents that wait for no node, and got archives since `since` that are not read; oldest first."""
        newest = func.max(Shipment.received_at)
        read_at = (
            select(func.max(TimelineEntry.at))
            .where(TimelineEntry.incident_id == Shipment.incident_id, TimelineEntry.kind == SHIPPED_FILES)
            .correlate(Shipment)
            .scalar_subquery()
        )
        query = (
            select(Shipment.incident_id)
            .join(Incident, Incident.id == Shipment.incident_id)
            .where(
                Shipment.received_at >= since,
                Shipment.state == ShipmentState.SHIPPED.value,
                Incident.evidence != EvidenceState.PENDING.value,
            )
            .group_by(Shipment.incident_id)
            .having(or_(read_at.is_(None), newest > read_at))
            .order_by(newest)
            .limit(limit)
        )
        return (await self._session.scalars(query)).all()

    async def put_part(self, shipment_id: str, part: int, data: bytes) -> None:
        """Keep one part; the same again changes nothing."""
        if await self._session.get(ShipmentPart, (shipment_id, part)) is None:
            self._session.add(ShipmentPart(shipment_id=shipment_id, part=part, data=data))
            await self._session.flush()

    async def parts_count(self, shipment_id: str) -> int:
        query = select(func.count()).where(ShipmentPart.shipment_id == shipment_id)
        return await self._session.scalar(query) or 0

    async def forget_parts(self, shipment_id: str) -> None:
        await self._session.execute(delete(ShipmentPart).where(ShipmentPart.shipment_id == shipment_id))

    async def archive(self, shipment_id: str) -> bytes:
        """All parts in order; empty where there are none."""
        query = (
            select(ShipmentPart.data)
            .where(ShipmentPart.shipment_id == shipment_id)
            .order_by(ShipmentPart.part)
        )
        return b"".join((await self._session.scalars(query)).all())

    async def is_whole(self, shipment: Shipment) -> bool:
        """Whether all parts are there and give the announced archive."""
        if not shipment.parts or await self.parts_count(shipment.id) < shipment.parts:
            return False
        content = await self.archive(shipment.id)
        return len(content) == shipment.bytes_count and hashlib.sha256(content).hexdigest() == shipment.sha256

    async def drop_over_of(self, incident_id: str, bytes_max: int) -> int:
        """Drop the oldest archives of one incident while they exceed `bytes_max`; the newest stays."""
        rows = [
            row for row in await self.of_incident(incident_id) if row.state == ShipmentState.SHIPPED.value
        ]
        rows.sort(key=lambda row: (row.round, row.received_at, row.id), reverse=True)
        taken = list(accumulate(row.bytes_count for row in rows))
        dropped = [row.id for row, size in list(zip(rows, taken, strict=True))[1:] if size > bytes_max]
        return await self._drop_ids(dropped)

    async def drop_fragments(self, at: datetime, limit: int) -> int:
        """Drop the parts of archives that were never whole and whose deadline was before `at`."""
        never_whole = (ShipmentState.EXPIRED.value, ShipmentState.FAILED.value)
        query = (
            select(Shipment.id)
            .join(ShipmentPart, ShipmentPart.shipment_id == Shipment.id)
            .where(Shipment.state.in_(never_whole), Shipment.deadline_at < at)
            .distinct()
            .limit(limit)
        )
        ids = (await self._session.scalars(query)).all()
        if ids:
            await self._session.execute(delete(ShipmentPart).where(ShipmentPart.shipment_id.in_(ids)))
        return len(ids)

    async def drop_before(self, at: datetime, limit: int) -> int:
        """Drop at most `limit` archives that came before `at`; the rows say so."""
        query = (
            select(Shipment.id)
            .where(Shipment.received_at < at, Shipment.state == ShipmentState.SHIPPED.value)
            .order_by(Shipment.received_at)
            .limit(limit)
        )
        return await self._drop(query)

    async def drop_over(self, bytes_max: int, limit: int) -> int:
        """Drop at most `limit` of the oldest archives while all together exceed `bytes_max`."""
        running = func.sum(Shipment.bytes_count).over(
            order_by=(Shipment.received_at.desc(), Shipment.id.desc())
        )
        sized = (
            select(Shipment.id, Shipment.received_at, running.label("running"))
            .where(Shipment.state == ShipmentState.SHIPPED.value)
            .subquery()
        )
        query = (
            select(sized.c.id).where(sized.c.running > bytes_max).order_by(sized.c.received_at).limit(limit)
        )
        return await self._drop(query)

    async def _drop(self, query: Select[Any]) -> int:
        return await self._drop_ids((await self._session.scalars(query)).all())

    async def _drop_ids(self, ids: Sequence[str]) -> int:
        if ids:
            await self._session.execute(delete(ShipmentPart).where(ShipmentPart.shipment_id.in_(ids)))
            await self._session.execute(
                update(Shipment).where(Shipment.id.in_(ids)).values(state=ShipmentState.DROPPED.value)
            )
        return len(ids)
