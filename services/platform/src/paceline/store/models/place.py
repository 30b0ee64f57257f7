"""Where the first causes of incidents were: the memory of nodes and GPUs across jobs."""

from sqlalchemy import ForeignKey
from sqlalchemy.orm import Mapped, mapped_column

from paceline.store.base import Base


class IncidentPlace(Base):
    """One node or GPU that an incident's first causes name. Kept as long as the incident."""

    __tablename__ = "incident_places"

    incident_id: Mapped[str] = mapped_column(ForeignKey("incidents.id", ondelete="CASCADE"), primary_key=True)
    node: Mapped[str] = mapped_column(primary_key=True, index=True)
    gpu: Mapped[int] = mapped_column(primary_key=True)  # -1 where none is named
    kind: Mapped[str]  # of the root: rank, node, gpu, or link, which has two ends
