"""Commands to nodes leave through the outbox, in the transaction of the verdict that asks for them."""

from datetime import datetime

from sqlalchemy.ext.asyncio import AsyncSession

from paceline.contracts.commands import Command
from paceline.contracts.events import EventType
from paceline.contracts.schemas import dump_json
from paceline.contracts.topics import COMMANDS
from paceline.store.models.incident import Incident
from paceline.store.models.outbox import OutboxEvent
from paceline.store.repositories.outbox import OutboxRepository


async def append_command(
    session: AsyncSession, command: Command, incident: Incident, at: datetime, traceparent: str
) -> None:
    """The outbox row of a signed command; its id is that of the command."""
    await OutboxRepository(session).append(
        OutboxEvent(
            id=command.id,
            type=EventType.COMMAND.short,
            topic=COMMANDS.name,
            key=command.node,
            job=incident.job,
            incident_id=incident.id,
            summary={},
            payload=dump_json(command).decode(),
            traceparent=traceparent,
            created_at=at,
        )
    )
