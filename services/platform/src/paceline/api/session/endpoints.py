"""Who am I, signing in and out of the console."""

from datetime import timedelta

from fastapi import APIRouter, Request, Response

from paceline.api.auth import SESSION_COOKIE, AnyCaller, Caller, authenticate, check_same_origin
from paceline.api.errors import BodyTooLarge, CrossSite, Unauthenticated, responses
from paceline.api.services import Session, Shared
from paceline.api.session.schemas import MeRead, SessionCreate
from paceline.store.repositories.tokens import TokenRepository, draw_secret

router = APIRouter(prefix="/v1", tags=["session"])


@router.get("/me", responses=responses(Unauthenticated))
async def get_me(caller: AnyCaller) -> MeRead:
    """The caller and what they may do."""
    return _me(caller)


@router.post("/session", status_code=201, responses=responses(Unauthenticated, CrossSite, BodyTooLarge))
async def create_session(
    body: SessionCreate, request: Request, response: Response, session: Session, services: Shared
) -> MeRead:
    """Exchange a token for the console's cookie."""
    check_same_origin(request)
    now = services.now()
    await authenticate(session, now, body.token, None)
    tokens = TokenRepository(session)
    token = await tokens.find(body.token, now)
    if token is None:
        raise Unauthenticated("the token has just been revoked")
    secret = draw_secret("pls_")
    life = timedelta(hours=services.settings.session_life_hours)
    console = await tokens.add_session(secret, token, now, life)
    response.set_cookie(
        SESSION_COOKIE,
        secret,
        max_age=max(1, int((console.expires_at - now).total_seconds())),
        path="/",
        secure=services.settings.session_cookie_secure or request.url.scheme == "https",
        httponly=True,
        samesite="strict",
    )
    return _me(await authenticate(session, now, None, secret))


@router.delete("/session", status_code=204, responses=responses(Unauthenticated, CrossSite))
async def delete_session(request: Request, response: Response, session: Session, caller: AnyCaller) -> None:
    """Sign out."""
    cookie = request.cookies.get(SESSION_COOKIE)
    if cookie is not None:
        await TokenRepository(session).delete_session(cookie)
    response.delete_cookie(SESSION_COOKIE, path="/", httponly=True, samesite="strict")


def _me(caller: Caller) -> MeRead:
    return MeRead(
        token_id=caller.token_id,
        name=caller.name,
        scopes=sorted(caller.scopes),
        kind=caller.kind,
        expires_at=caller.expires_at,
    )
