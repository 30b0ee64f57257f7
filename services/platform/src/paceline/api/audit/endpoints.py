"""The audit log."""

import json
from typing import Annotated

from fastapi import APIRouter, Query

from paceline.api.audit.schemas import AuditDetail, AuditEntryRead, AuditIntegrityRead
from paceline.api.auth import AuditReader
from paceline.api.errors import MissingScope, Unauthenticated, responses
from paceline.api.pagination import CursorText, Limit, decode_number_cursor, next_cursor
from paceline.api.schemas import Page
from paceline.api.services import Session
from paceline.store.models.audit import AuditEntry
from paceline.store.repositories.audit import AuditRepository

router = APIRouter(prefix="/v1/audit", tags=["audit"])
CHECKED_MAX = 100_000  # entries one request reads
CheckAfter = Annotated[
    int, Query(ge=0, lt=2**63, description="Begin behind this entry, as `last_id` of an earlier answer")
]


@router.get("", responses=responses(Unauthenticated, MissingScope))
async def list_audit(
    session: Session, caller: AuditReader, cursor: CursorText = None, limit: Limit = 50
) -> Page[AuditEntryRead]:
    """Newest first."""
    found = await AuditRepository(session).page(decode_number_cursor(cursor), limit + 1)
    shown = found[:limit]
    following = next_cursor(found, limit, shown[-1].id) if shown else None
    return Page(items=[_read(entry) for entry in shown], next_cursor=following)


@router.get("/integrity", responses=responses(Unauthenticated, MissingScope))
async def check_integrity(session: Session, caller: AuditReader, after: CheckAfter = 0) -> AuditIntegrityRead:
    """Follow the chain of hashes, oldest first, at most 100,000 entries a request. Keep `last_id` and
    the hash of that entry elsewhere: entries cut off at the end leave no trace in the chain."""
    found = await AuditRepository(session).check_chain(after, CHECKED_MAX)
    return AuditIntegrityRead(
        intact=found.first_broken_id is None,
        checked=found.checked,
        first_broken_id=found.first_broken_id,
        last_id=found.last_id,
        complete=found.complete,
    )


def _read(entry: AuditEntry) -> AuditEntryRead:
    details = [
        AuditDetail(name=name, value=value if isinstance(value, str) else json.dumps(value))
        for name, value in entry.details.items()
    ]
    fields = {name: getattr(entry, name) for name in AuditEntryRead.model_fields if name != "details"}
    return AuditEntryRead(**fields, details=details)
