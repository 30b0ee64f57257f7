"""What the demo says: the one line for people, the one object for machines."""

from dataclasses import dataclass
from typing import Any

from paceline.contracts.events import IncidentEvent
from paceline.contracts.verdicts import Verdict
from paceline.lab.demo.watch import is_right, root_ranks


@dataclass(frozen=True)
class Times:
    """Seconds since the beginning of the stall, None where it did not happen."""

    verdict_s: float | None
    incident_s: float | None
    webhook_s: float | None


@dataclass(frozen=True)
class Outcome:
    """One run of the demo."""

    fault: str
    rank: int
    seed: int
    first_step_s: float
    event: IncidentEvent | None
    times: Times
    webhook_id: str = ""
    webhook_signed: bool = False

    @property
    def right(self) -> bool:
        return self.event is not None and is_right(self.event.verdict, self.fault, self.rank)

    def as_json(self) -> dict[str, Any]:
        """The last line of `--json`."""
        event, times = self.event, self.times
        return {
            "fault": {"kind": self.fault, "rank": self.rank, "seed": self.seed},
            "right": self.right,
            "verdict": None if event is None else _verdict(event.verdict),
            "stall_to_verdict_s": times.verdict_s,
            "stall_to_incident_s": times.incident_s,
            "incident": None
            if event is None
            else {"id": event.incident, "number": event.number, "url": event.url, "revision": event.revision},
            "webhook": None
            if times.webhook_s is None
            else {
                "id": self.webhook_id,
                "signed": self.webhook_signed,
                "stall_to_webhook_s": times.webhook_s,
            },
            "first_step_s": self.first_step_s,
        }


def line_of(event: IncidentEvent) -> str:
    """`H1  rank 5 never entered all_reduce round 412 of tp_1; ... -> INC-1 <url>`."""
    verdict = event.verdict
    return f"{verdict.verdict_class.value}  {verdict.summary.rstrip('.')} -> INC-{event.number} {event.url}"


def _verdict(verdict: Verdict) -> dict[str, Any]:
    return {
        "class": verdict.verdict_class.value,
        "sub_reason": verdict.sub_reason.value,
        "ranks": root_ranks(verdict),
        "confidence": verdict.confidence,
        "victims": verdict.victims_count,
        "summary": verdict.summary,
    }
