"""What a measurement says, and what it could not alternate: pure."""

from statistics import median
from typing import Any

from paceline.contracts.codes import DetailLevel
from paceline.contracts.detail import DetailReport
from paceline.lab.overhead.run import Outcome
from paceline.lab.overhead.samples import Unit
from paceline.lab.overhead.statistics import CONFIDENCE, PAIRS_MIN, Finding

NEVER = (
    "the probe itself: hook, calls of the plugin, preload shim and marker cannot be taken off a live job; "
    "start it once with PACELINE_DISABLED=1 for that"
)
WORDS = {
    Finding.TOO_FEW: f"too few pairs for an interval that can be trusted ({PAIRS_MIN} are needed)",
    Finding.NO_DIFFERENCE_SEEN: "no difference seen",
    Finding.SLOWER: "slower with the higher level",
    Finding.FASTER: "faster with the other level: look for what else changed meanwhile",
}


def lines(outcome: Outcome) -> list[str]:
    """For people."""
    plan, target, tracks = outcome.plan, outcome.target, outcome.tracks
    levels = f"{plan.base.name.lower()} -> {plan.raised.name.lower()}"
    told = [
        f"{target.name or target.job}, attempt {target.attempt}: {target.ranks} ranks on {len(target.nodes)} "
        f"nodes, {plan.pairs} pairs of blocks of {plan.block_s:g} s, order drawn (seed {plan.seed})"
    ]
    found = outcome.estimate
    if found is None:
        told.append(
            f"{levels}: nothing measured; too few {tracks.unit.value}s within a block (use a longer --block)"
        )
    else:
        base, raised = (median(pair[place] for pair in outcome.pairs) * 1e3 for place in (0, 1))
        told.append(
            f"{tracks.unit.value} time, {levels}: ratio {found.ratio:.4f} [{found.low:.4f}, {found.high:.4f}]"
            f" ({CONFIDENCE:.0%}, median of {found.pairs} paired ratios, bootstrap): {WORDS[found.finding]}"
        )
        told.append(f"{tracks.unit.value}: {base:.3f} ms -> {raised:.3f} ms")
    if tracks.unit is Unit.ROUND:
        told.append(
            "no steps in the samples (no torch hook, no step()): time per round of the busiest communicator"
        )
    return told + [f"not alternated: {reason}" for reason in not_alternated(outcome)]


def not_alternated(outcome: Outcome) -> list[str]:
    """What the figures do not speak of, each with its reason."""
    raised = _reports(outcome, is_base=False)
    base = _reports(outcome, is_base=True)
    found: list[str] = []
    processes = max((sum(report.processes for report in one) for one in raised), default=0)
    plugins = max((sum(report.plugin for report in one) for one in raised), default=0)
    if plugins < processes:
        found.append(
            f"{processes - plugins} of {processes} processes have no NCCL plugin: levels above rounds change "
            "nothing there"
        )
    if outcome.plan.raised >= DetailLevel.EDGES and plugins:
        for word, name in (("steps", "proxy steps"), ("kernels", "kernel events")):
            if name == "kernel events" and outcome.plan.raised < DetailLevel.FULL:
                continue
            least = min(sum(getattr(report, word) for report in one) for one in raised)
            if least < plugins:
                found.append(
                    f"{name} were off in up to {plugins - least} of {plugins} processes (budget, or not safe "
                    "with this NCCL: docs/nccl.md)"
                )
    if any(report.steps or report.kernels for one in base for report in one):
        found.append("the base had steps or kernels too (PACELINE_NCCL_TIER, a chained profiler, or a stall)")
    lowered = [sum(report.lowered for report in one) for one in base + raised]
    if lowered and max(lowered) > min(lowered):
        found.append("a budget lowered detail meanwhile (PACELINE_NCCL_BUDGET_PERCENT)")
    found += [f"node {node}: {words}" for node, words in list(outcome.refused.items())[:8]]
    if outcome.tracks.left_out:
        found.append(f"{outcome.tracks.left_out} samples found no room")
    return [*found, NEVER]


def _reports(outcome: Outcome, *, is_base: bool) -> list[list[DetailReport]]:
    return [reports for block, reports in outcome.reports if block.is_base is is_base and reports]


def as_object(outcome: Outcome) -> dict[str, Any]:
    """For programs."""
    found, plan = outcome.estimate, outcome.plan
    return {
        "job": outcome.target.job,
        "attempt": outcome.target.attempt,
        "base": plan.base.name.lower(),
        "raised": plan.raised.name.lower(),
        "unit": outcome.tracks.unit.value,
        "seed": plan.seed,
        "block_s": plan.block_s,
        "ratio": None if found is None else found.ratio,
        "low": None if found is None else found.low,
        "high": None if found is None else found.high,
        "pairs": 0 if found is None else found.pairs,
        "finding": Finding.TOO_FEW.value if found is None else found.finding.value,
        "blocks": [
            {"pair": block.pair, "level": block.level.name.lower(), "seconds": time}
            for block, time in outcome.times
        ],
        "not_alternated": not_alternated(outcome),
    }
