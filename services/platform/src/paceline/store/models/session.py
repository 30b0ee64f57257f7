"""Console sessions: a cookie that stands for a token."""

from datetime import datetime

from sqlalchemy import ForeignKey
from sqlalchemy.orm import Mapped, mapped_column

from paceline.store.base import Base


class ConsoleSession(Base):
    """Ends with its token, at `expires_at` or by logging out. Only the hash of the cookie is kept."""

    __tablename__ = "sessions"

    hash: Mapped[str] = mapped_column(primary_key=True)
    token_id: Mapped[str] = mapped_column(ForeignKey("tokens.id", ondelete="CASCADE"), index=True)
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime] = mapped_column(index=True)
