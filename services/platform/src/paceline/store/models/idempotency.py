"""Keys of requests that were carried out, so that a repeated one is not carried out again."""

from datetime import datetime

from sqlalchemy.orm import Mapped, mapped_column

from paceline.store.base import Base


class IdempotencyKey(Base):
    """One answered POST of one token. The resource is read again, no response is stored."""

    __tablename__ = "idempotency_keys"

    token_id: Mapped[str] = mapped_column(primary_key=True)
    key: Mapped[str] = mapped_column(primary_key=True)
    fingerprint: Mapped[str]  # of method, path and body
    resource_id: Mapped[str]
    created_at: Mapped[datetime] = mapped_column(index=True)
