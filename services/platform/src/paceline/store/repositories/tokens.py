"""Tokens, console sessions and idempotency keys."""

import hashlib
import secrets
from collections.abc import Sequence
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, delete, func, or_, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from paceline.store.models.idempotency import IdempotencyKey
from paceline.store.models.session import ConsoleSession
from paceline.store.models.token import Token

TOKEN_PREFIX = "plt_"  # noqa: S105 (not a secret: the beginning of every token)
HINT_LENGTH = 10
LAST_USED_PRECISION = timedelta(minutes=1)  # no write per request


def draw_secret(prefix: str = TOKEN_PREFIX) -> str:
    """A token of 256 random bits."""
    return prefix + secrets.token_urlsafe(32)


def hash_secret(secret: str) -> str:
    """What is stored of a token or a session cookie."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


class TokenRepository:
    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    async def find(self, secret: str, now: datetime) -> Token | None:
        """The valid token for `secret`: looked up by hash, so no comparison leaks its bytes."""
        query = select(Token).where(Token.hash == hash_secret(secret), *_valid(now))
        return await self._session.scalar(query)

    async def get(self, token_id: str, *, for_update: bool = False) -> Token | None:
        query = select(Token).where(Token.id == token_id)
        if for_update:
            query = query.with_for_update()
        return await self._session.scalar(query)

    async def has(self, secret: str) -> bool:
        """Whether this token was ever created, valid or not: a revoked one stays revoked."""
        query = select(Token.id).where(Token.hash == hash_secret(secret))
        return await self._session.scalar(query) is not None

    async def count(self) -> int:
        return await self._session.scalar(select(func.count()).select_from(Token)) or 0

    async def page(self, before: tuple[datetime, str] | None, limit: int) -> Sequence[Token]:
        """Newest first. `before` is (created_at, id) of the last one seen."""
        query = select(Token).order_by(Token.created_at.desc(), Token.id.desc()).limit(limit)
        if before is not None:
            at, token_id = before
            query = query.where(or_(Token.created_at < at, (Token.created_at == at) & (Token.id < token_id)))
        return (await self._session.scalars(query)).all()

    async def add(self, token: Token) -> Token:
        self._session.add(token)
        await self._session.flush()
        return token

    async def touch(self, token: Token, now: datetime) -> None:
        """Remember that it was used, once a minute."""
        if token.last_used_at is not None and now - token.last_used_at < LAST_USED_PRECISION:
            return
        statement = update(Token).where(Token.id == token.id).values(last_used_at=now)
        await self._session.execute(statement)

    async def add_session(self, secret: str, token: Token, now: datetime, life: timedelta) -> ConsoleSession:
        expires_at = now + life
        if token.expires_at is not None:
            expires_at = min(expires_at, token.expires_at)
        session = ConsoleSession(
            hash=hash_secret(secret), token_id=token.id, created_at=now, expires_at=expires_at
        )
        self._session.add(session)
        await self._session.flush()
        return session

    async def find_session(self, secret: str, now: datetime) -> tuple[ConsoleSession, Token] | None:
        """A live session and its still valid token."""
        query = (
            select(ConsoleSession, Token)
            .join(Token, Token.id == ConsoleSession.token_id)
            .where(ConsoleSession.hash == hash_secret(secret), ConsoleSession.expires_at > now, *_valid(now))
        )
        row = (await self._session.execute(query)).one_or_none()
        return None if row is None else (row[0], row[1])

    async def delete_session(self, secret: str) -> None:
        await self._session.execute(delete(ConsoleSession).where(ConsoleSession.hash == hash_secret(secret)))

    async def delete_expired(self, now: datetime, keys_before: datetime) -> None:
        """Drop dead sessions and old idempotency keys."""
        await self._session.execute(delete(ConsoleSession).where(ConsoleSession.expires_at <= now))
        await self._session.execute(delete(IdempotencyKey).where(IdempotencyKey.created_at < keys_before))

    async def idempotency_key(self, token_id: str, key: str) -> IdempotencyKey | None:
        return await self._session.get(IdempotencyKey, (token_id, key))

    async def add_idempotency_key(self, entry: IdempotencyKey) -> None:
        self._session.add(entry)
        await self._session.flush()


def _valid(now: datetime) -> tuple[ColumnElement[bool], ...]:
    return (
        Token.revoked_at.is_(None),
        or_(Token.expires_at.is_(None), Token.expires_at > now),
    )
