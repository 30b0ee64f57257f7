"""Facts of the live platform: what a verdict was judged from, and what was published."""

from dataclasses import dataclass

from paceline.analysis.facts.model import Fact


@dataclass(frozen=True, kw_only=True)
class LiveEvidence(Fact):
    """The evidence of one published verdict, packed (`analysis.bundles`): judged again only where needed."""

    packed: bytes
    sha256: str


@dataclass(frozen=True)
class PublishedVerdict:
    """One revision as it was published. `roots` are their JSON objects, as text that compares."""

    verdict_id: str
    revision: int  # of its episode
    evidence_sha256: str
    verdict_class: str
    sub_reason: str
    roots: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class IncidentSeen(Fact):
    """The list of contents of an incident's bundle."""

    label: str  # INC-1
    job_name: str
    verdict_id: str  # the newest
    published: tuple[PublishedVerdict, ...]  # those of which evidence was kept, oldest first
