"""Repeat offenders and versions: every named reason, and what memory may never do."""

from dataclasses import dataclass, field, replace

import pytest

from paceline.analysis.history import (
    Effect,
    HistoryPolicy,
    NodeReason,
    VersionReason,
    places_of,
    recall,
    symptom_of,
    tail_chance,
    versions_text,
)
from paceline.contracts.verdicts import (
    Action,
    ActionKind,
    Coverage,
    Operation,
    Owner,
    Role,
    Root,
    RootKind,
    SubReason,
    Verdict,
    VerdictClass,
)

POLICY = HistoryPolicy()
VERDICT = Verdict(
    verdict_class=VerdictClass.H3,
    sub_reason=SubReason.MISSING_EXIT,
    roots=(Root(RootKind.RANK, rank=5, node="n1", gpu=2),),
    victims=(),
    victims_count=0,
    operation=Operation("aa", "tp_1", "all_reduce", 412, 8),
    owner=Owner.UNKNOWN,
    action=Action(ActionKind.COLLECT),
    confidence=0.8,
    coverage=Coverage(8, 8, 4, 4),
    evidence=(),
    summary="rank 5 stands",
)
H1 = replace(VERDICT, verdict_class=VerdictClass.H1, sub_reason=SubReason.MISSING_ENTER)


@dataclass(frozen=True)
class Past:
    node: str = "n1"
    gpu: int = 2
    kind: str = "rank"
    job: str = "j1"
    program: str = "ann/bert"
    verdict_class: str = "H3"
    sub_reason: str = "missing_exit"


@dataclass(frozen=True)
class Hits:
    versions: str = "torch 2.13"
    jobs: int = 5
    programs: int = 3
    nodes: int = 5


@dataclass(frozen=True)
class Facts:
    places: tuple[tuple[str, int, str], ...] = (("n1", 2, "rank"),)
    program: str = "lia/llama"
    past: tuple[Past, ...] = (Past(), Past(job="j2", program="bob/gpt"))
    offences: int = 3
    nodes: int = 64
    versions: str = ""
    hits: tuple[Hits, ...] = ()
    jobs_of_versions: dict[str, int] = field(default_factory=dict)


SOFTWARE = Facts(
    past=(), versions="torch 2.13", hits=(Hits(),), jobs_of_versions={"torch 2.13": 10, "torch 2.12": 40}
)


class TestNodes:
    def test_a_repeat_offender_raises_confidence_and_justifies_a_node_action(self) -> None:
        memory = recall(VERDICT, Facts(), POLICY)
        assert memory.effect is Effect.NODE_ACTION
        assert memory.verdict.confidence == 0.9
        assert (memory.verdict.action.kind, memory.verdict.action.target) == (ActionKind.REPLACE_NODE, "n1")
        assert memory.verdict.evidence[-1].rule == "memory.node"
        assert (memory.nodes[0].gpu, memory.nodes[0].jobs) == (2, 2)

    @pytest.mark.parametrize(
        ("facts", "reason"),
        [
            (Facts(past=()), NodeReason.NOTHING_KNOWN),
            (Facts(past=(Past(verdict_class="H1", sub_reason="missing_enter"),)), NodeReason.NO_OFFENCE),
            (Facts(past=(Past(verdict_class="DEAD_PROCESS", sub_reason="process_exited"),)),
             NodeReason.NO_OFFENCE),
            (Facts(past=(Past(), Past())), NodeReason.FEW_JOBS),  # twice in one job
            (Facts(program="ann/bert", past=(Past(), Past(job="j2"))), NodeReason.ONE_PROGRAM),
            (Facts(nodes=2), NodeReason.NO_COMPARISON),
            (Facts(offences=40), NodeReason.AS_OTHERS),
            (Facts(nodes=8), NodeReason.AS_OTHERS),
            (Facts(), NodeReason.REPEAT_OFFENDER),
        ],
    )  # fmt: skip
    def test_each_reason(self, facts: Facts, reason: NodeReason) -> None:
        memory = recall(VERDICT, facts, POLICY)
        assert memory.nodes[0].reason is reason
        if reason is not NodeReason.REPEAT_OFFENDER:
            assert memory.verdict == VERDICT

    def test_software_is_never_held_against_a_node(self) -> None:
        memory = recall(H1, Facts(), POLICY)
        assert (memory.effect, memory.verdict) == (Effect.SOFTWARE, H1)

    def test_both_ends_of_a_link_are_not_one_culprit(self) -> None:
        facts = Facts(
            places=(("n1", -1, "link"), ("n2", -1, "link")),
            past=tuple(
                Past(node=node, gpu=-1, kind="link", verdict_class="S2", job=job, program=job)
                for node in ("n1", "n2")
                for job in ("j1", "j2")
            ),
        )
        memory = recall(VERDICT, facts, POLICY)
        assert (memory.effect, memory.verdict.action) == (Effect.UNDECIDED, VERDICT.action)
        assert memory.verdict.confidence == VERDICT.confidence

    def test_policy_bounds_what_memory_may_do(self) -> None:
        memory = recall(VERDICT, Facts(), replace(POLICY, may_act_on_node=False))
        assert (memory.effect, memory.verdict.action) == (Effect.CONFIDENCE, VERDICT.action)
        sure = replace(VERDICT, confidence=0.99)
        assert recall(sure, Facts(), POLICY).verdict.confidence == 0.99
        unsure = replace(VERDICT, confidence=0.96)
        assert recall(unsure, Facts(), POLICY).verdict.confidence == POLICY.confidence_max


