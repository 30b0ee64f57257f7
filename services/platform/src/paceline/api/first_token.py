"""The first token: without it nobody could create one."""

from paceline.api.services import Services
from paceline.store.actors import system
from paceline.store.models.token import Token
from paceline.store.repositories.audit import AuditRepository
from paceline.store.repositories.tokens import (
    HINT_LENGTH,
    TOKEN_PREFIX,
    TokenRepository,
    draw_secret,
    hash_secret,
)
from paceline.store.scopes import ALL_SCOPES
from paceline.store.sequence import FIRST_TOKEN_LOCK, lock

ADMIN_NAME = "admin"
DECLARED_LENGTH_MIN = 32


class WeakToken(ValueError):
    """A declared admin token that could be guessed."""


async def ensure_first_token(services: Services, declared: str | None = None) -> str | None:
    """A fresh token with all scopes where there is none, else None. A `declared` one is made valid
    instead; WeakToken where it is too short."""
    if declared is not None and (
        len(declared) < DECLARED_LENGTH_MIN or not declared.startswith(TOKEN_PREFIX)
    ):
        raise WeakToken(
            f"PACELINE_API_ADMIN_TOKEN has {len(declared)} characters, expected {TOKEN_PREFIX} and random "
            f"ones, {DECLARED_LENGTH_MIN} or more together"
        )
    async with services.database.transaction() as session:
        await lock(session, FIRST_TOKEN_LOCK)
        tokens = TokenRepository(session)
        if declared is not None:
            is_known = await tokens.has(declared)
        else:
            is_known = await tokens.count() > 0
        if is_known:
            return None
        secret = declared or draw_secret()
        now = services.now()
        token = await tokens.add(
            Token(
                id=services.new_id("tok"),
                name=ADMIN_NAME,
                hash=hash_secret(secret),
                hint=secret[:HINT_LENGTH],
                scopes=[scope.value for scope in ALL_SCOPES],
                created_at=now,
                created_by="first start",
            )
        )
        await AuditRepository(session).append(
            now, system("api"), "token.created", ("token", token.id), {"name": ADMIN_NAME, "first": True}
        )
    return None if declared is not None else secret
