"""Training step time with and without Paceline, step by step inside the same processes.

Two copies of one model train in the same ranks, one over a plain gloo group and one over an observed
one, and take turns step by step (ABBA), because on a shared machine steps of the same second resemble
each other and steps of different seconds do not. Halfway through each pair the copies change groups, so
that the place of a model in memory, worth some percent, falls on both. A step lasts as long as on its
slowest rank. Prints one JSON object: the ratio of the observed to the plain step with a bootstrap 95%
interval over the pairs, once of trimmed means (single interruptions by the machine count little), once of
whole sums (which hide nothing), and of CPU time. `--control` makes both groups plain and so shows what
the machine alone does.

    python tests/bench/step_time.py --ranks 2 --pairs 60
"""

import argparse
import json
import math
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

from paceline.trainer.testing.job import free_port

BOOTSTRAPS = 4000
WARMUP_STEPS = 3  # DDP rebuilds its buckets in the second
TRIM = 0.1  # of the logarithms of the step ratios, at each end
KINDS = ("plain", "observed")


def interval(ratios: Sequence[float], seed: int = 7) -> tuple[float, float]:
    """Bootstrap 95% interval of the mean of the pairs' ratios."""
    draw = random.Random(seed)
    means = sorted(statistics.fmean(draw.choices(ratios, k=len(ratios))) for _ in range(BOOTSTRAPS))
    return means[int(0.025 * BOOTSTRAPS)], means[int(0.975 * BOOTSTRAPS) - 1]


def turns(steps: int) -> list[str]:
    """`plain observed observed plain ...`: as many of each as `steps`."""
    kinds: list[str] = []
    for step in range(steps):
        kinds += KINDS if step % 2 == 0 else KINDS[::-1]
    return kinds


def trimmed_ratio(plain: Sequence[float], observed: Sequence[float]) -> float:
    logs = sorted(math.log(after / before) for before, after in zip(plain, observed, strict=True))
    cut = int(TRIM * len(logs))
    return math.exp(statistics.fmean(logs[cut : len(logs) - cut]))


def build(torch: Any, width: int, layers: int) -> tuple[Any, Any]:
    torch.manual_seed(1)
    parts: list[Any] = []
    for _ in range(layers):
        parts += [torch.nn.Linear(width, width), torch.nn.GELU()]
    model = torch.nn.Sequential(*parts)
    return model, torch.optim.SGD(model.parameters(), lr=1e-3)


def worker(arguments: argparse.Namespace) -> None:
    import torch
    import torch.distributed as dist

    from paceline import trainer

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    groups = {"plain": dist.new_group()}
    if not arguments.control and not trainer.attach(name="step-time"):
        raise SystemExit("the hook could not be installed")
    groups["observed"] = dist.new_group()
    copies = [build(torch, arguments.width, arguments.layers) for _ in KINDS]
    batch = torch.randn(arguments.batch, arguments.width)

    def step(parallel: Any, optimizer: Any) -> list[float]:
        cpu_ns, started_ns = time.process_time_ns(), time.perf_counter_ns()
        optimizer.zero_grad()
        parallel(batch).square().mean().backward()
        optimizer.step()
        return [(time.perf_counter_ns() - started_ns) / 1e9, (time.process_time_ns() - cpu_ns) / 1e9]

    def take_turns(kinds: Sequence[str]) -> list[list[float]]:
        """Seconds and CPU seconds of each turn; the first copy trains over the group `kinds[0]`."""
        trainers = {
            kind: (torch.nn.parallel.DistributedDataParallel(model, process_group=groups[kind]), optimizer)
            for kind, (model, optimizer) in zip(kinds, copies, strict=True)
        }
        for _ in range(WARMUP_STEPS):
            for kind in KINDS:
                step(*trainers[kind])
        dist.barrier()
        return [step(*trainers[kind]) for kind in turns(arguments.steps)]

    rows = [take_turns(kinds) for _ in range(arguments.pairs) for kinds in (KINDS, KINDS[::-1])]
    times = torch.tensor(rows, dtype=torch.float64).reshape(arguments.pairs, -1, 2)
    dist.all_reduce(times, op=dist.ReduceOp.MAX)
    if dist.get_rank() == 0:
        print(json.dumps(report(arguments, times.tolist(), type(groups["observed"]).__name__)))
    dist.destroy_process_group()


def compare(name: str, ratios: Sequence[float]) -> dict[str, float]:
    low, high = interval(ratios)
    return {
        name: round(statistics.fmean(ratios), 5),
        f"{name}_low": round(low, 5),
        f"{name}_high": round(high, 5),
    }


def report(arguments: argparse.Namespace, pairs: list[list[list[float]]], seam: str) -> dict[str, Any]:
    """`pairs`: of each pair the seconds and CPU seconds of its turns, two halves of `turns(steps)`."""
    kinds = turns(arguments.steps) * 2

    def pick(turn: list[list[float]], kind: str, column: int) -> list[float]:
        return [row[column] for row, each in zip(turn, kinds, strict=True) if each == kind]

    plain = [pick(pair, "plain", 0) for pair in pairs]
    observed = [pick(pair, "observed", 0) for pair in pairs]
    trimmed = compare("ratio", [trimmed_ratio(*both) for both in zip(plain, observed, strict=True)])
    return {
        "bench": "step_time",
        "ranks": arguments.ranks,
        "pairs": arguments.pairs,
        "steps_per_pair": 4 * arguments.steps,
        "seam": seam,
        "control": arguments.control,
        "step_ms_plain": round(statistics.median(map(statistics.median, plain)) * 1e3, 4),
        "step_ms_observed": round(statistics.median(map(statistics.median, observed)) * 1e3, 4),
        **trimmed,
        **compare(
            "sum_ratio", [sum(after) / sum(before) for before, after in zip(plain, observed, strict=True)]
        ),
        **compare(
            "cpu_ratio", [sum(pick(pair, "observed", 1)) / sum(pick(pair, "plain", 1)) for pair in pairs]
        ),
        "load_average": os.getloadavg()[0],
        "goal": "whole interval within 0.995 to 1.005",
        "goal_met": trimmed["ratio_low"] >= 0.995 and trimmed["ratio_high"] <= 1.005,
    }


def launch(arguments: argparse.Namespace) -> int:
    environment = dict(os.environ)
    environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "PACELINE": "0"}
    environment |= {"WORLD_SIZE": str(arguments.ranks), "PACELINE_STEP_TIME_WORKER": "1"}
    command = [sys.executable, __file__, *sys.argv[1:]]
    ranks = [
        subprocess.Popen(command, env=environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)})
        for rank in range(arguments.ranks)
    ]
    try:
        return max(abs(rank.wait(arguments.timeout_s)) for rank in ranks)
    finally:
        for rank in ranks:
            if rank.poll() is None:
                rank.kill()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0] if __doc__ else None)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--pairs", type=int, default=60)
    parser.add_argument("--steps", type=int, default=20, help="steps of each kind in each half of a pair")
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument(
        "--control", action="store_true", help="both groups plain: what the machine alone does"
    )
    parser.add_argument("--timeout-s", type=float, default=900)
    arguments = parser.parse_args()
    if os.environ.get("PACELINE_STEP_TIME_WORKER") == "1":
        worker(arguments)
        return 0
    return launch(arguments)


if __name__ == "__main__":
    sys.exit(main())
