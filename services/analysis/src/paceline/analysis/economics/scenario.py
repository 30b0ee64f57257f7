"""The parameters of a comparison, each with unit and source."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

TRAINMOVER = "TrainMover, arXiv 2412.12636"
PHOENIX = "PHOENIX (DEADPOOL), arXiv 2607.01646"
ASSUMED = "assumed"
ARRIVALS = ("exponential", "training", "every")
STRETCH_MAX = 5.0  # intervals between failures: passed without one in 1 of 148 tries
FAILURES_MAX = 100_000  # of one run: what is beyond is refused, it would not end in a useful time


class UnusableScenario(ValueError):
    """A parameter that makes no sense; the message names it, its value and what was expected."""


def _number(default: float, unit: str, source: str) -> Any:
    return field(default=default, metadata={"unit": unit, "source": source})


@dataclass(frozen=True)
class Job:
    """The job and what happens to it. An interval of 0 means never."""

    gpus: float = _number(8192, "GPUs", f"{TRAINMOVER}: 8K GPUs")
    step_s: float = _number(5.0, "s", f"{ASSUMED}; say the step time of your job")
    steps: float = _number(100_000, "steps", f"{PHOENIX}: simulation of 100,000 steps")
    failure_every_s: float = _number(10_800, "s", f"{TRAINMOVER}: MTTF 3 h at 8K GPUs")
    planned_every_s: float = _number(96_120, "s", f"{TRAINMOVER}: expected to unexpected as 1 to 8.9")


@dataclass(frozen=True)
class Restart:
    """Kill all, relaunch, load the newest checkpoint, do again what came after it."""

    checkpoint_steps: float = _number(200, "steps", f"{ASSUMED}: about 17 min; PHOENIX compares with 1,000")
    checkpoint_stall_s: float = _number(0.0, "s", f"{ASSUMED}: saved in the background, in its favour")
    down_s: float = _number(388, "s", f"{TRAINMOVER}: restart of 8,192 GPUs 6.47 min, without detection")
    reschedule_s: float = _number(120, "s", f"{TRAINMOVER}: 2 min of rescheduling in its projection")
    detect_s: float = _number(5.0, "s", f"{ASSUMED}: an exit is seen at once, its grace is 5 s")
    planned_down_s: float = _number(388, "s", f"{ASSUMED}: as a failure, but saved first")
    planned_save_s: float = _number(12, "s", f"{TRAINMOVER}: save and restart about 400 s, less 388 s")


@dataclass(frozen=True)
class SurvivorsGoOn:
    """A replica group that fails leaves the quorum; the others go on with a smaller batch until a
    replacement has fetched the state from a peer. Every change of the quorum makes new communicators."""

    groups: float = _number(64, "replica groups", f"{ASSUMED}: 128 GPUs hold one replica")
    groups_min: float = _number(32, "replica groups", f"{ASSUMED}: half of them")
    detect_s: float = _number(5.1, "s", "torchft 0.2.0, measured on gloo: heartbeat limit 5 s, pause 5.1 s")
    rebuild_s: float = _number(30, "s", f"{ASSUMED}: new communicators cost what they cost a hot swap")
    replace_s: float = _number(387, "s", f"{TRAINMOVER}: framework start 4.45 min, 2 min of rescheduling")
    heal_s: float = _number(5.4, "s", "torchft nightly, measured on gloo: 5.4 to 9.3 s, the least of them")
    overhead_share: float = _number(0.0, "of a step", f"{ASSUMED}: its quorum costs nothing, in its favour")


@dataclass(frozen=True)
class HotSwap:
    """Every step is protected in memory; a warm standby takes the failed machine's place."""

    swap_s: float = _number(30, "s", f"{TRAINMOVER}: unexpected < 30 s at 1,024 GPUs, without detection")
    detect_s: float = _number(5.0, "s", f"{ASSUMED}: as for a restart")
    planned_s: float = _number(20, "s", f"{TRAINMOVER}: expected < 20 s at 1,024 GPUs")
    overhead_share: float = _number(0.01, "of a step", "bar of Paceline's own measurement: within 1%")
    commit_lag_share: float = _number(
        0.5, "of a step", f"{ASSUMED}: acknowledged in the middle of the next step"
    )
    both_lost_share: float = _number(
        0.01, "of failures", f"{ASSUMED}: a rank and the neighbour that holds its copy are lost together"
    )
    standbys: float = _number(2, "machines", f"{TRAINMOVER}: 1 or 2 suffice")
    machine_gpus: float = _number(8, "GPUs", "8 GPUs in a machine")
    refill_s: float = _number(537, "s", f"{TRAINMOVER}: 2 min of rescheduling, start 267 s, warm-up 150 s")


@dataclass(frozen=True)
class Parameter:
    name: str
    value: float
    unit: str
    source: str


