"""Which ranks of a job live on which node."""

from datetime import datetime

from sqlalchemy.orm import Mapped, mapped_column

from paceline.store.base import Base, JsonList


class JobNode(Base):
    """One node of one attempt. No foreign key: the job's own record may arrive later."""

    __tablename__ = "job_nodes"

    job: Mapped[str] = mapped_column(primary_key=True)
    attempt: Mapped[str] = mapped_column(primary_key=True)
    node: Mapped[str] = mapped_column(primary_key=True)
    agent: Mapped[str]
    ranks: Mapped[JsonList]  # of registry.RankRecord
    rank_ranges: Mapped[str]  # the same ranks as `ids.format_ranks` text: a rank map reads no JSON
    rank_min: Mapped[int]
    rank_max: Mapped[int]  # below rank_min where there are none
    left: Mapped[bool]
    updated_at: Mapped[datetime]
