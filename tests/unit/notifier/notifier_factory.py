"""Incident events for the tests of the notifier."""

from dataclasses import replace

from paceline.contracts.events import EventType, IncidentEvent, IncidentStatus, Severity
from paceline.contracts.verdicts import (
    Action,
    ActionKind,
    Coverage,
    Evidence,
    Operation,
    Owner,
    Root,
    RootKind,
    SubReason,
    Verdict,
    VerdictClass,
)

VERDICT = Verdict(
    verdict_class=VerdictClass.H1,
    sub_reason=SubReason.MISSING_ENTER,
    roots=(Root(RootKind.RANK, rank=5, node="node-1"),),
    victims=(0, 1, 2, 3, 4, 6, 7),
    victims_count=7,
    operation=Operation("00000000000000ab", "tp_1", "all_reduce", 412, 2),
    owner=Owner.USER_CODE,
    action=Action(ActionKind.FIX_CODE, "rank 5"),
    confidence=0.97,
    coverage=Coverage(8, 8, 5, 5),
    evidence=(Evidence("h1.not_entered", "rank 5 is at round 411, its peers at 412"),),
    summary="rank 5 never entered all_reduce round 412 of tp_1",
)
OPENED = IncidentEvent(
    id="evt_1",
    type=EventType.INCIDENT_OPENED,
    incident="inc_1",
    number=1,
    job="llama",
    attempt="a1",
    status=IncidentStatus.OPEN,
    severity=Severity.CRITICAL,
    revision=1,
    verdict=VERDICT,
    opened_unix_s=1_767_323_045.0,
    at_unix_s=1_767_323_045.0,
    actor="system",
    url="http://127.0.0.1:8300/incidents/inc_1",
)


def resolved(event: IncidentEvent = OPENED, event_id: str = "evt_2") -> IncidentEvent:
    return replace(
        event,
        id=event_id,
        type=EventType.INCIDENT_RESOLVED,
        status=IncidentStatus.RESOLVED,
        at_unix_s=event.at_unix_s + 60,
    )


def with_class(verdict_class: VerdictClass, event: IncidentEvent = OPENED) -> IncidentEvent:
    return replace(event, verdict=replace(event.verdict, verdict_class=verdict_class))
