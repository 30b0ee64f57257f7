"""Evidence bundles: what a verdict was judged from, so that it can be judged again."""

from datetime import datetime

from sqlalchemy import ForeignKey, Index
from sqlalchemy.orm import Mapped, mapped_column

from paceline.store.base import Base


class EvidenceBundle(Base):
    """Compressed bytes of one verdict's evidence, bounded in size, number and age."""

    __tablename__ = "evidence_bundles"
    __table_args__ = (Index("ix_evidence_bundles_created_at_id", "created_at", "id"),)

    id: Mapped[str] = mapped_column(primary_key=True)
    incident_id: Mapped[str] = mapped_column(ForeignKey("incidents.id", ondelete="CASCADE"), index=True)
    verdict_id: Mapped[str]
    revision: Mapped[int]
    bytes_count: Mapped[int]
    sha256: Mapped[str]
    data: Mapped[bytes] = mapped_column(deferred=True)
    created_at: Mapped[datetime]
