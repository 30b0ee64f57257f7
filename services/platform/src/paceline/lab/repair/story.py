"""One recovery as the topics told it: pure. All times are seconds since the fault; the clocks are those of
one machine, on which everything runs."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from paceline.contracts.commands import Command, CommandKind
from paceline.contracts.events import IncidentEvent
from paceline.contracts.recovery import OrderOutcome, RecoveryPhase
from paceline.contracts.registry import HealthEvent, HealthKind
from paceline.contracts.repair import RecoveryReport, ReportKind

FACTS = (HealthKind.PROCESS_EXIT, HealthKind.PROCESS_FROZEN)
REBUILDS = (CommandKind.REBUILD, CommandKind.RETRY, CommandKind.SWITCH)
PHASES = (
    RecoveryPhase.RENDEZVOUS,
    RecoveryPhase.PARAMETERS,
    RecoveryPhase.OPTIMIZER,
    RecoveryPhase.RESUME,
    RecoveryPhase.FIRST_STEP,
)
Told = HealthEvent | Command | RecoveryReport | IncidentEvent


@dataclass(frozen=True)
class Seen:
    """A record of a topic, and when its sender wrote it (unix seconds)."""

    at_s: float
    value: Told


@dataclass(frozen=True)
class PhaseTime:
    """`done_s`: when the last member had told of it; `took_s`: the longest, by the members' clocks."""

    done_s: float
    took_s: float


@dataclass(frozen=True)
class Story:
    """None where the topics do not tell of it (yet)."""

    cause: str = ""  # the health event that began it
    message: str = ""
    detected_s: float | None = None
    fence_ordered_s: float | None = None  # None as well where the exit that was seen is the fence
    fenced_s: float | None = None
    ordered_s: float | None = None  # the newest order to build a generation that the first full step follows
    orders: int = 0  # to build one; more than one: a try failed, or somebody else was lost
    generation: int = 0
    joiner: str = ""  # the supervisor that takes the place
    phases: dict[RecoveryPhase, PhaseTime] | None = None
    resumed_s: float | None = None  # first step of the full world
    step: int = -1
    replayed: int = 0
    fell_back: str = ""  # why the job was given up
    incident: IncidentEvent | None = None  # the newest event of it

    @property
    def is_over(self) -> bool:
        return self.resumed_s is not None or bool(self.fell_back)


def tell(seen: Iterable[Seen], fault_s: float, ranks: int) -> Story:
    """The recovery of a job with `ranks` ranks from a fault at `fault_s`, unix seconds."""
    after = sorted((one for one in seen if one.at_s >= fault_s - 0.01), key=lambda one: one.at_s)
    facts = [v for one in after if isinstance(v := one.value, HealthEvent) and v.kind in FACTS]
    commands = [(one.at_s, v) for one in after if isinstance(v := one.value, Command)]
    reports = [v for one in after if isinstance(v := one.value, RecoveryReport)]
    incidents = [v for one in after if isinstance(v := one.value, IncidentEvent)]
    first = min(facts, key=lambda fact: fact.at_unix_s, default=None)
    fences = [(at_s, each) for at_s, each in commands if each.kind is CommandKind.FENCE]
    builds = [(at_s, each) for at_s, each in commands if each.kind in REBUILDS]
    fallbacks = [each for _, each in commands if each.kind is CommandKind.FALLBACK]
    # The newest one that made a step, whatever was ordered after that; else the newest.
    opened = sorted({each.generation for _, each in builds}, reverse=True) or [0]
    told = {each: _phases(reports, each, fault_s, ranks) for each in opened}
    generation = next((each for each in opened if RecoveryPhase.FIRST_STEP in told[each]), opened[0])
    phases = told[generation]
    last = phases.get(RecoveryPhase.FIRST_STEP)
    followed = [one for one in builds if last is None or one[0] - fault_s <= last.done_s] or builds
    steps = [report for report in reports if report.phase is RecoveryPhase.FIRST_STEP]
    return Story(
        cause="" if first is None else first.kind.value,
        message="" if first is None else f"rank {first.rank}: {first.message}",
        detected_s=None if first is None else first.at_unix_s - fault_s,
        fence_ordered_s=fences[0][0] - fault_s if fences else None,
        fenced_s=_fenced_s(fences, facts, reports, fault_s),
        ordered_s=followed[-1][0] - fault_s if followed else None,
        orders=len({(each.generation, each.arguments.get("attempt_no")) for _, each in builds}),
        generation=generation,
        joiner=followed[-1][1].arguments.get("joiner", "") if followed else "",
        phases=phases,
        resumed_s=None if last is None else last.done_s,
        step=max((report.step for report in steps), default=-1),
        replayed=max((report.replayed for report in steps), default=0),
        fell_back=next((each.arguments.get("reason", "?") for each in fallbacks), ""),
        incident=incidents[-1] if incidents else None,
    )  # fmt: skip


def _phases(
    reports: Sequence[RecoveryReport], generation: int, fault_s: float, ranks: int
) -> dict[RecoveryPhase, PhaseTime]:
    """Phases of `generation` that every member has told of."""
    found = {}
    for phase in PHASES:
        told = [each for each in reports if each.phase is phase and each.generation == generation > 0]
        if len({each.member for each in told}) >= ranks:
            took_s = max(each.duration_ms for each in told) / 1e3
            found[phase] = PhaseTime(max(each.at_unix_s for each in told) - fault_s, took_s)
    return found


def _fenced_s(
    fences: Sequence[tuple[float, Command]],
    facts: Sequence[HealthEvent],
    reports: Sequence[RecoveryReport],
    fault_s: float,
) -> float | None:
    """When the end of whoever was to leave was proven: the answer to a fence, or an exit that was seen."""
    ordered = {each.id for _, each in fences}
    proofs = [
        report.at_unix_s
        for report in reports
        if report.kind is ReportKind.RESULT
        and report.command in ordered
        and report.outcome is OrderOutcome.DONE
    ]
    proofs += [fact.at_unix_s for fact in facts if fact.kind is HealthKind.PROCESS_EXIT]
    return min(proofs) - fault_s if proofs else None
