"""Which policy holds, and what an incident means to repair."""

from dataclasses import replace

import pytest

from paceline.contracts.events import EventType, IncidentEvent, IncidentStatus, Severity
from paceline.contracts.registry import HealthEvent, HealthKind
from paceline.contracts.repair import RepairCause, RepairMode
from paceline.contracts.verdicts import (
    Action,
    ActionKind,
    Coverage,
    Owner,
    Root,
    RootKind,
    SubReason,
    Verdict,
    VerdictClass,
)
from paceline.contracts.verdicts import Role as RootRole
from paceline.remediator.faults import cause_of, judged_of
from paceline.remediator.model import Policy, ProcessExit
from paceline.remediator.policies import PolicyRow, read_policies
from paceline.remediator.reading import event_of_health

VERDICT = Verdict(
    VerdictClass.H3, SubReason.MISSING_EXIT, (Root(RootKind.RANK, rank=3, node="n1"),), (), 7, None,
    Owner.UNKNOWN, Action(ActionKind.COLLECT), 0.9, Coverage(8, 8, 1, 1), (), "rank 3 stands still",
)  # fmt: skip


def row(job: str, cause: str, mode: str = "", stopped: bool = False, **limits: object) -> PolicyRow:
    return PolicyRow(job, cause, mode, stopped, limits)


class TestPolicies:
    def test_observe_is_the_default_and_a_request_needs_an_approval(self) -> None:
        found = read_policies([], "llama", Policy(), may_act=True)
        assert {found.of(cause).mode for cause in RepairCause if cause is not RepairCause.REQUESTED} == {
            RepairMode.OBSERVE
        }
        assert found.of(RepairCause.REQUESTED).mode is RepairMode.APPROVE

    def test_the_most_exact_row_wins_and_each_limit_by_itself(self) -> None:
        rows = [
            row("llama", "frozen", "auto"),
            row("", "", "approve", ranks_max=2, per_hour_max=3),
            row("llama", "", "observe", per_hour_max=9),
            row("other", "", "auto"),
            row("", "process_exit", "auto"),
        ]
        found = read_policies(rows, "llama", Policy(), may_act=True)
        assert found.of(RepairCause.FROZEN).mode is RepairMode.AUTO
        assert found.of(RepairCause.HANG).mode is RepairMode.OBSERVE
        assert found.of(RepairCause.PROCESS_EXIT).mode is RepairMode.OBSERVE  # the job's word counts more
        limits = found.of(RepairCause.FROZEN).limits
        assert (limits.ranks_max, limits.per_hour_max) == (2, 9)

    def test_a_stop_of_any_row_holds_and_without_a_key_nothing_is_done(self) -> None:
        rows = [row("", "", stopped=True), row("llama", "frozen", "auto")]
        found = read_policies(rows, "llama", Policy(), may_act=True)
        assert (found.of(RepairCause.FROZEN).stopped, found.of(RepairCause.FROZEN).mode) == (
            True, RepairMode.AUTO,
        )  # fmt: skip
        deaf = read_policies(rows, "llama", Policy(RepairMode.AUTO), may_act=False)
        assert {deaf.of(cause).mode for cause in RepairCause} == {RepairMode.OBSERVE}


@pytest.mark.parametrize(
    ("found", "reason", "action", "cause"),
    [
        (VerdictClass.DEAD_PROCESS, SubReason.PROCESS_KILLED, ActionKind.NONE, RepairCause.PROCESS_EXIT),
        (VerdictClass.DEAD_PROCESS, SubReason.NODE_LOST, ActionKind.NONE, RepairCause.NODE_LOST),
        (VerdictClass.H1, SubReason.FROZEN_PROCESS, ActionKind.NONE, RepairCause.FROZEN),
        (VerdictClass.H3, SubReason.FROZEN_PROCESS, ActionKind.NONE, RepairCause.FROZEN),
        (VerdictClass.H1, SubReason.MISSING_ENTER, ActionKind.REPLACE_NODE, RepairCause.SOFTWARE),
        (VerdictClass.H2, SubReason.SIZE_MISMATCH, ActionKind.FIX_CODE, RepairCause.SOFTWARE),
        (VerdictClass.DEADLOCK, SubReason.ORDER_INVERSION, ActionKind.FIX_CODE, RepairCause.SOFTWARE),
        (VerdictClass.H3, SubReason.MISSING_EXIT, ActionKind.COLLECT, RepairCause.HANG),
        (VerdictClass.H3, SubReason.HARDWARE_EVENT, ActionKind.RESET_GPU, RepairCause.HARDWARE),
        (VerdictClass.S1, SubReason.LATE_RANK, ActionKind.REPLACE_NODE, RepairCause.SLOW),
        (VerdictClass.S2, SubReason.SLOW_LINK, ActionKind.NETWORK_TICKET, None),
        (VerdictClass.INCONCLUSIVE, SubReason.MISSING_EVIDENCE, ActionKind.COLLECT, None),
        (VerdictClass.NONE, SubReason.NONE, ActionKind.NONE, None),
    ],
)
def test_only_death_a_freeze_and_hardware_move_a_job(
    found: VerdictClass, reason: SubReason, action: ActionKind, cause: RepairCause | None
) -> None:
    verdict = replace(VERDICT, verdict_class=found, sub_reason=reason, action=Action(action))
    assert cause_of(verdict) is cause


def test_whoever_only_follows_is_not_blamed() -> None:
    roots = (
        Root(RootKind.RANK, rank=3),
        Root(RootKind.RANK, rank=4, role=RootRole.CASCADE),
        Root(RootKind.GROUP, ranks=(5, 6)),
        Root(RootKind.NODE, node="n7"),
    )
    event = IncidentEvent(
        "evt_1", EventType.INCIDENT_OPENED, "inc_1", 1, "train", "a1", IncidentStatus.OPEN, Severity.ERROR, 1,
        replace(VERDICT, roots=roots), 1.0, 2.0, "system", "http://console",
    )  # fmt: skip
    judged = judged_of(event)
    assert judged is not None
    assert (judged.ranks, judged.nodes) == ((3,), ("n7",))
    assert judged_of(replace(event, type=EventType.INCIDENT_ACKNOWLEDGED)) is None


def test_health_of_nodes_without_a_job_is_not_for_repair() -> None:
    event = HealthEvent("h1", HealthKind.PROCESS_EXIT, "n1", "train", "a1", 1, 77, 3.0, exit_code=-9)
    assert event_of_health(event) == ProcessExit("h1", 3.0, 1, "", 77, None, -9, "n1")
    assert event_of_health(replace(event, job="")) is None
    assert event_of_health(replace(event, kind=HealthKind.XID)) is None
