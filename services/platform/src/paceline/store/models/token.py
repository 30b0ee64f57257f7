"""Bearer tokens; only a hash is kept."""

from datetime import datetime

from sqlalchemy import Text
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.orm import Mapped, mapped_column

from paceline.store.base import Base


class Token(Base):
    """`hash` is SHA-256 of a token of 256 random bits, so no slow hash is needed."""

    __tablename__ = "tokens"

    id: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str]
    hash: Mapped[str] = mapped_column(unique=True)
    hint: Mapped[str]  # the first characters, for people
    scopes: Mapped[list[str]] = mapped_column(ARRAY(Text))
    created_at: Mapped[datetime]
    created_by: Mapped[str]
    expires_at: Mapped[datetime | None]
    last_used_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]
