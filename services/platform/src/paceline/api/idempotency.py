"""Idempotency-Key: a repeated POST is answered with what the first one made, not carried out again.

The key is stored in the transaction of the change. Two requests at the same moment meet at the
primary key: the second waits, then finds the first one's entry.
"""

import hashlib
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Header, Request
from sqlalchemy.ext.asyncio import AsyncSession

from paceline.api.auth import AnyCaller
from paceline.api.errors import IdempotencyKeyReused
from paceline.api.services import Session, Shared
from paceline.contracts.ids import derived_id
from paceline.store.models.idempotency import IdempotencyKey
from paceline.store.repositories.tokens import TokenRepository
from paceline.store.sequence import lock_name

KEY_LENGTH_MAX = 255
IdempotencyHeader = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=KEY_LENGTH_MAX,
        pattern=r"^[\x21-\x7e]+$",
        description="Repeating a request with the same key within a day carries it out once",
    ),
]


@dataclass(frozen=True)
class Idempotency:
    """`resource_id` of the first request where this one repeats it."""

    session: AsyncSession
    services: Shared
    token_id: str
    key: str | None
    fingerprint: str
    resource_id: str | None

    async def remember(self, resource_id: str) -> None:
        """Store what this request made; does nothing where no key was sent."""
        if self.key is None:
            return
        entry = IdempotencyKey(
            token_id=self.token_id,
            key=self.key,
            fingerprint=self.fingerprint,
            resource_id=resource_id,
            created_at=self.services.now(),
        )
        await TokenRepository(self.session).add_idempotency_key(entry)


async def get_idempotency(
    request: Request, session: Session, services: Shared, caller: AnyCaller, key: IdempotencyHeader = None
) -> Idempotency:
    """IdempotencyKeyReused where the key was used for another request."""
    fingerprint = hashlib.sha256(
        b"\n".join([request.method.encode(), request.url.path.encode(), await request.body()])
    ).hexdigest()
    resource_id = None
    if key is not None:
        await lock_name(session, derived_id("idk", caller.token_id, key))
        entry = await TokenRepository(session).idempotency_key(caller.token_id, key)
        if entry is not None and entry.fingerprint != fingerprint:
            raise IdempotencyKeyReused(f"the key {key[:80]!r} was used for another request; draw a new one")
        resource_id = None if entry is None else entry.resource_id
    return Idempotency(session, services, caller.token_id, key, fingerprint, resource_id)


Idempotent = Annotated[Idempotency, Depends(get_idempotency)]
