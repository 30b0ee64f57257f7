"""Who calls and what they may do: bearer tokens for programs, a cookie for the console.

The cookie is HttpOnly and SameSite=Strict; a write with it also needs the header
`X-Paceline-Console`, which no form and no cross-origin request can set without our consent, and an
Origin that is our own.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Literal
from urllib.parse import urlsplit

from fastapi import Depends, Request
from fastapi.security import APIKeyCookie, HTTPAuthorizationCredentials, HTTPBearer
from sqlalchemy.ext.asyncio import AsyncSession

from paceline.api.errors import CrossSite, MissingScope, Unauthenticated
from paceline.api.services import Session, Shared
from paceline.store.actors import Actor
from paceline.store.models.token import Token
from paceline.store.repositories.tokens import TokenRepository
from paceline.store.scopes import Scope

SESSION_COOKIE = "paceline_session"
CONSOLE_HEADER = "X-Paceline-Console"
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})

bearer_scheme = HTTPBearer(auto_error=False, description="A Paceline token, plt_...")
cookie_scheme = APIKeyCookie(
    name=SESSION_COOKIE, auto_error=False, description="The console's session, from POST /v1/session"
)
Bearer = Annotated[HTTPAuthorizationCredentials | None, Depends(bearer_scheme)]
Cookie = Annotated[str | None, Depends(cookie_scheme)]


@dataclass(frozen=True)
class Caller:
    """The authenticated caller of one request."""

    token_id: str
    name: str
    scopes: frozenset[Scope]
    kind: Literal["token", "session"]
    expires_at: datetime | None

    @property
    def actor(self) -> Actor:
        """How timeline and audit log name the caller."""
        return Actor(self.name, "token", "console" if self.kind == "session" else "api")


async def authenticate(
    session: AsyncSession, now: datetime, bearer: str | None, cookie: str | None
) -> Caller:
    """The caller; Unauthenticated where neither token nor session is valid."""
    tokens = TokenRepository(session)
    if bearer is not None:
        token = await tokens.find(bearer, now)
        if token is None:
            raise Unauthenticated("the bearer token is unknown, revoked or expired; create another")
        await tokens.touch(token, now)
        return _caller(token, "token", token.expires_at)
    if cookie is not None:
        found = await tokens.find_session(cookie, now)
        if found is None:
            raise Unauthenticated("the session has ended; sign in again with a token")
        console, token = found
        await tokens.touch(token, now)
        return _caller(token, "session", console.expires_at)
    raise Unauthenticated("send `Authorization: Bearer plt_...`, or sign in at the console")


def _caller(token: Token, kind: Literal["token", "session"], expires_at: datetime | None) -> Caller:
    known = {scope.value for scope in Scope}
    scopes = frozenset(Scope(scope) for scope in token.scopes if scope in known)
    return Caller(token.id, token.name, scopes, kind, expires_at)


async def get_caller(
    request: Request, session: Session, services: Shared, bearer: Bearer, cookie: Cookie
) -> Caller:
    secret = None if bearer is None else bearer.credentials
    caller = await authenticate(session, services.now(), secret, cookie)
    if caller.kind == "session" and request.method not in SAFE_METHODS:
        check_same_origin(request)
    return caller


AnyCaller = Annotated[Caller, Depends(get_caller)]


def check_same_origin(request: Request) -> None:
    """CrossSite for a write that the console's own page cannot have sent."""
    if CONSOLE_HEADER not in request.headers:
        raise CrossSite(f"a write with the session cookie needs the header {CONSOLE_HEADER}: 1")
    origin = request.headers.get("origin")
    if origin is not None and urlsplit(origin).netloc != request.headers.get("host"):
        raise CrossSite(f"Origin {origin[:200]!r} is not this server")


def require(scope: Scope) -> Callable[[Caller], Awaitable[Caller]]:
    """A dependency that admits callers with `scope`."""

    async def check(caller: AnyCaller) -> Caller:
        if scope not in caller.scopes:
            held = ", ".join(sorted(caller.scopes)) or "none"
            raise MissingScope(f"this needs the scope {scope.value}; the token has {held}")
        return caller

    return check


JobsReader = Annotated[Caller, Depends(require(Scope.JOBS_READ))]
IncidentsReader = Annotated[Caller, Depends(require(Scope.INCIDENTS_READ))]
IncidentsWriter = Annotated[Caller, Depends(require(Scope.INCIDENTS_WRITE))]
RepairWriter = Annotated[Caller, Depends(require(Scope.REPAIR_WRITE))]
WebhooksReader = Annotated[Caller, Depends(require(Scope.WEBHOOKS_READ))]
WebhooksWriter = Annotated[Caller, Depends(require(Scope.WEBHOOKS_WRITE))]
TokensWriter = Annotated[Caller, Depends(require(Scope.TOKENS_WRITE))]
AuditReader = Annotated[Caller, Depends(require(Scope.AUDIT_READ))]
