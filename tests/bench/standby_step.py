"""The first step of a standby after its promotion, beside its steady steps and a cold first step.

One DDP job under `Session` and real supervisors, led by the testing kit's controller. A rank is killed, a
warm standby takes its place, and it trains on until the next one is warm; then that one's turn comes: so
promotions and steady steps alternate in one run. A step is what the script sees, from before
`session.step` to after it: the protection's gate and the start of its copy included. The ratio of a
promotion is its first step over the median of the same process's later steps, the first `--settle` left out.
Cold is the first step of each process that warms up. Prints one JSON object: median, smallest and largest,
and the bootstrap 95% interval of the median.

    python -m tests.bench.standby_step --promotions 20
"""

import argparse
import json
import os
import random
import signal
import statistics
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from paceline.trainer.testing import RepairJob
from paceline.trainer.testing.job import Nursery
from tests.bench.protection_cost import interval_of

PROGRAM = str(Path(__file__).with_name("standby_rank.py"))
WAIT_S = 60.0
RESPAWN_S = 2.0  # after the first step of its successor, which it would disturb
STEPS = 1_000_000


def spread(values: Sequence[float], digits: int = 3) -> dict[str, float]:
    named = (("median", statistics.median(values)), ("min", min(values)), ("max", max(values)))
    return {name: round(value, digits) for name, value in named} | {"n": len(values)}


def rows_of(job: RepairJob, pid: int) -> list[list[Any]]:
    path = job.results / f"steps-{pid}.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("]")]


def lived(job: RepairJob, pid: int) -> list[list[Any]]:
    return [row for row in rows_of(job, pid) if row[2]]


def has_trained(job: RepairJob, pid: int, steps: int) -> bool:
    return len(lived(job, pid)) >= steps


def is_taken(job: RepairJob, rank: int, leaver: int) -> bool:
    return job.controller.child_of(rank) not in (0, leaver)


def promote_in_turn(job: RepairJob, arguments: argparse.Namespace) -> list[int]:
    """pids of those who were promoted, in order."""
    draw, promoted = random.Random(5), []
    for _ in range(arguments.promotions):
        rank = draw.randrange(arguments.ranks)
        leaver = job.controller.child_of(rank)
        job.await_that(partial(has_trained, job, leaver, arguments.steady), WAIT_S)
        os.kill(leaver, signal.SIGKILL)
        job.await_that(partial(is_taken, job, rank, leaver), WAIT_S)
        promoted.append(job.controller.child_of(rank))
        job.await_that(partial(has_trained, job, promoted[-1], arguments.steady), WAIT_S)
        job.await_standbys(1, WAIT_S)
    return promoted


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    words = [PROGRAM, str(STEPS), *map(str, (arguments.width, arguments.layers, arguments.batch))]
    words.append(str(arguments.pause_ms / 1e3))
    ratios, firsts, steadies, stalls, colds = [], [], [], [], []
    with (
        Nursery() as nursery,
        RepairJob(words, arguments.ranks, 1, nursery=nursery, respawn_s=RESPAWN_S) as job,
    ):
        job.open_gate()
        for pid in promote_in_turn(job, arguments):
            rows = rows_of(job, pid)
            warmed, mine = [row for row in rows if not row[2]], lived(job, pid)
            steady = statistics.median(row[3] for row in mine[arguments.settle : arguments.steady])
            first = mine[0][3]
            firsts.append(first * 1e3)
            steadies.append(steady * 1e3)
            ratios.append(first / steady)
            stalls.append(mine[0][4] * 1e3)
            colds.append(warmed[0][3] / steady)
    low, high = interval_of(ratios)
    return {
        "bench": "standby_step",
        "ranks": arguments.ranks,
        "promotions": len(ratios),
        "first_ms": spread(firsts),
        "steady_ms": spread(steadies),
        "ratio": spread(ratios) | {"low": round(low, 3), "high": round(high, 3)},
        "stalled_ms": spread(stalls),
        "cold_ratio": spread(colds),
        "load_average": os.getloadavg()[0],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--promotions", type=int, default=20)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steady", type=int, default=30, help="steps of each process that count, at least")
    parser.add_argument("--settle", type=int, default=5, help="of those, the first that do not")
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--pause-ms", type=float, default=0.0, help="idle time of the CPU in each step")
    print(json.dumps(measure(parser.parse_args())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
