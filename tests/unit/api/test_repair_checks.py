"""What an open action has to pass, as the page shows it: without a database."""

from collections.abc import Mapping
from datetime import datetime, timezone

import pytest

from paceline.api.repair.checks import HOLDS_UP, Facts, build_checks, build_places
from paceline.api.repair.schemas import CheckName, CheckState, Preconditions
from paceline.contracts.recovery import Support
from paceline.contracts.repair import RepairKind
from paceline.remediator.model import Reason
from paceline.store.models.repair import RepairAction, RepairMember, RepairPolicy

AT = datetime(2026, 1, 2, tzinfo=timezone.utc)
WAITING = {
    Reason.OBSERVED_ONLY, Reason.NEEDS_APPROVAL, Reason.STOP_SWITCH, Reason.BLAST_RADIUS, Reason.RATE_LIMIT,
    Reason.CIRCUIT_BREAKER,
    Reason.FLEET_BREAKER, Reason.NOT_VERIFIED, Reason.NOT_FENCED, Reason.WAIT_STANDBY, Reason.WAIT_EVIDENCE,
    Reason.WAIT_SETTLED, Reason.TOO_LARGE, Reason.MEMBERS_UNKNOWN, Reason.NO_STANDBY, Reason.REFUSED_LAYOUT,
}  # fmt: skip


def action(**changes: object) -> RepairAction:
    values: dict[str, object] = {
        "id": "act_1", "job": "train", "attempt": "a1", "kind": "swap", "cause": "process_exit",
        "status": "proposed", "mode": "approve", "reason": "needs_approval", "ranks": "1", "leavers": ["m1"],
        "joiners": ["s0"], "decided_by": "",
    }  # fmt: skip
    return RepairAction(**(values | changes))


def member(name: str, rank: int, **changes: object) -> RepairMember:
    values: dict[str, object] = {
        "member": name, "rank": rank, "node": f"n-{name}", "role": "member" if rank >= 0 else "standby",
        "child_pid": 7, "lease_s": 0.0,
    }  # fmt: skip
    return RepairMember(**(values | changes))


def facts(
    *policies: RepairPolicy, support: Support = Support.VERIFIED, ready: int = 1, **of_leaver: object
) -> Facts:
    conditions = Preconditions(
        standbys_ready=ready, members_known=3, least_support=support, blast_ranks=1,
        replayed_steps_at_most=1, expected_pause_s=None,
    )  # fmt: skip
    return Facts(conditions, [member("m0", 0), member("m1", 1, **of_leaver), member("s0", -1)], policies)


def states(row: RepairAction, known: Facts) -> Mapping[str, str]:
    return {check.name.value: check.state.value for check in build_checks(row, known)}


def test_every_reason_to_wait_belongs_to_a_check() -> None:
    assert {Reason(name) for name in HOLDS_UP} == WAITING


def test_what_stands_before_the_reason_has_passed_and_what_stands_behind_was_not_asked() -> None:
    found = build_checks(action(), facts(child_pid=0))
    assert [(check.name.value, check.state.value) for check in found] == [
        ("members", "met"), ("standby", "met"), ("policy", "met"), ("stop_switch", "met"), ("layout", "met"),
        ("approval", "waits"), ("fence", "met"), ("settled", "not_asked"), ("evidence", "not_asked"),
    ]  # fmt: skip
    assert {check.name: check.reason for check in found}[CheckName.APPROVAL] == "needs_approval"


def test_the_tables_know_of_what_the_remediator_has_not_asked_yet() -> None:
    stop = RepairPolicy(job="", cause="", mode="", stopped=True, updated_by="ada")
    row = action(reason="wait_standby")
    found = {check.name: check for check in build_checks(row, facts(stop, support=Support.REFUSED, ready=0))}
    assert found[CheckName.STANDBY].state is CheckState.WAITS
    assert (found[CheckName.STOP_SWITCH].state, found[CheckName.STOP_SWITCH].detail) == (
        CheckState.REFUSED, "on for all jobs, by ada",
    )  # fmt: skip
    assert found[CheckName.LAYOUT].reason == "refused_layout"
    elsewhere = RepairPolicy(job="train", cause="hang", mode="", stopped=True, updated_by="ada")
    assert states(row, facts(elsewhere))["stop_switch"] == "met"


def test_nobody_approves_the_loss_of_a_node_without_hearing_that_nothing_proves_it() -> None:
    lost = action(cause="node_lost")
    found = {check.name: check for check in build_checks(lost, facts())}[CheckName.FENCE]
    assert (found.state, found.reason) == (CheckState.WAITS, "not_fenced")
    assert "m1" in found.detail
    assert states(lost, facts(lease_s=5.0))["fence"] == "met"
    assert states(lost, facts(child_pid=0))["fence"] == "met"


def test_limits_are_asked_only_where_no_person_decides() -> None:
    row = action(mode="auto", reason="rate_limit")
    found = states(row, facts())
    assert "approval" not in found
    assert (found["verified"], found["circuit_breaker"], found["rate_limit"]) == ("met", "met", "waits")
    approved = states(action(mode="auto", status="approved", decided_by="ada", reason="rate_limit"), facts())
    assert "rate_limit" not in approved
    assert approved["approval"] == "met"


@pytest.mark.parametrize("kind", [RepairKind.RETRY, RepairKind.FALLBACK])
def test_nobody_leaves_and_no_standby_is_asked_for(kind: RepairKind) -> None:
    found = states(action(kind=kind.value, ranks="", leavers=[], joiners=[]), facts(ready=0))
    assert not {"standby", "fence", "evidence"} & set(found)
    assert ("layout" in found) is (kind is RepairKind.RETRY)


@pytest.mark.parametrize(
    "changes",
    [{"status": "dispatched"}, {"status": "expired"}, {"kind": "stack_capture", "status": "observing"}],
)
def test_what_is_decided_has_no_checks(changes: Mapping[str, object]) -> None:
    assert build_checks(action(**changes), facts()) == []


def test_observe_refuses_whatever_else_holds() -> None:
    found = {
        check.name: check for check in build_checks(action(mode="observe", reason="stop_switch"), facts())
    }
    assert (found[CheckName.POLICY].state, found[CheckName.POLICY].reason) == (
        CheckState.REFUSED, "observed_only",
    )  # fmt: skip


def test_a_stop_switch_of_another_cause_of_it_is_on() -> None:
    row = action(reason="stop_switch")
    found = {check.name: check for check in build_checks(row, facts())}[CheckName.STOP_SWITCH]
    assert (found.state, found.reason) == (CheckState.REFUSED, "stop_switch")


def test_places_say_who_leaves_and_who_joins() -> None:
    (place,) = build_places(action(), facts())
    assert (place.rank, place.leaver, place.leaver_node) == (1, "m1", "n-m1")
    assert (place.joiner, place.joiner_node) == ("s0", "n-s0")
    (asked,) = build_places(action(leavers=[], joiners=[]), facts())
    assert (asked.rank, asked.leaver, asked.joiner) == (1, None, None)


def test_a_standby_that_has_joined_is_shown_at_its_own_rank() -> None:
    members = [member("m1", 1), member("m2", 2), member("s0", 2), member("s1", 1)]
    row = action(ranks="1-2", leavers=["m1", "m2"], joiners=["s0", "s1"])
    known = Facts(facts().conditions, members, ())
    assert [(place.rank, place.joiner) for place in build_places(row, known)] == [(1, "s1"), (2, "s0")]
