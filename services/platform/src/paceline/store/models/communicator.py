"""Communicators of a job."""

from datetime import datetime

from sqlalchemy.orm import Mapped, mapped_column

from paceline.store.base import Base


class JobCommunicator(Base):
    """One communicator of one attempt; `ranks` is `ids.format_ranks` text."""

    __tablename__ = "job_communicators"

    job: Mapped[str] = mapped_column(primary_key=True)
    attempt: Mapped[str] = mapped_column(primary_key=True)
    communicator: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str]
    ranks: Mapped[str]
    size: Mapped[int]
    instance: Mapped[int]
    shard: Mapped[int]
    backend: Mapped[str]
    kind: Mapped[str]
    ring: Mapped[str]
    tree: Mapped[str]
    closed: Mapped[bool]
    updated_at: Mapped[datetime]
