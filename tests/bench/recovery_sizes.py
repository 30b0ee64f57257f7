"""Phases of a recovery against the state of a rank: what is built anew, and what is copied.

As `recovery`, with layers as wide as the size asks for: parameters and the two moments of AdamW, in a rank.
Building should not depend on the size (bar: medians within 20 % of each other on 4 ranks): it is the
rendezvous of the member that came last, since the others wait in theirs until all have come to the end of the
step that was cut off, which grows with the model. Copying should be linear in the size, so it is shown apart
with its rate: bytes that reached the joiner in the time of the phase of the slowest member. Sizes are in MB
(10^6 bytes); the largest one runs on two ranks. Prints a table and one JSON object; status 1 where a run
fails or the bar is missed.

    python -m tests.bench.recovery_sizes --runs 5
    python -m tests.bench.recovery_sizes --runs 3 --sizes 1000 --ranks 2
"""

import argparse
import json
import math
import os
import sys
from collections.abc import Sequence
from typing import Any

from paceline.contracts.recovery import RecoveryPhase
from paceline.trainer.testing import Fault, RepairJob
from paceline.trainer.testing.job import Nursery
from tests.bench.recovery import PAUSE_S, PROGRAM, one_repair, spread

SIZES_MB = (1, 4, 16, 64, 256)
LAYERS = 3
BYTES_OF_PARAMETER = 12  # itself and two moments, each float32
STEPS = 8
FAULT_STEPS = (3, 4)
PHASES = ("forward", "backward", "in_collective", "optimizer")
REBUILD_SPREAD_MAX = 1.2
COPIES = (RecoveryPhase.PARAMETERS.value, RecoveryPhase.OPTIMIZER.value)
# Of the state in one rank: itself, gradients, two copies, buffers; 4.1 were seen at 850 MB.
JOB_COPIES = 6
JOB_S_MAX = 280.0


def width_of(megabytes: float) -> int:
    """Of layers whose state has so many MB."""
    return round(math.sqrt(megabytes * 1e6 / (LAYERS * BYTES_OF_PARAMETER)))


def measure(nursery: Nursery, megabytes: int, ranks: int, runs: int) -> dict[str, Any]:
    """Medians of one size; `failed` says what went wrong."""
    words = ["--steps", str(STEPS), "--pause", str(PAUSE_S), "--layers", str(LAYERS)]
    words += ["--width", str(width_of(megabytes))]
    with RepairJob([str(PROGRAM), *words], ranks, nursery=nursery) as job:
        job.await_end(JOB_S_MAX)
        whole = job.outcomes()
    found: list[dict[str, Any]] = []
    failed: list[str] = []
    for number in range(runs):
        step = FAULT_STEPS[number % len(FAULT_STEPS)]
        fault = Fault("sigkill", number % ranks, step, PHASES[number % len(PHASES)])
        try:
            found.append(one_repair(nursery, fault, ranks, words, whole))
        except (TimeoutError, OSError, ValueError, IndexError) as error:
            failed.append(str(error)[-600:])
    failed += [run["different"] for run in found if run["different"]]
    return {"state_mb": megabytes, "ranks": ranks, "failed": failed, **figures(found)}


def figures(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    if not runs:
        return {"recovered": 0}
    names = sorted({name for run in runs for name in run["phases"]})
    copied = [sum(run["bytes"].get(name, 0) for name in COPIES) for run in runs]
    took_s = [sum(run["phases"].get(name, 0.0) for name in COPIES) for run in runs]
    return {
        "recovered": len(runs),
        "total_s": spread([run["total_s"] for run in runs]),
        "copied_mb": spread([each / 1e6 for each in copied]),
        "copy_s": spread(took_s),
        "copy_mb_per_s": spread([each / 1e6 / max(s, 1e-9) for each, s in zip(copied, took_s, strict=True)]),
        "phases_s": {name: spread([run["phases"].get(name, 0.0) for run in runs]) for name in names},
    }


def available_mb() -> int:
    with open("/proc/meminfo") as file:
        lines = dict(line.split(":", 1) for line in file)
    return int(lines["MemAvailable"].split()[0]) // 1000


def missed_bars(sizes: Sequence[dict[str, Any]]) -> list[str]:
    """Failed runs, and a rebuild that depends on the size."""
    missed = [f"{one['state_mb']} MB: {text}" for one in sizes for text in one["failed"]]
    for ranks in sorted({one["ranks"] for one in sizes}):
        medians = [
            one["phases_s"]["build"]["median"]
            for one in sizes
            if one["ranks"] == ranks and one.get("recovered")
        ]
        if len(medians) > 1 and max(medians) > REBUILD_SPREAD_MAX * min(medians):
            ratio = max(medians) / min(medians)
            missed.append(
                f"building on {ranks} ranks: {ratio:.2f} times the smallest, bar {REBUILD_SPREAD_MAX}"
            )
    return missed


NAMES = ("detect", "rendezvous", "build", "parameters", "optimizer", "resume", "first_step")


def line_of(one: dict[str, Any]) -> str:
    """Of the table: phases in ms, median (smallest to largest), of the slowest member."""
    if not one.get("recovered"):
        return f"{one['state_mb']:9} {one['ranks']:5} none recovered: {one['failed']}"
    parts = [one["phases_s"].get(name) for name in NAMES]
    text = " ".join(f"{in_ms(part):>18}" if part else f"{'-':>18}" for part in parts)
    rate = f"{one['copied_mb']['median']:.1f} MB, {one['copy_mb_per_s']['median']:.0f} MB/s"
    return f"{one['state_mb']:9} {one['ranks']:5} {in_ms(one['total_s']):>20} {text} {rate}"


def in_ms(part: dict[str, float]) -> str:
    return f"{part['median'] * 1e3:.0f} ({part['min'] * 1e3:.0f} to {part['max'] * 1e3:.0f})"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES_MB), metavar="MB")
    arguments = parser.parse_args()
    sizes: list[dict[str, Any]] = []
    head = " ".join(f"{name:>18}" for name in NAMES)
    print(f"{'MB a rank':>9} {'ranks':>5} {'total ms':>20} {head} copied", flush=True)
    with Nursery() as nursery:
        for megabytes in arguments.sizes:
            needed_mb = megabytes * JOB_COPIES * (arguments.ranks + 1)
            if needed_mb > available_mb():
                why = f"needs about {needed_mb} MB of memory, {available_mb()} MB are there"
                sizes.append({"state_mb": megabytes, "ranks": arguments.ranks, "failed": [why]})
            else:
                sizes.append(measure(nursery, megabytes, arguments.ranks, arguments.runs))
            print(line_of(sizes[-1]), flush=True)
    missed = missed_bars(sizes)
    print(json.dumps({"sizes": sizes, "missed": missed, "load_average": os.getloadavg()[0]}))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
