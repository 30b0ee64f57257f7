"""Read models of incidents. The page keeps the four questions apart: what happened, why, what
next, did it happen."""

from datetime import datetime
from typing import Literal

from pydantic import Field

from paceline.api.nodes.schemas import MemoryRead
from paceline.api.schemas import ReadModel, WriteModel
from paceline.api.webhooks.schemas import DeliveryStatus
from paceline.contracts.events import EvidenceState, IncidentStatus, Severity, ShipmentState
from paceline.contracts.verdicts import ActionKind, Owner, Role, RootKind, SubReason, VerdictClass


class RootRead(ReadModel):
    """One first cause. `ranks` are the members of a group, else empty."""

    kind: RootKind
    rank: int | None
    node: str | None
    gpu: int | None
    peer_rank: int | None
    name: str | None
    ranks: list[int]
    role: Role


class OperationRead(ReadModel):
    """The operation that stands, or the slow one. `round` is 0 for point-to-point."""

    communicator: str
    communicator_name: str
    function: str
    round: int
    size: int
    detail: str


class EvidenceInput(ReadModel):
    name: str
    value: str


class EvidenceRead(ReadModel):
    """One rule that spoke. `supports` is false for counter-evidence."""

    rule: str
    statement: str
    inputs: list[EvidenceInput]
    threshold: str
    supports: bool


class CoverageRead(ReadModel):
    """What the verdict could see."""

    ranks_expected: int
    ranks_reporting: int
    ratio: float
    communicators_expected: int
    communicators_complete: int
    operations_dropped: int
    sources: list[str]


class ActionRead(ReadModel):
    kind: ActionKind
    target: str
    reason: str


class IncidentSummary(ReadModel):
    """One line of the list. `label` is INC-<number>; `version` is what If-Match compares."""

    id: str
    number: int
    label: str
    job: str
    attempt: str
    status: IncidentStatus
    severity: Severity
    verdict_class: VerdictClass
    sub_reason: SubReason
    owner: Owner
    summary: str
    roots: list[RootRead]
    operation: OperationRead | None
    victims_count: int
    communicators_waiting: int
    confidence: float
    revision: int
    stalled_at: datetime
    opened_at: datetime
    updated_at: datetime
    acknowledged_at: datetime | None
    acknowledged_by: str | None
    resolved_at: datetime | None
    resolved_by: str | None
    resolution: str
    reopened_count: int
    version: int


class CommunicatorInvolved(ReadModel):
    """A communicator of the incident: the one with the cause, and those whose members wait."""

    communicator: str
    name: str
    kind: str
    backend: str
    size: int
    ranks: str
    is_root: bool
    victims_count: int


class WhatHappened(ReadModel):
    """`victims` holds at most 256 ranks as text such as `0-4,6-7`; the count is the truth."""

    summary: str
    verdict_class: VerdictClass
    sub_reason: SubReason
    roots: list[RootRead]
    operation: OperationRead | None
    victims: str
    victims_count: int
    communicators_waiting: int
    communicators: list[CommunicatorInvolved]
    stalled_at: datetime
    detected_at: datetime
    detected_after_s: float
    stalled_s: float


class VerdictRevision(ReadModel):
    """An earlier or the present verdict; `bundle_id` names its evidence where it is kept."""

    id: str
    revision: int
    verdict_class: VerdictClass
    sub_reason: SubReason
    summary: str
    confidence: float
    resolved: bool
    judged_at: datetime
    bundle_id: str | None


class EvidenceBundleRead(ReadModel):
    id: str
    verdict_id: str
    revision: int
    bytes_count: int
    sha256: str
    created_at: datetime


class ShipmentRead(ReadModel):
    """One node that was asked for logs, stacks, dumps and its kernel log. `reason` is root or witness;
    `bytes_count` is 0 where nothing has come."""

    id: str
    node: str
    reason: Literal["root", "witness"]
    state: ShipmentState
    message: str
    asked_at: datetime
    deadline_at: datetime
    collected_at: datetime | None
    received_at: datetime | None
    bytes_count: int
    sha256: str


class ShippedRead(ReadModel):
    """What nodes ship before anything is killed. `state` is that of the newest opening of the incident:
    nothing is killed while it is pending. `says` is what the files say by themselves, read beside the
    verdict; empty until they are read."""

    state: EvidenceState
    says: str
    nodes: list[ShipmentRead]


class Why(ReadModel):
    """Evidence and counter-evidence, and what the verdict could not see."""

    confidence: float
    owner: Owner
    coverage: CoverageRead
    evidence: list[EvidenceRead]
    would_decide: str
    revisions: list[VerdictRevision]
    bundles: list[EvidenceBundleRead]
    shipped: ShippedRead


class WhatNext(ReadModel):
    """The suggested action. `mode` is that of the newest repair action of the incident, observe where there
    is none: nobody acts on it."""

    action: ActionRead
    owner: Owner
    mode: str


class TimelineEntryRead(ReadModel):
    """`actor_type` is system or token; `source` the service, api or console."""

    id: int
    at: datetime
    kind: str
    actor: str
    actor_type: str
    source: str
    message: str


class IncidentDeliveryRead(ReadModel):
    """Whom we told. Newest first."""

    id: str
    channel: str
    target: str
    event_type: str
    status: DeliveryStatus
    attempts_count: int
    updated_at: datetime


class DidItHappen(ReadModel):
    """What has come of it. The newest 200 entries; the rest is under /timeline."""

    status: IncidentStatus
    resolution: str
    timeline: list[TimelineEntryRead]
    timeline_is_complete: bool
    deliveries: list[IncidentDeliveryRead]


class RegainRead(ReadModel):
    """What-if: how many more steps in the same time (0.25 = a quarter more) if this root were healthy;
    null where the inputs are missing, which `reason` then names."""

    root: RootRead
    ratio: float | None
    at_most: bool
    reason: str


class CostRead(ReadModel):
    """What the incident has cost up to `as_of`, in hours of the job's GPUs, or of its ranks where no GPU is
    registered. `hours` is null where nothing is known, and leaves out `unknown_s`, for which the job was slow
    by an unknown amount. While it goes on, `hours_per_hour` are added each hour. Work that is done again
    after a restart is not counted."""

    unit: Literal["gpu", "rank"]
    ranks_count: int | None
    hours: float | None
    at_most: bool
    unknown_s: float
    as_of: datetime
    hours_per_hour: float
    reason: str
    step_s: float | None
    usual_step_s: float | None
    what_if: list[RegainRead]


class IncidentRead(IncidentSummary):
    """The whole incident page."""

    job_name: str
    world_size: int | None
    cluster: str
    user: str
    what_happened: WhatHappened
    why: Why
    what_next: WhatNext
    did_it_happen: DidItHappen
    cost: CostRead
    memory: MemoryRead


class NoteCreate(WriteModel):
    text: str = Field(min_length=1, max_length=4000)


class AcknowledgementCreate(WriteModel):
    """Both bodies may be empty: `{}`."""

    note: str = Field(default="", max_length=4000)


class ResolutionCreate(WriteModel):
    note: str = Field(default="", max_length=4000)
