import json

import pytest

from paceline.contracts.events import EventType, IncidentEvent, IncidentStatus, Severity
from paceline.contracts.verdicts import (
    Action,
    ActionKind,
    Coverage,
    Operation,
    Owner,
    Root,
    RootKind,
    SubReason,
    Verdict,
    VerdictClass,
)
from paceline.lab.demo.report import Outcome, Times, line_of
from paceline.lab.demo.watch import Seen, Watch, is_right

SUMMARY = "rank 5 never entered all_reduce round 412 of tp_1; 7 ranks wait on it through 3 communicators"


def _verdict(kind: VerdictClass = VerdictClass.H1, ranks: tuple[int, ...] = (5,)) -> Verdict:
    return Verdict(
        verdict_class=kind,
        sub_reason=SubReason.MISSING_ENTER,
        roots=tuple(Root(RootKind.RANK, rank=rank) for rank in ranks),
        victims=(0, 1),
        victims_count=7,
        operation=Operation("00" * 8, "tp_1", "all_reduce", 412, 2),
        owner=Owner.USER_CODE,
        action=Action(ActionKind.FIX_CODE),
        confidence=0.9,
        coverage=Coverage(8, 8, 13, 13),
        evidence=(),
        summary=SUMMARY,
    )


def _event(verdict: Verdict) -> IncidentEvent:
    return IncidentEvent(
        id="evt_1",
        type=EventType.INCIDENT_OPENED,
        incident="inc_1",
        number=1,
        job="demo-1",
        attempt="r0",
        status=IncidentStatus.OPEN,
        severity=Severity.CRITICAL,
        revision=1,
        verdict=verdict,
        opened_unix_s=1.0,
        at_unix_s=1.0,
        actor="system",
        url="http://127.0.0.1:8300/incidents/inc_1",
    )


def test_the_line() -> None:
    assert line_of(_event(_verdict())) == f"H1  {SUMMARY} -> INC-1 http://127.0.0.1:8300/incidents/inc_1"


@pytest.mark.parametrize(
    ("kind", "ranks", "right"),
    [
        (VerdictClass.H1, (5,), True),
        (VerdictClass.H1, (4,), False),
        (VerdictClass.H1, (4, 5), False),
        (VerdictClass.H3, (5,), False),
        (VerdictClass.H1, (), False),
    ],
)
def test_only_class_and_rank_together_are_right(
    kind: VerdictClass, ranks: tuple[int, ...], right: bool
) -> None:
    assert is_right(_verdict(kind, ranks), "h1", 5) is right


def test_json_of_a_run_without_a_verdict_is_not_right() -> None:
    outcome = Outcome("h2", 3, 42, 9.5, None, Times(None, None, None))
    text = json.loads(json.dumps(outcome.as_json()))

    assert text["right"] is False
    assert text["verdict"] is text["incident"] is text["webhook"] is None
    assert text["fault"] == {"kind": "h2", "rank": 3, "seed": 42}


def test_json_of_a_good_run() -> None:
    event = _event(_verdict())
    outcome = Outcome("h1", 5, 42, 9.5, event, Times(7.25, 7.5, 7.75), "evt_1", True)
    text = json.loads(json.dumps(outcome.as_json()))

    assert text["right"] is True
    assert text["verdict"]["class"] == "H1"
    assert text["verdict"]["ranks"] == [5]
    assert text["stall_to_verdict_s"] == 7.25
    assert text["webhook"] == {"id": "evt_1", "signed": True, "stall_to_webhook_s": 7.75}
    assert text["incident"]["number"] == 1


async def test_decision_passes_over_an_inconclusive_first_event() -> None:
    watch = Watch("demo-1")
    open_question = _event(_verdict(VerdictClass.INCONCLUSIVE, ()))
    decided = _event(_verdict())
    watch.incidents += [Seen(1, open_question), Seen(2, decided)]

    found = await watch.wait_for_decision(0.1)

    assert found is not None
    assert found.received_ns == 2


async def test_no_decision_in_time_is_none() -> None:
    assert await Watch("demo-1").wait_for_decision(0.02) is None
