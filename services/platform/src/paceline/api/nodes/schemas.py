"""Read models of the fleet's memory."""

from datetime import datetime

from paceline.analysis.history import NodeReason, VersionReason
from paceline.api.schemas import ReadModel
from paceline.contracts.verdicts import RootKind, SubReason, VerdictClass


class NodeTotalsRead(ReadModel):
    """One node over the window. An offence is an incident of a kind that a machine can cause;
    `jobs_count` and `programs_count` are those with an offence."""

    node: str
    incidents_count: int
    offences_count: int
    jobs_count: int
    programs_count: int
    last_opened_at: datetime


class NodesRead(ReadModel):
    """The nodes with offences in most jobs first; at most `limit` of them."""

    window_days: int
    items: list[NodeTotalsRead]


class PastIncidentRead(ReadModel):
    """An earlier incident whose first cause was there. `gpu` is null where none was named."""

    incident_id: str
    label: str
    job: str
    kind: RootKind
    gpu: int | None
    verdict_class: VerdictClass
    sub_reason: SubReason
    is_offence: bool
    opened_at: datetime


class NodeHistoryRead(ReadModel):
    """Newest first, at most 100."""

    node: str
    window_days: int
    items: list[PastIncidentRead]


class NodeFindingRead(ReadModel):
    """What other jobs say about a node of this incident. `gpu` is set where every offence names it;
    `chance` is the probability of as many offences on a usual node."""

    node: str
    gpu: int | None
    reason: NodeReason
    incidents_count: int
    jobs_count: int
    programs_count: int
    chance: float
    past: list[PastIncidentRead]


class VersionRootRead(ReadModel):
    """A library version as what the symptom points to. Never a reason to act on a node."""

    kind: RootKind
    name: str


class VersionFindingRead(ReadModel):
    """Whether the symptom follows the versions: jobs with it on these versions, and on others."""

    reason: VersionReason
    versions: str
    jobs_count: int
    programs_count: int
    nodes_count: int
    jobs_of_version: int
    other_jobs_count: int
    jobs_of_others: int
    root: VersionRootRead | None


class MemoryRead(ReadModel):
    """What the fleet remembers, as of now; incidents of the same job do not count."""

    node_days: int
    version_days: int
    nodes: list[NodeFindingRead]
    version: VersionFindingRead
