"""What the files that nodes shipped say by themselves, beside the verdict; a pure function of both.

The input is the JSON object of `paceline diagnose --json` (docs/diagnose.md). It comes from text that
training jobs wrote, so nothing of it is trusted: it becomes words, never an action.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from paceline.contracts.verdicts import Verdict, VerdictClass

SUMMARY_CHARS_MAX = 600
_UNDECIDED = {VerdictClass.INCONCLUSIVE.value, VerdictClass.NONE.value}


class Agreement(str, Enum):
    """How the answer of the files stands to the verdict."""

    SILENT = "silent"  # the files decide nothing
    AGREES = "agrees"  # a rank or node of theirs is one of the verdict's
    ADDS = "adds"  # they name what the verdict does not: it was undecided, or theirs has no place in the job
    DIFFERS = "differs"  # they name other ranks and nodes


@dataclass(frozen=True)
class ShippedAnswer:
    """One line for people."""

    agreement: Agreement
    verdict_class: str
    owner: str
    confidence: float
    summary: str

    @property
    def words(self) -> str:
        """As the timeline has it."""
        if self.agreement is Agreement.SILENT:
            return "the shipped files decide nothing by themselves" + (
                f": {self.summary}" if self.summary else ""
            )
        how = {
            Agreement.AGREES: "agree",
            Agreement.ADDS: "add",
            Agreement.DIFFERS: "name another cause",
        }[self.agreement]
        return (
            f"the shipped files {how}: {self.summary} (owner {self.owner}, confidence {self.confidence:.2f})"
        )


def compare(verdict: Verdict, answer: Mapping[str, Any]) -> ShippedAnswer:
    """`answer` beside `verdict`. ValueError where it is not what `paceline diagnose` writes."""
    roots = answer.get("roots")
    if not isinstance(answer.get("class"), str) or not isinstance(roots, list):
        raise ValueError("the answer has no class or no roots")
    confidence = answer.get("confidence")
    said = [root for root in roots if isinstance(root, dict)]
    return ShippedAnswer(
        agreement=_agreement(verdict, str(answer["class"]), said),
        verdict_class=str(answer["class"])[:32],
        owner=str(answer.get("owner", ""))[:32],
        confidence=float(confidence) if isinstance(confidence, int | float) else 0.0,
        summary=str(answer.get("summary", ""))[:SUMMARY_CHARS_MAX],
    )


def _agreement(verdict: Verdict, said: str, roots: Sequence[Mapping[str, Any]]) -> Agreement:
    if said in _UNDECIDED:
        return Agreement.SILENT
    ranks, nodes = _places_said(roots)
    own_ranks, own_nodes = _places(verdict)
    if ranks & own_ranks or nodes & own_nodes:
        return Agreement.AGREES
    if verdict.verdict_class.value in _UNDECIDED or not (own_ranks or own_nodes):
        return Agreement.ADDS
    return Agreement.DIFFERS if ranks or nodes else Agreement.ADDS


def _places(verdict: Verdict) -> tuple[set[int], set[str]]:
    ranks = {
        rank
        for root in verdict.roots
        for rank in (root.rank, root.peer_rank, *root.ranks)
        if rank is not None
    }
    return ranks, {root.node for root in verdict.roots if root.node}


def _places_said(roots: Sequence[Mapping[str, Any]]) -> tuple[set[int], set[str]]:
    ranks: set[int] = set()
    for root in roots:
        some = root.get("ranks")
        found = [root.get("rank"), root.get("peer_rank"), *(some if isinstance(some, list) else ())]
        ranks |= {rank for rank in found if isinstance(rank, int)}
    return ranks, {root["node"] for root in roots if isinstance(root.get("node"), str) and root["node"]}
