"""Records of supervisors and their reports on the wire."""

import json
from dataclasses import replace

from paceline.contracts.recovery import OrderOutcome, RecoveryPhase, Role, Support
from paceline.contracts.repair import (
    ActionStatus,
    MemberRecord,
    RecoveryReport,
    ReportKind,
    member_key,
)
from paceline.contracts.schemas import dump_json, load_json

MEMBER = MemberRecord(
    job="train", attempt="a1", member="m-1", node="n1", role=Role.MEMBER, rank=2, pid=10, child_pid=11,
    child_pid_start=99, generation=3, step=41, store="h:1", replica="h:2", failure_domain="rack-1",
    ready=True, world_size=4, support=Support.VERIFIED, lease_s=0.0, left=False, at_unix_s=7.0,
)  # fmt: skip
REPORT = RecoveryReport("rep_1", ReportKind.RESULT, "n1", "train", "a1", "m-1", 2, 4, 8.0, command="cmd_1")


def test_records_survive_json() -> None:
    phase = replace(REPORT, kind=ReportKind.PHASE, phase=RecoveryPhase.OPTIMIZER, duration_ms=1.5)
    for record in (MEMBER, replace(REPORT, outcome=OrderOutcome.LOST), phase):
        assert load_json(type(record), dump_json(record)) == record


def test_a_report_of_an_older_agent_says_no_try() -> None:
    raw = json.loads(dump_json(replace(REPORT, attempt_no=1)))
    assert raw.pop("attempt_no") == 1
    assert load_json(RecoveryReport, json.dumps(raw).encode()) == replace(REPORT, attempt_no=-1)


def test_the_key_of_a_member_is_none_of_a_node_or_communicator() -> None:
    assert member_key("train", "m-1") == "train:member:m-1"


def test_a_status_is_either_open_or_over() -> None:
    assert {status for status in ActionStatus if not status.is_over} == {
        ActionStatus.PROPOSED, ActionStatus.APPROVED, ActionStatus.DISPATCHED, ActionStatus.OBSERVING,
    }  # fmt: skip
    assert all(not status.is_over for status in ActionStatus if status.is_under_way)
