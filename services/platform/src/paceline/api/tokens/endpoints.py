"""Routes of tokens. Nobody can give more than they have, or take from those who have more."""

from typing import Annotated

from fastapi import APIRouter, Path

from paceline.api.auth import TokensWriter
from paceline.api.errors import (
    BodyTooLarge,
    CrossSite,
    FieldProblem,
    IdempotencyKeyReused,
    InvalidRequest,
    MissingScope,
    NotFound,
    SecretShownOnce,
    Unauthenticated,
    responses,
)
from paceline.api.idempotency import Idempotent
from paceline.api.pagination import CursorText, Limit, decode_time_cursor, next_cursor
from paceline.api.schemas import Page
from paceline.api.services import Session, Shared
from paceline.api.tokens.schemas import TokenCreate, TokenCreated, TokenRead
from paceline.store.models.token import Token
from paceline.store.repositories.audit import AuditRepository
from paceline.store.repositories.tokens import HINT_LENGTH, TokenRepository, draw_secret, hash_secret

router = APIRouter(prefix="/v1/tokens", tags=["tokens"])
READ = (Unauthenticated, MissingScope)
TokenId = Annotated[str, Path(max_length=80, pattern=r"^[\x21-\x7e]+$")]


@router.get("", responses=responses(*READ))
async def list_tokens(
    session: Session, caller: TokensWriter, cursor: CursorText = None, limit: Limit = 50
) -> Page[TokenRead]:
    """Newest first, revoked ones too."""
    found = await TokenRepository(session).page(decode_time_cursor(cursor), limit + 1)
    shown = found[:limit]
    following = next_cursor(found, limit, shown[-1].created_at, shown[-1].id) if shown else None
    return Page(items=[TokenRead.model_validate(token) for token in shown], next_cursor=following)


@router.post(
    "",
    status_code=201,
    responses=responses(*READ, CrossSite, BodyTooLarge, IdempotencyKeyReused, SecretShownOnce),
)
async def create_token(
    body: TokenCreate, session: Session, services: Shared, caller: TokensWriter, idempotency: Idempotent
) -> TokenCreated:
    """The answer is the only place where the token is ever shown."""
    if idempotency.resource_id is not None:
        raise SecretShownOnce(
            f"token {idempotency.resource_id} was created by the first request; revoke it and create another"
        )
    missing = sorted(scope.value for scope in set(body.scopes) - caller.scopes)
    if missing:
        raise MissingScope(f"you cannot give what you do not have: {', '.join(missing)}")
    now = services.now()
    if body.expires_at is not None and (body.expires_at.tzinfo is None or body.expires_at <= now):
        problem = FieldProblem(
            field="body.expires_at", value=body.expires_at.isoformat(), expected="a future time with a zone"
        )
        raise InvalidRequest("expires_at is not in the future", (problem,))
    secret = draw_secret()
    token = await TokenRepository(session).add(
        Token(
            id=services.new_id("tok"),
            name=body.name,
            hash=hash_secret(secret),
            hint=secret[:HINT_LENGTH],
            scopes=sorted({scope.value for scope in body.scopes}),
            created_at=now,
            created_by=caller.name,
            expires_at=body.expires_at,
        )
    )
    await AuditRepository(session).append(
        now, caller.actor, "token.created", ("token", token.id), {"name": token.name, "scopes": token.scopes}
    )
    await idempotency.remember(token.id)
    return TokenCreated(**TokenRead.model_validate(token).model_dump(), token=secret)


@router.delete("/{token_id}", status_code=204, responses=responses(*READ, CrossSite, NotFound))
async def revoke_token(token_id: TokenId, session: Session, services: Shared, caller: TokensWriter) -> None:
    """Takes effect at once, for its console sessions too. Revoking twice is no error; a token with more
    scopes than the caller has is refused."""
    token = await TokenRepository(session).get(token_id, for_update=True)
    if token is None:
        raise NotFound(f"no token {token_id!r}; GET /v1/tokens lists them")
    missing = sorted(set(token.scopes) - {scope.value for scope in caller.scopes})
    if missing:
        raise MissingScope(f"you cannot revoke a token with more scopes than yours: {', '.join(missing)}")
    if token.revoked_at is None:
        token.revoked_at = services.now()
        await AuditRepository(session).append(
            token.revoked_at, caller.actor, "token.revoked", ("token", token.id), {"name": token.name}
        )
