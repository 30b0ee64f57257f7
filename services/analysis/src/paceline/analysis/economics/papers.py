"""The papers' figures beside the same figures by formula and by simulation."""

from dataclasses import dataclass

from paceline.analysis.economics.arithmetic import ettr, lost_share, recovery_ratio
from paceline.analysis.economics.report import simulate
from paceline.analysis.economics.scenario import PHOENIX, TRAINMOVER, Scenario
from paceline.analysis.economics.scenarios import SCENARIOS, phoenix

PHOENIX_SWEEP_S = (3600.0, 10_800.0, 43_200.0)  # between failures; the paper states no rate
_SEEDS = 20


@dataclass(frozen=True)
class Check:
    claim: str
    unit: str
    paper: float
    formula: float
    simulated: float
    source: str


def check_papers(seeds: int = _SEEDS) -> tuple[Check, ...]:
    """Every figure that the economics have to reproduce."""
    job, restart, swap = (part := SCENARIOS["phoenix"]).job, part.restart, part.hot_swap
    ratio = recovery_ratio(
        step_s=job.step_s,
        checkpoint_steps=restart.checkpoint_steps,
        restart_s=restart.down_s,
        swap_s=swap.swap_s,
    )
    simulated = [recovery_ratio_simulated(phoenix(every_s), seeds) for every_s in PHOENIX_SWEEP_S]
    sweep = ", ".join(f"{every_s / 3600:g}" for every_s in PHOENIX_SWEEP_S)
    return (
        Check(
            f"a failure costs so many times more with checkpoints (failures every {sweep} h: "
            f"{', '.join(f'{value:.1f}' for value in simulated)})",
            "times", 18.8, ratio, simulated[1], f"{PHOENIX}; at a step of 0.9 s",
        ),
        _ettr("rebalance", "hot_swap", 0.97, SCENARIOS["rebalance"].hot_swap.planned_s, 600.0),
        _ettr("rebalance", "restart", 0.42, SCENARIOS["rebalance"].restart.planned_down_s, 600.0),
        _loss("64k", 16.47),
        _loss("128k", 31.79),
    )  # fmt: skip


def recovery_ratio_simulated(scenario: Scenario, seeds: int) -> float:
    """Time lost to failures under restart over that under hot swap, all seeds together."""
    costs = []
    for policy in ("restart", "hot_swap"):
        ledgers = [simulate(scenario, policy, seed) for seed in range(seeds)]
        failures = sum(ledger.failures for ledger in ledgers)
        costs.append(sum(ledger.down_s + ledger.replay_s for ledger in ledgers) / max(failures, 1))
    return costs[0] / costs[1]


def _ettr(scenario: str, policy: str, paper: float, down_s: float, every_s: float) -> Check:
    ledger = simulate(SCENARIOS[scenario], policy, 0)
    return Check(
        f"ETTR at {down_s:g} s every {every_s / 60:g} min", "of wall time", paper, ettr(down_s, every_s),
        ledger.useful_s / ledger.wall_s, TRAINMOVER,
    )  # fmt: skip


def _loss(scenario: str, paper: float) -> Check:
    settings = SCENARIOS[scenario]
    ledger = simulate(settings, "restart", 0)
    down_s, every_s = settings.restart.down_s, settings.job.failure_every_s
    return Check(
        f"ETTR lost at {down_s:g} s every {every_s / 60:g} min on {settings.job.gpus:,.0f} GPUs", "%", paper,
        100 * lost_share(down_s, every_s), 100 * (1 - ledger.useful_s / ledger.wall_s), TRAINMOVER,
    )  # fmt: skip
