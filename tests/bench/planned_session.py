"""Planned replacements of a DDP job through `Session`: how long training stands still, and what is hidden.

Four gloo ranks and a warm standby under real supervisors, led by the testing kit's controller; ranks are
replaced in turn, and each leaver's supervisor starts the next standby. The pause is what each stayer
reports: from the end of the last step before the switch to the end of the first one after it, less the
median step; of each switch the largest. Hidden is the preparation, in the background, as share of
preparation and pause. The result has to equal an uninterrupted run to the bit, without a replayed step.
Prints one JSON object.

    python -m tests.bench.planned_session --switches 20
"""

import argparse
import json
import os
import re
import statistics
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from paceline.contracts.recovery import OrderResult, PhaseReport, RecoveryPhase
from paceline.trainer.testing import RepairJob
from paceline.trainer.testing.job import Nursery, assert_equal

PROGRAM = str(Path(__file__).parents[1] / "integration" / "trainer" / "programs" / "repaired.py")
PAUSED = re.compile(r"stood still for (\d+\.\d) ms")
PREPARED = re.compile(r"prepared in (\d+\.\d+) s")
WAIT_S = 120.0


def words(arguments: argparse.Namespace, pause_s: float) -> list[str]:
    steps, width = arguments.switches * arguments.every, arguments.width
    return [PROGRAM, "--steps", str(steps), "--pause", str(pause_s), "--width", str(width), "--layers", "3"]


def has_reached(job: RepairJob, step: int) -> bool:
    return min(job.controller.steps().values(), default=-1) >= step


def replace_in_turn(job: RepairJob, switches: int, every: int) -> list[int]:
    """The generations of the switches that have resumed."""
    opened = []
    for number in range(switches):
        job.await_that(partial(has_reached, job, number * every + 3), WAIT_S)
        job.await_standbys(1, WAIT_S)
        opened.append(job.controller.planned(number % job.ranks))
        job.await_that(
            lambda: (
                len(job.controller.of_kind("resumed") + job.controller.of_kind("rolled_back")) == len(opened)
            ),
            WAIT_S,
        )
    return opened


def figures(job: RepairJob, opened: Sequence[int]) -> list[tuple[float, float]]:
    """Of each switch the largest pause and the longest preparation, in seconds."""
    found = []
    for generation in opened:
        reports = [event.detail for event in job.controller.events]
        pauses = [
            float(match[1]) / 1e3
            for one in reports
            if isinstance(one, PhaseReport) and one.generation == generation
            and one.phase is RecoveryPhase.FIRST_STEP and (match := PAUSED.search(one.detail))
        ]  # fmt: skip
        prepared = [
            float(match[1])
            for one in reports
            if isinstance(one, OrderResult) and one.generation == generation
            and (match := PREPARED.search(one.message))
        ]  # fmt: skip
        if pauses and prepared:
            found.append((max(pauses), max(prepared)))
    return found


def spread(values: Sequence[float]) -> dict[str, float]:
    named = (("median", statistics.median(values)), ("min", min(values)), ("max", max(values)))
    return {name: round(value * 1e3, 1) for name, value in named}


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    with Nursery() as nursery:
        with RepairJob(words(arguments, 0.0), arguments.ranks, nursery=nursery) as plain:
            plain.await_end(600.0)
            whole = plain.outcomes()
        steady = words(arguments, arguments.step_ms / 1e3)
        with RepairJob(steady, arguments.ranks, 1, nursery=nursery, respawn_s=0.0) as job:
            job.open_gate()
            opened = replace_in_turn(job, arguments.switches, arguments.every)
            job.await_end(600.0)
            assert_equal(job.outcomes(), whole, replayed_max=0)
            found = figures(job, opened)
    pauses, prepared = [pause for pause, _ in found], [took for _, took in found]
    hidden = [took / (took + pause) for pause, took in found]
    return {
        "bench": "planned_session",
        "ranks": arguments.ranks,
        "switches": len(found),
        "step_ms": arguments.step_ms,
        "pause_ms": spread(pauses),
        "prepare_ms": spread(prepared),
        "hidden_share": round(statistics.median(hidden), 4),
        "replayed": 0,
        "bitwise_equal": True,
        "load_average": os.getloadavg()[0],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--switches", type=int, default=20)
    parser.add_argument("--every", type=int, default=40, help="steps from one switch to the next, at least")
    parser.add_argument("--width", type=int, default=330, help="330: about 4 MB of state a rank")
    parser.add_argument("--step-ms", type=float, default=30.0, help="of a step besides its work")
    print(json.dumps(measure(parser.parse_args())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
