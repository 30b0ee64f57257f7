"""Named scenarios: a long job, and the ones whose result the papers state."""

from collections.abc import Mapping
from types import MappingProxyType

from paceline.analysis.economics.scenario import PHOENIX, TRAINMOVER, Scenario

_PLAIN = "left out: this scenario repeats a paper's division and nothing else"
_NOTHING_ELSE = {
    "restart.detect_s": 0.0,
    "restart.reschedule_s": 0.0,
    "restart.planned_save_s": 0.0,
    "hot_swap.detect_s": 0.0,
    "hot_swap.overhead_share": 0.0,
    "hot_swap.both_lost_share": 0.0,
    "hot_swap.standbys": 100.0,
    "hot_swap.machine_gpus": 0.0,
}


def _plain(name: str, title: str, arrivals: str) -> Scenario:
    return Scenario(name, title, arrivals=arrivals).with_values(_NOTHING_ELSE, _PLAIN)


def phoenix(failure_every_s: float = 10_800.0) -> Scenario:
    """100,000 steps of 0.9 s, a checkpoint every 1,000, 150 s against 31 s."""
    plain = _plain("phoenix", "cost of a failure with checkpoints and with a copy of each step", "training")
    derived = f"{PHOENIX} states no step time; 18.8 times follows from 0.85 to 0.95 s"
    return (
        plain.with_values({"job.step_s": 0.9}, derived)
        .with_values({"restart.down_s": 150.0}, f"{PHOENIX}: restart about 150 s")
        .with_values({"restart.checkpoint_steps": 1000}, f"{PHOENIX}: a checkpoint every 1,000 steps")
        .with_values({"hot_swap.swap_s": 31.0}, f"{PHOENIX}: recovery 29.8 to 32.6 s")
        .with_values({"job.failure_every_s": failure_every_s}, "swept: the paper states no rate")
        .with_values({"job.planned_every_s": 0.0}, _PLAIN)
    )


def rebalance() -> Scenario:
    """A machine is moved every 10 minutes of wall time."""
    return (
        _plain("rebalance", "a planned replacement every 10 minutes on 1,024 GPUs", "every")
        .with_values(
            {"job.gpus": 1024, "job.planned_every_s": 600.0}, f"{TRAINMOVER}: rebalanced every 10 min"
        )
        .with_values({"job.failure_every_s": 0.0}, _PLAIN)
        .with_values({"job.step_s": 1.0}, _PLAIN)
        .with_values(
            {"hot_swap.planned_s": 18.0}, f"{TRAINMOVER}: expected < 20 s; ETTR 0.97 is 18 s in 600 s"
        )
        .with_values({"hot_swap.refill_s": 0.0}, f"{TRAINMOVER}: the machine that was left comes back")
        .with_values(
            {"restart.planned_down_s": 348.0}, f"{TRAINMOVER}: ETTR 0.42 of Megatron is 348 s in 600 s"
        )
    )


def at_scale(name: str, gpus: int, failure_every_min: float) -> Scenario:
    """ETTR that is lost to the start of the framework alone, as TrainMover projects it."""
    return (
        _plain(name, f"restarts of {gpus:,} GPUs", "every")
        .with_values({"job.gpus": gpus}, TRAINMOVER)
        .with_values(
            {"job.failure_every_s": failure_every_min * 60},
            f"{TRAINMOVER}: its loss is that of 267 s in {failure_every_min:g} min",
        )
        .with_values({"job.planned_every_s": 0.0, "job.step_s": 1.0, "restart.checkpoint_steps": 1}, _PLAIN)
        .with_values({"restart.down_s": 267.0}, f"{TRAINMOVER}: start of the framework 4.45 min")
    )


SCENARIOS: Mapping[str, Scenario] = MappingProxyType(
    {
        each.name: each
        for each in (
            Scenario("job", "a long job of 8,192 GPUs"),
            phoenix(),
            rebalance(),
            at_scale("64k", 65_536, 27),
            at_scale("128k", 131_072, 14),
        )
    }
)
