"""The audit log."""

import json

from fastapi import APIRouter

from paceline.api.audit.schemas import AuditDetail, AuditEntryRead
from paceline.api.auth import AuditReader
from paceline.api.errors import MissingScope, Unauthenticated, responses
from paceline.api.pagination import CursorText, Limit, decode_number_cursor, next_cursor
from paceline.api.schemas import Page
from paceline.api.services import Session
from paceline.store.models.audit import AuditEntry
from paceline.store.repositories.audit import AuditRepository

router = APIRouter(prefix="/v1/audit", tags=["audit"])


@router.get("", responses=responses(Unauthenticated, MissingScope))
async def list_audit(
    session: Session, caller: AuditReader, cursor: CursorText = None, limit: Limit = 50
) -> Page[AuditEntryRead]:
    """Newest first."""
    found = await AuditRepository(session).page(decode_number_cursor(cursor), limit + 1)
    shown = found[:limit]
    following = next_cursor(found, limit, shown[-1].id) if shown else None
    return Page(items=[_read(entry) for entry in shown], next_cursor=following)


def _read(entry: AuditEntry) -> AuditEntryRead:
    details = [
        AuditDetail(name=name, value=value if isinstance(value, str) else json.dumps(value))
        for name, value in entry.details.items()
    ]
    fields = {name: getattr(entry, name) for name in AuditEntryRead.model_fields if name != "details"}
    return AuditEntryRead(**fields, details=details)
