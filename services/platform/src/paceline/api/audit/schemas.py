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


class AuditIntegrityRead(ReadModel):
    """Whether each entry read carries its own hash and that of the entry before it. `first_broken_id` is
    the first that does not; `complete` is false where entries after `last_id` were not read."""

    intact: bool
    checked: int
    first_broken_id: int | None
    last_id: int
    complete: bool
