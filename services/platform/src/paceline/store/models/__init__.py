"""One file per noun; importing this package registers every table on `Base.metadata`."""

from paceline.store.models.audit import AuditEntry
from paceline.store.models.communicator import JobCommunicator
from paceline.store.models.delivery import AlertState, Delivery, WebhookEndpoint
from paceline.store.models.evidence import EvidenceBundle
from paceline.store.models.idempotency import IdempotencyKey
from paceline.store.models.incident import Incident, IncidentEpisode
from paceline.store.models.job import Job, JobAttempt
from paceline.store.models.node import JobNode
from paceline.store.models.outbox import OutboxEvent
from paceline.store.models.place import IncidentPlace
from paceline.store.models.repair import (
    Recovery,
    RecoveryPhaseRow,
    RepairAction,
    RepairJob,
    RepairMember,
    RepairPolicy,
)
from paceline.store.models.scaling import ScalingWindow
from paceline.store.models.session import ConsoleSession
from paceline.store.models.shipment import Shipment, ShipmentPart
from paceline.store.models.timeline import TimelineEntry
from paceline.store.models.token import Token
from paceline.store.models.verdict import StoredVerdict

__all__ = [
    "AlertState",
    "AuditEntry",
    "ConsoleSession",
    "Delivery",
    "EvidenceBundle",
    "IdempotencyKey",
    "Incident",
    "IncidentEpisode",
    "IncidentPlace",
    "Job",
    "JobAttempt",
    "JobCommunicator",
    "JobNode",
    "OutboxEvent",
    "Recovery",
    "RecoveryPhaseRow",
    "RepairAction",
    "RepairJob",
    "RepairMember",
    "RepairPolicy",
    "ScalingWindow",
    "Shipment",
    "ShipmentPart",
    "StoredVerdict",
    "TimelineEntry",
    "Token",
    "WebhookEndpoint",
]
