"""One lock for everything that must be numbered in the order in which it commits."""

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

SEQUENCE_LOCK = 0x7061_6365_0002
RELAY_LOCK = 0x7061_6365_0003
FIRST_TOKEN_LOCK = 0x7061_6365_0004
_HELD = "sequence_is_locked"


async def lock_sequence(session: AsyncSession) -> None:
    """Wait for the other writers of outbox and audit log; held until the transaction ends.

    An identity column numbers rows when they are inserted, not when they commit: without the lock
    a reader could see 6, remember it, and never look back at 5. Take it last, after row locks.
    """
    await session.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": SEQUENCE_LOCK})
    session.info[_HELD] = True


def holds_sequence(session: AsyncSession) -> bool:
    """Whether the transaction of this session may take no more row locks, and had better end."""
    return _HELD in session.info


async def try_lock(session: AsyncSession, key: int) -> bool:
    """Whether this transaction now holds `key`; does not wait."""
    return bool(await session.scalar(text("SELECT pg_try_advisory_xact_lock(:key)"), {"key": key}))


async def lock(session: AsyncSession, key: int) -> None:
    """Wait for `key`; held until the transaction ends."""
    await session.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": key})


async def lock_name(session: AsyncSession, name: str) -> None:
    """Wait for the lock of a name, such as a job; held until the transaction ends."""
    await session.execute(text("SELECT pg_advisory_xact_lock(hashtextextended(:name, 0))"), {"name": name})
