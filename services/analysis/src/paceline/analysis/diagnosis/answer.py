"""What `paceline diagnose` answers, and its JSON."""

from dataclasses import dataclass, field
from typing import Any

from paceline.analysis.facts import Origin
from paceline.contracts.verdicts import Action, Operation, Owner, Role, RootKind, SubReason, VerdictClass

EXIT_ANSWERED = 0
EXIT_UNUSABLE = 2
EXIT_INCONCLUSIVE = 3
ORIGINS_MAX = 16  # of one piece of evidence, in the JSON


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

    def as_json(self) -> dict[str, Any]:
        """`kind`, `role` and the fields that say something."""
        fields = {
            "rank": self.rank,
            "node": self.node or None,
            "gpu": self.gpu or None,
            "peer_rank": self.peer_rank,
            "name": self.name or None,
            "ranks": list(self.ranks) or None,
            "why": self.why or None,
        }
        known = {name: value for name, value in fields.items() if value is not None}
        return {"kind": self.kind.value, **known, "role": self.role.value}


@dataclass(frozen=True)
class Ground:
    """One piece of evidence: what was read where, and what follows from it."""

    rule: str
    statement: str
    origins: tuple[Origin, ...] = ()
    supports: bool = True

    def as_json(self) -> dict[str, Any]:
        return {
            "rule": self.rule,
            "statement": self.statement,
            "origins": [str(origin) for origin in self.origins[:ORIGINS_MAX]],
            "supports": self.supports,
        }


@dataclass(frozen=True)
class Seen:
    """What the input could show."""

    ranks_expected: int  # 0 unknown
    ranks_reporting: int
    sources: tuple[str, ...]  # names of adapters that found something
    files_read: int
    files_skipped: int
    notes: tuple[str, ...] = ()  # missing, truncated, overwritten, refused

    def as_json(self) -> dict[str, Any]:
        return {
            "ranks_expected": self.ranks_expected or None,
            "ranks_reporting": self.ranks_reporting,
            "sources": list(self.sources),
            "files_read": self.files_read,
            "files_skipped": self.files_skipped,
            "notes": list(self.notes),
        }


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

    @property
    def exit_status(self) -> int:
        """Of the command: 0 answered, 3 inconclusive."""
        undecided = self.verdict_class is VerdictClass.INCONCLUSIVE
        return EXIT_INCONCLUSIVE if undecided else EXIT_ANSWERED

    def as_json(self) -> dict[str, Any]:
        """The documented JSON object (docs/diagnose.md)."""
        action = {"kind": self.action.kind.value, "target": self.action.target, "reason": self.action.reason}
        return {
            "class": self.verdict_class.value,
            "sub_reason": self.sub_reason.value,
            "roots": [root.as_json() for root in self.roots],
            "victims": list(self.victims),
            "communicator": self.communicator,
            "operation": _operation(self.operation),
            "phase": self.phase,
            "owner": self.owner.value,
            "action": action,
            "confidence": round(self.confidence, 3),
            "coverage": self.seen.as_json(),
            "evidence": [ground.as_json() for ground in self.grounds],
            "summary": self.summary,
            "would_decide": list(self.would_decide),
            "export_next": dict(self.export_next),
            "attempt": self.attempt,
            "attempts": self.attempts,
            "exit_status": self.exit_status,
        }


def _operation(operation: Operation | None) -> dict[str, Any] | None:
    if operation is None:
        return None
    return {
        "communicator": operation.communicator_name or operation.communicator,
        "function": operation.function,
        "round": operation.round or None,
        "size": operation.size or None,
        "detail": operation.detail,
    }
