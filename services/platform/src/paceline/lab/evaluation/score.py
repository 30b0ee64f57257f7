"""One case against its truth."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from paceline.contracts.verdicts import Role, Root, RootKind, SubReason, Verdict, VerdictClass
from paceline.fleet import Truth
from paceline.lab.evaluation.pipeline import Told

Atom = tuple[object, ...]


class Match(str, Enum):
    """How the named roots stand to the injected ones."""

    EXACT = "exact"  # all of them and nothing else, or the minimal group where that is all one can see
    PARTIAL = "partial"  # nothing wrong, something missing
    SUSPECT = "suspect"  # INCONCLUSIVE, with ranks of unknown role that are not the cause
    WIDER = "wider"  # a group (or node) that contains the cause and others
    NONE = "none"
    WRONG = "wrong"


@dataclass(frozen=True)
class Score:
    """What was found. `seconds` is from the fault to the first conclusive verdict of the job."""

    got: VerdictClass
    sub_reason: SubReason
    class_right: bool
    sub_right: bool
    match: Match
    named: int
    right: int
    wanted: int
    victims_named: tuple[int, ...]  # over all revisions
    seconds: float | None
    false_alarms: int  # verdicts before the fault
    summary: str
    wrong_before: bool  # an earlier revision named a wrong root

    @property
    def all_right(self) -> bool:
        return self.class_right and self.match is Match.EXACT


def causes(verdict: Verdict) -> list[Root]:
    """Roots that are named as a cause."""
    return [
        root
        for root in verdict.roots
        if root.role in (Role.INITIATING, Role.UNKNOWN) and root.kind is not RootKind.NONE
    ]


def score(truth: Truth, told: Sequence[Told]) -> Score:
    """The last verdict that is not the end of an episode counts; victims count in all of them."""
    after = [each for each in told if each.at_s >= truth.at_s and not each.resolved]
    early = [each for each in told if each.at_s < truth.at_s and not each.resolved]
    last = after[-1].verdict if after else None
    conclusive = [each for each in after if each.is_conclusive]
    roots = causes(last) if last else []
    match = compare(truth, roots)
    if match is Match.WRONG and last and not _accuses(last):
        match = Match.SUSPECT
    named, right, wanted = _count(truth, roots, match)
    got = last.verdict_class if last else VerdictClass.NONE
    accusing = [each.verdict for each in told if _accuses(each.verdict)]
    victims = {rank for verdict in accusing for rank in wrongly_named(truth, causes(verdict))}
    return Score(
        got,
        last.sub_reason if last else SubReason.NONE,
        got in truth.classes,
        bool(last) and last.sub_reason in truth.sub_reasons if last else False,
        match,
        named,
        right,
        wanted,
        tuple(sorted(victims)),
        conclusive[0].at_s - truth.at_s if conclusive else None,
        len(early),
        last.summary if last else "no verdict",
        any(
            compare(truth, causes(each.verdict)) is Match.WRONG and _accuses(each.verdict)
            for each in after[:-1]
        ),
    )


def _accuses(verdict: Verdict) -> bool:
    """Whether it names a cause. INCONCLUSIVE only says of whom nothing is known, role unknown."""
    inconclusive = verdict.verdict_class is VerdictClass.INCONCLUSIVE
    return not inconclusive or any(root.role is Role.INITIATING for root in verdict.roots)


def compare(truth: Truth, roots: Sequence[Root]) -> Match:
    """How `roots` stand to the truth."""
    if not roots:
        return Match.NONE if truth.roots else Match.EXACT
    if not truth.roots or wrongly_named(truth, roots):
        return Match.WRONG
    atoms, wanted = {_atom(root) for root in roots}, {_atom(root) for root in truth.roots}
    if atoms == wanted or _is_shared_node(truth, roots):
        return Match.EXACT
    groups = [set(root.ranks) for root in roots if root.rank is None and root.ranks]
    if not truth.root_observable and groups == [set(truth.group)]:
        return Match.EXACT
    if groups or any(root.rank is None for root in roots):
        return Match.WIDER
    return Match.PARTIAL if atoms < wanted else Match.WRONG


def wrongly_named(truth: Truth, roots: Sequence[Root]) -> set[int]:
    """Ranks named as a cause that only wait: not injected, and no group that contains the injected."""
    may = truth.root_ranks
    found: set[int] = set()
    links = {(root.rank, root.peer_rank) for root in truth.roots if root.kind is RootKind.LINK}
    for root in roots:
        if root.kind is RootKind.ROTATING:
            continue
        if root.kind is RootKind.LINK and root.rank is not None and root.peer_rank is not None:
            if (root.rank, root.peer_rank) not in links and (root.peer_rank, root.rank) not in links:
                found |= {root.rank, root.peer_rank}
        elif root.rank is not None:
            found |= {root.rank} - may
        elif root.ranks and not may & set(root.ranks):
            found |= set(root.ranks)
    return found


def _atom(root: Root) -> Atom:
    if root.kind is RootKind.LINK:
        return ("link", root.rank, root.peer_rank)
    if root.rank is not None:
        return ("rank", root.rank)
    if root.kind is RootKind.ROTATING:
        return ("rotating",)
    return ("group", tuple(sorted(root.ranks))) if root.ranks else (root.kind.value, root.node, root.name)


def _is_shared_node(truth: Truth, roots: Sequence[Root]) -> bool:
    """The links of one node, named by their node."""
    if SubReason.SHARED_PATH not in truth.sub_reasons or len(roots) != 1:
        return False
    nodes = {root.node for root in truth.roots}
    return roots[0].kind is RootKind.NODE and nodes == {roots[0].node}


def _count(truth: Truth, roots: Sequence[Root], match: Match) -> tuple[int, int, int]:
    """Named, rightly named, to be named. A minimal group counts as one root; a wider one as wrong."""
    wanted = {_atom(root) for root in truth.roots}
    if match is Match.EXACT:
        return max(1, len(roots)), max(1, len(roots)), max(1, len(roots))
    atoms = {_atom(root) for root in roots}
    return len(atoms), len(atoms & wanted), len(wanted)
