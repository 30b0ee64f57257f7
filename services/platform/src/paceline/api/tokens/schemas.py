"""Tokens and what they may do."""

from datetime import datetime

from pydantic import Field

from paceline.api.schemas import ReadModel, WriteModel
from paceline.store.scopes import Scope


class TokenRead(ReadModel):
    """`hint` is the beginning of the token, so that a person can tell which one it is."""

    id: str
    name: str
    hint: str
    scopes: list[Scope]
    created_at: datetime
    created_by: str
    expires_at: datetime | None
    last_used_at: datetime | None
    revoked_at: datetime | None


class TokenCreated(TokenRead):
    """`token` is shown here once and stored nowhere."""

    token: str


class TokenCreate(WriteModel):
    name: str = Field(min_length=1, max_length=120)
    scopes: list[Scope] = Field(min_length=1, max_length=len(Scope))
    expires_at: datetime | None = None
