"""Training step time with and without Paceline, in interleaved pairs inside the same processes.

One model trains in the same ranks on the same data, in blocks that alternate ABBA between a plain
gloo group and an observed one, so that drift of the machine falls on both. Each block wraps the model
in DDP anew and takes a few steps before the clock starts: two models side by side differ by some
percent through the places of their memory alone. Prints one JSON object: the ratio of the observed to
the plain step time (median of the pairs) with a bootstrap 95% interval, on the slowest rank of each
block. `--control` makes both groups plain and so shows what the machine alone does.

    python tests/bench/step_time.py --ranks 2 --pairs 60
"""

import argparse
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

BOOTSTRAPS = 4000
WARMUP_STEPS = 3  # DDP rebuilds its buckets in the second


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def interval(ratios: Sequence[float], seed: int = 7) -> tuple[float, float]:
    """Bootstrap 95% interval of the median of paired ratios."""
    draw = random.Random(seed)
    medians = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(BOOTSTRAPS))
    return medians[int(0.025 * BOOTSTRAPS)], medians[int(0.975 * BOOTSTRAPS) - 1]


def order(pairs: int) -> list[str]:
    """`plain observed observed plain ...`: 2 * pairs blocks, ABBA."""
    blocks: list[str] = []
    for pair in range(pairs):
        blocks += ["plain", "observed"] if pair % 2 == 0 else ["observed", "plain"]
    return blocks


def pair_ratios(blocks: Sequence[str], seconds: Sequence[float]) -> list[float]:
    ratios = []
    for index in range(0, len(blocks), 2):
        times = dict(zip(blocks[index : index + 2], seconds[index : index + 2], strict=True))
        ratios.append(times["observed"] / times["plain"])
    return ratios


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
    model, optimizer = build(torch, arguments.width, arguments.layers)
    batch = torch.randn(arguments.batch, arguments.width)

    def train(parallel: Any, steps: int) -> None:
        for _ in range(steps):
            optimizer.zero_grad()
            parallel(batch).square().mean().backward()
            optimizer.step()

    def run_block(kind: str) -> tuple[float, float]:
        parallel = torch.nn.parallel.DistributedDataParallel(model, process_group=groups[kind])
        train(parallel, WARMUP_STEPS)
        dist.barrier()
        cpu_ns, started_ns = time.process_time_ns(), time.perf_counter_ns()
        train(parallel, arguments.steps)
        return (time.perf_counter_ns() - started_ns) / 1e9, (time.process_time_ns() - cpu_ns) / 1e9

    blocks = order(arguments.pairs)
    times = torch.tensor([run_block(kind) for kind in blocks], dtype=torch.float64)
    dist.all_reduce(times, op=dist.ReduceOp.MAX)
    if dist.get_rank() == 0:
        wall, cpu = times[:, 0].tolist(), times[:, 1].tolist()
        print(json.dumps(report(arguments, blocks, wall, cpu, type(groups["observed"]).__name__)))
    dist.destroy_process_group()


def report(
    arguments: argparse.Namespace, blocks: list[str], seconds: list[float], cpu_s: list[float], seam: str
) -> dict[str, Any]:
    """`ratio` is of wall time, `cpu_ratio` of all threads' CPU time, which a busy machine disturbs less."""
    cpu_ratios = pair_ratios(blocks, cpu_s)
    cpu_low, cpu_high = interval(cpu_ratios)
    ratios = pair_ratios(blocks, seconds)
    low, high = interval(ratios)
    of_kind = {
        kind: [time_s for block, time_s in zip(blocks, seconds, strict=True) if block == kind]
        for kind in ("plain", "observed")
    }
    return {
        "bench": "step_time",
        "ranks": arguments.ranks,
        "pairs": arguments.pairs,
        "steps_per_block": arguments.steps,
        "seam": seam,
        "control": arguments.control,
        "step_ms_plain": round(statistics.median(of_kind["plain"]) / arguments.steps * 1e3, 4),
        "step_ms_observed": round(statistics.median(of_kind["observed"]) / arguments.steps * 1e3, 4),
        "ratio": round(statistics.median(ratios), 5),
        "ratio_low": round(low, 5),
        "ratio_high": round(high, 5),
        "cpu_ratio": round(statistics.median(cpu_ratios), 5),
        "cpu_ratio_low": round(cpu_low, 5),
        "cpu_ratio_high": round(cpu_high, 5),
        "load_average": os.getloadavg()[0],
        "goal": "whole interval within 0.995 to 1.005",
        "goal_met": low >= 0.995 and high <= 1.005,
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
    parser.add_argument("--steps", type=int, default=10, help="training steps per block")
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
