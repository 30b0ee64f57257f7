"""The audit log."""

from datetime import datetime

from paceline.api.schemas import ReadModel


class AuditDetail(ReadModel):
    name: str
    value: str


class AuditEntryRead(ReadModel):
    """`hash` covers the entry and the hash before it; see docs/adr/0015-tables.md."""

    id: int
    at: datetime
    actor: str
    actor_type: str
    source: str
    action: str
    target_type: str
    target_id: str
    details: list[AuditDetail]
    previous_hash: str
    hash: str