@dataclass(frozen=True)
class Scenario:
    """A job, three policies, and how failures come.

    `arrivals`: "exponential" in wall time, also while the job is down; "training", exponential in the
    time that trains, nothing fails while down; "every", one at each interval of wall time, as papers
    divide. `sources` holds, by dotted name, the source of each value that is not its default.
    """

    name: str
    title: str
    job: Job = field(default_factory=Job)
    restart: Restart = field(default_factory=Restart)
    survivors: SurvivorsGoOn = field(default_factory=SurvivorsGoOn)
    hot_swap: HotSwap = field(default_factory=HotSwap)
    arrivals: str = "exponential"
    sources: Mapping[str, str] = field(default_factory=dict)

    def parameters(self) -> Iterator[Parameter]:
        """Every number that the comparison uses."""
        for part_name in PARTS:
            part = getattr(self, part_name)
            for each in fields(part):
                name = f"{part_name}.{each.name}"
                source = self.sources.get(name, each.metadata["source"])
                yield Parameter(name, getattr(part, each.name), each.metadata["unit"], source)

    def with_values(self, values: Mapping[str, float], source: str) -> "Scenario":
        """A copy with other values by dotted name. UnusableScenario where a name is unknown."""
        changed = self
        for name, value in values.items():
            part_name, _, field_name = name.partition(".")
            part = getattr(changed, part_name, None) if part_name in PARTS else None
            if part is None or field_name not in {each.name for each in fields(part)}:
                known = ", ".join(parameter.name for parameter in self.parameters())
                raise UnusableScenario(f"there is no parameter {name!r}; known: {known}")
            part = replace(part, **{field_name: float(value)})
            sources = {**changed.sources, name: source}
            changed = replace(changed, **{part_name: part, "sources": sources})
        return changed

    def check(self) -> None:
        """UnusableScenario where a value is out of range."""
        for parameter in self.parameters():
            _check_range(parameter)
        if self.arrivals not in ARRIVALS:
            raise UnusableScenario(f"arrivals is {self.arrivals!r}, expected one of {', '.join(ARRIVALS)}")
        if self.survivors.groups_min > self.survivors.groups:
            raise UnusableScenario(
                f"survivors.groups_min is {self.survivors.groups_min:g}, "
                f"at most survivors.groups = {self.survivors.groups:g}"
            )
        self._check_ends()

    def _check_ends(self) -> None:
        every_s = self.job.failure_every_s
        if every_s <= 0:
            return
        down_s = self.restart.detect_s + self.restart.down_s + self.restart.reschedule_s
        longest_s = max(
            down_s + self.restart.checkpoint_steps * self.job.step_s,
            self.survivors.detect_s + self.survivors.rebuild_s + self.survivors.heal_s + self.job.step_s,
            self.hot_swap.detect_s + self.hot_swap.swap_s + 2 * self.job.step_s,
        )
        # exponential arrivals: the mean time to pass a stretch grows with exp(stretch / interval)
        if self.arrivals != "every" and longest_s / every_s > STRETCH_MAX:
            raise UnusableScenario(
                f"job.failure_every_s is {every_s:g}, expected at least {longest_s / STRETCH_MAX:g}: "
                f"{longest_s:g} s to recover and reach the next saved step would hardly ever pass in peace"
            )
        if self.arrivals == "every" and down_s >= every_s:
            raise UnusableScenario(
                f"job.failure_every_s is {every_s:g}, expected more than the {down_s:g} s of a restart"
            )
        if self.job.steps * self.job.step_s / every_s > FAILURES_MAX:
            raise UnusableScenario(
                f"job.failure_every_s is {every_s:g}: more than {FAILURES_MAX} failures in this job"
            )


PARTS = ("job", "restart", "survivors", "hot_swap")
_AT_LEAST_ONE = (
    "job.gpus",
    "job.steps",
    "restart.checkpoint_steps",
    "survivors.groups",
    "survivors.groups_min",
)
_WHOLE = (*_AT_LEAST_ONE, "hot_swap.standbys", "hot_swap.machine_gpus")
_POSITIVE = ("job.step_s",)


def _check_range(parameter: Parameter) -> None:
    name, value = parameter.name, parameter.value
    if not math.isfinite(value):
        raise UnusableScenario(f"{name} is {value}, expected a number")
    least = 1.0 if name in _AT_LEAST_ONE else 0.0
    if value < least or (name in _POSITIVE and value <= 0):
        raise UnusableScenario(
            f"{name} is {value:g}, expected {'more than' if name in _POSITIVE else 'at least'} {least:g}"
        )
    if name in _WHOLE and value != int(value):
        raise UnusableScenario(f"{name} is {value:g}, expected a whole number")
    if name.endswith("_share") and value > 1:
        raise UnusableScenario(f"{name} is {value:g}, expected a share from 0 to 1")


def scenario_of_job(
    base: Scenario,
    *,
    ranks: int,
    nodes: int,
    step_s: float | None = None,
    replicas: int | None = None,
    failure_every_s: float | None = None,
) -> Scenario:
    """`base` with what is known of one job: its size, its measured step, its data-parallel replicas and,
    where its history tells, the seconds between failures; else the interval of `base` scaled to its size.
    What is not known stays as `base` assumes it, and says so."""
    ranks, nodes = max(ranks, 1), max(nodes, 1)
    known = base.with_values(
        {"job.gpus": ranks, "hot_swap.machine_gpus": -(-ranks // nodes)},
        "registered ranks and nodes of this job",
    ).with_values(
        {"hot_swap.standbys": min(base.hot_swap.standbys, nodes)},
        f"{ASSUMED}: no more than the job has nodes",
    )
    if step_s is not None:
        known = known.with_values({"job.step_s": step_s}, "measured in this job")
    groups, source = (
        (replicas, "mesh of this job") if replicas else (nodes, f"{ASSUMED}: each node holds a replica")
    )
    known = known.with_values({"survivors.groups": groups}, source)
    known = known.with_values({"survivors.groups_min": max(1, groups // 2)}, f"{ASSUMED}: half of them")
    if failure_every_s is None:
        scaled = base.job.failure_every_s * base.job.gpus / ranks
        source = f"{TRAINMOVER}: MTTF {base.job.failure_every_s / 3600:g} h at {base.job.gpus:g} GPUs, scaled"
        planned = base.job.planned_every_s * base.job.gpus / ranks
        return known.with_values({"job.failure_every_s": scaled, "job.planned_every_s": planned}, source)
    return known.with_values({"job.failure_every_s": failure_every_s}, "given")
