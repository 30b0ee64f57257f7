"""Who am I, and the console's session."""

from datetime import datetime
from typing import Literal

from pydantic import Field

from paceline.api.schemas import ReadModel, WriteModel
from paceline.store.scopes import Scope


class MeRead(ReadModel):
    """The caller. `expires_at` is that of the session, else that of the token."""

    token_id: str
    name: str
    scopes: list[Scope]
    kind: Literal["token", "session"]
    expires_at: datetime | None


class SessionCreate(WriteModel):
    token: str = Field(min_length=1, max_length=200)
