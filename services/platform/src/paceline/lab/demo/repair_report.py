"""What the demo of a repair says: a line for each phase, and one object for machines."""

from dataclasses import dataclass
from typing import Any

from paceline.contracts.recovery import RecoveryPhase
from paceline.contracts.repair import ActionStatus, RepairMode
from paceline.lab.repair.story import Story
from paceline.store.models.repair import RepairAction
from paceline.trainer.testing import Fault

RESTORE = (RecoveryPhase.PARAMETERS, RecoveryPhase.OPTIMIZER)


@dataclass(frozen=True)
class Result:
    """One run. `unlike` says how the result differs from an uninterrupted run; `action` is the platform's own
    record: in mode observe of the proposal, else of the newest action."""

    mode: RepairMode
    fault: Fault
    seed: int
    steps: int
    story: Story
    unlike: str
    action: RepairAction | None

    @property
    def right(self) -> bool:
        """Whether the job resumed with nothing lost; in mode observe whether a repair was proposed."""
        if self.action is None or self.mode is RepairMode.OBSERVE:
            return self.action is not None
        is_proven = self.action.status == ActionStatus.SUCCEEDED.value
        return is_proven and self.story.resumed_s is not None and not self.unlike

    def as_json(self) -> dict[str, Any]:
        """The last line of `--json`."""
        story, action = self.story, self.action
        fault = self.fault
        return {
            "fault": {"kind": fault.kind, "rank": fault.rank, "phase": fault.phase, "step": fault.step}
            | {"seed": self.seed},
            "mode": self.mode.value,
            "right": self.right,
            "action": None
            if action is None
            else {
                "id": action.id, "kind": action.kind, "cause": action.cause, "status": action.status,
                "reason": action.reason, "ranks": action.ranks,
            },
            "detected_s": story.detected_s,
            "fenced_s": story.fenced_s,
            "ordered_s": story.ordered_s,
            "phases": {name: {"done_s": done, "took_s": took} for name, done, took in phases_of(story)},
            "resumed_s": story.resumed_s,
            "replayed": story.replayed,
            "equal": self.mode is RepairMode.AUTO and not self.unlike,
            "different": self.unlike,
            "incident": None if story.incident is None else story.incident.incident,
        }  # fmt: skip


def lines_of(result: Result) -> list[str]:
    """`detect      0.040 s  rank 2 is gone: signal 9`, and so on; times are since the fault."""
    story, action = result.story, result.action
    lines = []
    if story.detected_s is not None:
        lines.append(f"detect     {story.detected_s:6.3f} s  {story.message or story.cause}")
    if action is not None:
        lines.append(
            f"action              {action.kind}, {action.message}: {action.status} ({action.reason})"
        )
    if result.mode is RepairMode.OBSERVE:
        words = "no repair was proposed" if action is None else "only proposed; --mode auto carries it out"
        return [*lines, f"result              {words}", *_incident(story)]
    if story.fence_ordered_s is not None:
        lines.append(f"order      {story.fence_ordered_s:6.3f} s  fence")
    if story.fenced_s is not None:
        how = (
            "the exit that its supervisor saw"
            if story.fence_ordered_s is None
            else "killed by its supervisor"
        )
        lines.append(f"fence      {story.fenced_s:6.3f} s  {how}")
    if story.ordered_s is not None:
        joins = f" with {story.joiner} in its place" if story.joiner else ""
        lines.append(f"order      {story.ordered_s:6.3f} s  generation {story.generation}{joins}")
    for name, done_s, took_s in phases_of(story):
        lines.append(f"{name:11}{done_s:6.3f} s  took {took_s:.3f} s")
    return [*lines, _end(result), *_incident(story)]


def phases_of(story: Story) -> list[tuple[str, float, float]]:
    """(name, done, took) of rendezvous, restore and first step, as far as all members have told of them."""
    phases = story.phases or {}
    found = []
    if (met := phases.get(RecoveryPhase.RENDEZVOUS)) is not None:
        found.append(("rendezvous", met.done_s, met.took_s))
    restored = [phases[phase] for phase in RESTORE if phase in phases]
    if restored:
        took_s = sum(phase.took_s for phase in restored)
        found.append(("restore", max(phase.done_s for phase in restored), took_s))
    if (first := phases.get(RecoveryPhase.FIRST_STEP)) is not None:
        found.append(("first step", first.done_s, first.took_s))
    return found


def _end(result: Result) -> str:
    story = result.story
    if story.fell_back:
        return f"result              not repaired: {story.fell_back}"
    if story.resumed_s is None:
        return "result             the job did not resume"
    again = "1 step" if story.replayed == 1 else f"{story.replayed} steps"
    same = "equal to the bit with an uninterrupted run"
    words = f"not equal with an uninterrupted run: {result.unlike}" if result.unlike else same
    return (
        f"resumed    {story.resumed_s:6.3f} s  {again} run again; {result.steps} steps, "
        f"losses and parameters {words}"
    )


def _incident(story: Story) -> list[str]:
    event = story.incident
    if event is None:
        return []
    verdict = event.verdict
    return [f"{verdict.verdict_class.value}  {verdict.summary.rstrip('.')} -> INC-{event.number} {event.url}"]
