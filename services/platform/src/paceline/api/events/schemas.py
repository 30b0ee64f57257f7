"""What the event stream carries: small facts that tell a client what to read again."""

from datetime import datetime

from paceline.api.schemas import ReadModel
from paceline.contracts.events import IncidentStatus, Severity
from paceline.contracts.verdicts import VerdictClass


class EventRead(ReadModel):
    """`sequence` is the id of the server-sent event. Null fields do not belong to the type."""

    sequence: int
    id: str
    type: str
    job: str
    attempt: str | None
    incident_id: str | None
    label: str | None
    status: IncidentStatus | None
    severity: Severity | None
    verdict_class: VerdictClass | None
    summary: str | None
    at: datetime


class ResetRead(ReadModel):
    """The gap cannot be filled: read everything again, then go on from `sequence`."""

    reason: str
    sequence: int
