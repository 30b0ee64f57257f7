"""What `paceline diagnose` answers, and its JSON."""

from dataclasses import dataclass, field
from typing import Any

from paceline.analysis.facts import Origin
from paceline.contracts.verdicts import Action, Operation, Owner, Role, RootKind, SubReason, VerdictClass


@dataclass(frozen=True)
class Blame:
    """One first cause. `gpu` is a PCI address or local index as the input names it."""

    kind: RootKind
    rank: int | None = None
    node: str = ""
    gpu: str = ""
    peer_rank: int | None = None  # far end of a link
    name: str = ""  # setting, version, domain, group, or task where no rank is known
    ranks: tuple[int, ...] = ()
    role: Role = Role.INITIATING
    why: str = ""  # one short clause


@dataclass(frozen=True)
class Ground:
    """One piece of evidence: what was read where, and what follows from it."""

    rule: str
    statement: str
    origins: tuple[Origin, ...] = ()
    supports: bool = True


@dataclass(frozen=True)
class Seen:
    """What the input could show."""

    ranks_expected: int  # 0 unknown
    ranks_reporting: int
    sources: tuple[str, ...]  # names of adapters that found something
    files_read: int
    files_skipped: int
    notes: tuple[str, ...] = ()  # missing, truncated, overwritten, refused


@dataclass(frozen=True)
class Diagnosis:
    """The answer about one attempt of one job."""

    verdict_class: VerdictClass
    sub_reason: SubReason
    roots: tuple[Blame, ...]
    victims: tuple[int, ...]
    communicator: str  # name as the input has it
    operation: Operation | None
    phase: str  # where no operation is known: "shutdown barrier", "ncclCommInitRank"
    owner: Owner
    action: Action
    confidence: float
    seen: Seen
    grounds: tuple[Ground, ...]
    summary: str
    would_decide: tuple[str, ...] = ()
    export_next: dict[str, str] = field(default_factory=dict)  # environment for the next run
    attempt: int = 0
    attempts: int = 1

    def as_json(self) -> dict[str, Any]:
        """The documented JSON object (docs/diagnose.md)."""
        raise NotImplementedError
