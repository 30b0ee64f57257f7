"""Runs a scenario under every policy and seed, and sums up."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from paceline.analysis.economics.policies import policies_of
from paceline.analysis.economics.scenario import Parameter, Scenario, UnusableScenario
from paceline.analysis.economics.timeline import Ledger, Run

SEEDS_MAX = 1000
POLICY_TITLES = {
    "restart": "restart from checkpoint",
    "survivors": "survivors go on (torchft-like)",
    "hot_swap": "hot swap (Paceline)",
}


@dataclass(frozen=True)
class Spread:
    """Over the seeds."""

    mean: float
    least: float
    most: float


@dataclass(frozen=True)
class Outcome:
    """One policy. Hours are GPU hours of the whole job; `lost_hours` is the sum of the five causes."""

    policy: str
    title: str
    ettr: Spread
    wall_h: Spread
    lost_hours: Spread
    down_hours: float
    replay_hours: float
    reduced_hours: float
    overhead_hours: float
    standby_hours: float
    failures: Spread
    planned: Spread
    replayed_steps: Spread
    replayed_steps_most: int  # at one failure, in any seed
    fallbacks: Spread
    waits: Spread


@dataclass(frozen=True)
class Report:
    scenario: str
    title: str
    arrivals: str
    seeds: int
    parameters: tuple[Parameter, ...]
    outcomes: tuple[Outcome, ...]

    def outcome(self, policy: str) -> Outcome:
        return next(each for each in self.outcomes if each.policy == policy)

    def as_json(self) -> dict[str, Any]:
        """Plain data: parameters with unit and source, one outcome for each policy."""
        return asdict(self)


def compare(scenario: Scenario, *, seeds: int = 20) -> Report:
    """Simulates `seeds` runs of each policy; all policies meet the same failures of a seed.

    UnusableScenario where a value is out of range."""
    if not 1 <= seeds <= SEEDS_MAX:
        raise UnusableScenario(f"seeds is {seeds}, expected 1 to {SEEDS_MAX}")
    scenario.check()
    outcomes = tuple(
        _sum_up(name, scenario, [simulate(scenario, name, seed) for seed in range(seeds)])
        for name in POLICY_TITLES
    )
    return Report(
        scenario=scenario.name,
        title=scenario.title,
        arrivals=scenario.arrivals,
        seeds=seeds,
        parameters=tuple(scenario.parameters()),
        outcomes=outcomes,
    )


def simulate(scenario: Scenario, policy: str, seed: int) -> Ledger:
    """One run of one policy."""
    return Run(scenario, seed).play(policies_of(scenario)[policy])


def _sum_up(policy: str, scenario: Scenario, ledgers: Sequence[Ledger]) -> Outcome:
    gpu_hours = scenario.job.gpus / 3600

    def spread(of: Callable[[Ledger], float]) -> Spread:
        values = [of(ledger) for ledger in ledgers]
        return Spread(sum(values) / len(values), min(values), max(values))

    def hours(of: Callable[[Ledger], float]) -> float:
        return spread(of).mean * gpu_hours

    return Outcome(
        policy=policy,
        title=POLICY_TITLES[policy],
        ettr=spread(lambda ledger: ledger.useful_s / ledger.wall_s),
        wall_h=spread(lambda ledger: ledger.wall_s / 3600),
        lost_hours=spread(
            lambda ledger: (ledger.wall_s - ledger.useful_s) * gpu_hours + ledger.standby_gpu_s / 3600
        ),
        down_hours=hours(lambda ledger: ledger.down_s),
        replay_hours=hours(lambda ledger: ledger.replay_s),
        reduced_hours=hours(lambda ledger: ledger.reduced_s),
        overhead_hours=hours(lambda ledger: ledger.overhead_s),
        standby_hours=spread(lambda ledger: ledger.standby_gpu_s / 3600).mean,
        failures=spread(lambda ledger: ledger.failures),
        planned=spread(lambda ledger: ledger.planned),
        replayed_steps=spread(lambda ledger: ledger.replayed_steps),
        replayed_steps_most=max(ledger.replayed_steps_most for ledger in ledgers),
        fallbacks=spread(lambda ledger: ledger.fallbacks),
        waits=spread(lambda ledger: ledger.waits),
    )
