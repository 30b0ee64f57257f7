"""Lifecycle events of incidents, and the CloudEvents names of everything that is JSON.

The major version stands in the type; a compatible change keeps the type.
"""

from dataclasses import dataclass
from enum import Enum

from paceline.contracts.verdicts import Verdict

SOURCE_PREFIX = "paceline/"
TYPE_PREFIX = "dev.paceline."


class EventType(str, Enum):
    """CloudEvents types; SSE and webhooks use the name without prefix and version."""

    JOB_RECORD = "dev.paceline.job.recorded.v1"
    NODE_RECORD = "dev.paceline.job.node_recorded.v1"
    COMMUNICATOR_RECORD = "dev.paceline.job.communicator_recorded.v1"
    MEMBER_RECORD = "dev.paceline.job.member_recorded.v1"
    HEALTH = "dev.paceline.health.observed.v1"
    VERDICT = "dev.paceline.verdict.recorded.v1"
    SCALING = "dev.paceline.scaling.judged.v1"
    INCIDENT_OPENED = "dev.paceline.incident.opened.v1"
    INCIDENT_UPDATED = "dev.paceline.incident.updated.v1"
    INCIDENT_ACKNOWLEDGED = "dev.paceline.incident.acknowledged.v1"
    INCIDENT_RESOLVED = "dev.paceline.incident.resolved.v1"
    INCIDENT_REOPENED = "dev.paceline.incident.reopened.v1"
    COMMAND = "dev.paceline.command.issued.v1"
    COMMAND_RESULT = "dev.paceline.command.finished.v1"
    RECOVERY_REPORT = "dev.paceline.recovery.reported.v1"
    EVIDENCE = "dev.paceline.evidence.shipped.v1"

    @property
    def short(self) -> str:
        """`incident.opened` for `dev.paceline.incident.opened.v1`."""
        return self.value.removeprefix(TYPE_PREFIX).rpartition(".")[0]


class IncidentStatus(str, Enum):
    OPEN = "open"
    ACKNOWLEDGED = "acknowledged"
    RESOLVED = "resolved"


class Severity(str, Enum):
    CRITICAL = "critical"
    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


class EvidenceState(str, Enum):
    """Whether the nodes that were asked have shipped what they show; nothing is killed while PENDING."""

    NONE = "none"  # nobody was asked
    PENDING = "pending"
    COMPLETE = "complete"  # each node that was asked has answered: shipped, or said why not
    EXPIRED = "expired"  # the deadline passed before


class ShipmentState(str, Enum):
    """What became of the request to one node."""

    PENDING = "pending"
    SHIPPED = "shipped"
    FAILED = "failed"  # the node answered that it could not
    EXPIRED = "expired"
    DROPPED = "dropped"  # it was shipped; a bound has taken the archive away


@dataclass(frozen=True)
class IncidentEvent:
    """One step in the life of an incident, on `paceline.incidents.v1`, SSE and webhooks."""

    id: str  # also the idempotency key of every delivery
    type: EventType
    incident: str  # inc_...
    number: int  # INC-<number>
    job: str
    attempt: str
    status: IncidentStatus
    severity: Severity
    revision: int  # of the verdict
    verdict: Verdict
    opened_unix_s: float
    at_unix_s: float
    actor: str  # system, or the name of a token
    url: str