class TestVersions:
    @pytest.mark.parametrize(
        ("facts", "reason"),
        [
            (replace(SOFTWARE, versions=""), VersionReason.NO_SYMPTOM),
            (replace(SOFTWARE, hits=(Hits(jobs=2),)), VersionReason.FEW_JOBS),
            (replace(SOFTWARE, hits=(Hits(programs=1),)), VersionReason.ONE_PROGRAM),
            (replace(SOFTWARE, hits=(Hits(nodes=1),)), VersionReason.FEW_NODES),
            (replace(SOFTWARE, hits=(Hits(), Hits("torch 2.12", 20))), VersionReason.AS_OTHER_VERSIONS),
            (replace(SOFTWARE, jobs_of_versions={"torch 2.13": 10}), VersionReason.NOT_COMPARED),
            (SOFTWARE, VersionReason.SAME_VERSION),
        ],
    )
    def test_each_reason(self, facts: Facts, reason: VersionReason) -> None:
        memory = recall(H1, facts, POLICY)
        assert memory.version.reason is reason
        assert memory.verdict.action == H1.action
        points = reason in (VersionReason.SAME_VERSION, VersionReason.NOT_COMPARED)
        assert (memory.version.root is not None) == points
        assert (memory.effect is Effect.VERSION) == points

    def test_a_version_beats_the_history_of_a_node(self) -> None:
        facts = replace(SOFTWARE, past=Facts().past)
        memory = recall(VERDICT, facts, POLICY)
        assert memory.nodes[0].reason is NodeReason.REPEAT_OFFENDER
        assert memory.version.root == Root(RootKind.VERSION, name="torch 2.13", role=Role.UNKNOWN)
        assert (memory.verdict.action, memory.verdict.confidence) == (VERDICT.action, VERDICT.confidence)
        assert memory.verdict.evidence[-1].rule == "memory.version"

    def test_what_hardware_reported_is_no_symptom_of_a_library(self) -> None:
        event = replace(VERDICT, sub_reason=SubReason.HARDWARE_EVENT)
        assert symptom_of(event) == ""
        assert recall(event, SOFTWARE, POLICY).version.reason is VersionReason.NO_SYMPTOM
        assert symptom_of(H1) == "H1|missing_enter|all_reduce"

    def test_python_is_no_framework(self) -> None:
        assert versions_text({"torch": "2.13", "nccl": "2.28.9", "python": "3.11"}) == (
            "nccl 2.28.9, torch 2.13"
        )
        assert versions_text({"python": "3.11"}) == ""


def test_places_are_both_ends_of_a_link_and_no_victims() -> None:
    roots = (
        Root(RootKind.LINK, rank=3, node="n0", peer_rank=4),
        Root(RootKind.RANK, rank=9, node="n9", role=Role.CASCADE),
        Root(RootKind.RANK, rank=7),
        Root(RootKind.GROUP, node="n5", ranks=(1, 2)),
    )
    known: dict[int, tuple[str, int | None]] = {4: ("n1", 0), 7: ("n2", None)}
    found = places_of(replace(VERDICT, roots=roots), known.get)
    assert found == [("n0", -1, "link"), ("n1", 0, "link"), ("n2", -1, "rank")]


def test_tail_chance_is_the_poisson_tail() -> None:
    assert tail_chance(0, 1.0) == 1.0
    assert tail_chance(1, 1.0) == pytest.approx(0.632, abs=1e-3)
    assert tail_chance(3, 0.5) == pytest.approx(0.0144, abs=1e-4)
    assert tail_chance(2, 0.0) == 0.0
