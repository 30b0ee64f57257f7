"""Planned replacements of a DDP job through `Session`: how long training stands still, and what is hidden.

Four gloo ranks and a warm standby under real supervisors, led by the testing kit's controller; ranks are
replaced in turn. Every other switch is made in the foreground, in the same job: training stands still from
the order on until everything is prepared, which is what the set-up costs where nothing hides it. Hidden is
1 - pause / pause in the foreground.

The pause is that of the stayer that waits longest, on the clock of the machine: from the end of the last step
before the switch to the end of the first one after it, less a steady step; in the foreground the time from
the order until training goes on is added. A connection, also of the replica servers, takes `--connect-ms`
longer.
The first standby is started as in production and timed until it is warm: process, imports, sandbox. Each
leaver's supervisor starts the next one, half a second later and not in the switch, since here it would take
the cores of the job from it. The result has to equal an uninterrupted run to the bit, no step done twice.
Prints one JSON object.

    python -m tests.bench.planned_session --switches 20 --connect-ms 50
"""

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from paceline.contracts.recovery import Order, OrderKind
from paceline.trainer.supervisor import ROLE_VARIABLE
from paceline.trainer.testing import RepairJob
from paceline.trainer.testing.job import Nursery, assert_equal

RANK = str(Path(__file__).with_name("planned_session_rank.py"))
WAIT_S = 120.0
STEADY_STEPS = 12  # before an order, whose median is the steady step
RESPAWN_S = 0.5
LOOK_S = 0.0005
AHEAD_STEPS = 3  # from the word to stand still to the step at which all ranks do


@dataclass(frozen=True)
class Switch:
    """`ordered_s` on the machine's clock; `stood_s`: how long training stood still in the foreground."""

    generation: int
    ordered_s: float
    stood_s: float
    foreground: bool


@dataclass(frozen=True)
class Row:
    """The end of a step in one process."""

    generation: int
    step: int
    at_s: float


def words(arguments: argparse.Namespace, hold: Path, pause_s: float) -> list[str]:
    steps = arguments.switches * arguments.every
    return [
        RANK, "--hold", str(hold), "--connect-ms", str(arguments.connect_ms if pause_s else 0.0),
        "--steps", str(steps), "--pause", str(pause_s), "--width", str(arguments.width), "--layers", "3",
    ]  # fmt: skip


def has_reached(job: RepairJob, step: int) -> bool:
    return min(job.controller.steps().values(), default=-1) >= step


def ended(job: RepairJob) -> int:
    return len(job.controller.of_kind("resumed") + job.controller.of_kind("rolled_back"))


def await_soon(condition: Callable[[], bool]) -> None:
    """As `await_that`, seen within a millisecond."""
    until_s = time.monotonic() + WAIT_S
    while not condition():
        if time.monotonic() > until_s:
            raise TimeoutError(f"not within {WAIT_S:g} s")
        time.sleep(LOOK_S)


def is_ordered(job: RepairJob, generation: int) -> bool:
    return any(
        isinstance(order := event.detail, Order) and order.kind is OrderKind.SWITCH
        and order.generation == generation
        for event in job.controller.events[-300:]
    )  # fmt: skip


def switch(job: RepairJob, rank: int, hold: Path, foreground: bool) -> Switch:
    """Replace `rank`; returns once it is over."""
    before, stood_s = ended(job), 0.0
    if foreground:
        held = max(job.controller.steps().values()) + AHEAD_STEPS
        hold.with_suffix(".new").write_text(str(held))
        hold.with_suffix(".new").rename(hold)
        job.await_that(partial(has_reached, job, held - 1), WAIT_S)
    ordered_s = time.monotonic()
    generation = job.controller.planned(rank)
    if foreground:
        await_soon(partial(is_ordered, job, generation))
        hold.unlink()
        stood_s = time.monotonic() - ordered_s
    job.await_that(lambda: ended(job) > before, WAIT_S)
    return Switch(generation, ordered_s, stood_s, foreground)


def replace_in_turn(job: RepairJob, hold: Path, switches: int, every: int) -> list[Switch]:
    done = []
    for number in range(switches):
        job.await_that(partial(has_reached, job, number * every + STEADY_STEPS + 4), WAIT_S)
        job.await_standbys(1, WAIT_S)
        done.append(switch(job, number % job.ranks, hold, number % 2 == 1))
    return done


def pause_of(rows: Sequence[Row], one: Switch) -> tuple[float, list[float]] | None:
    """Of one process that stayed: how long it stood still, and its steps from the order to the switch, as
    shares of a steady one, where they were done while it was prepared."""
    after = [row for row in rows if row.generation == one.generation]
    before = [row for row in rows if row.generation < one.generation]
    if not after or not before or after[0].step != before[-1].step + 1:
        return None
    quiet = [row.at_s for row in before if row.at_s <= one.ordered_s][-STEADY_STEPS:]
    steady_s = statistics.median(b - a for a, b in pairwise(quiet))
    pause_s = one.stood_s + after[0].at_s - before[-1].at_s - steady_s
    meanwhile = [] if one.foreground else [row.at_s for row in before if row.at_s >= quiet[-1]]
    return pause_s, [(b - a) / steady_s for a, b in pairwise(meanwhile)]


def read_rows(folder: Path) -> list[list[Row]]:
    """By process."""
    return [
        [Row(*json.loads(line)) for line in path.read_text().splitlines()]
        for path in folder.glob("ends-*.jsonl")
    ]


def spread(values: Sequence[float]) -> dict[str, float]:
    named = (("median", statistics.median(values)), ("min", min(values)), ("max", max(values)))
    return {name: round(value * 1e3, 1) for name, value in named}


def start_standby(job: RepairJob) -> float:
    """Seconds until a standby that is started as in production is warm."""
    started_s = time.monotonic()
    job.launch({ROLE_VARIABLE: "standby", "PACELINE_FAILURE_DOMAIN": "s0"}, fork=False)
    job.await_standbys(1, WAIT_S)
    return time.monotonic() - started_s


def figures(switches: Sequence[Switch], processes: Sequence[Sequence[Row]], standby_s: float) -> Any:
    hidden: list[float] = []
    visible: list[float] = []
    steps: list[float] = []
    for one in switches:
        found = [each for rows in processes if (each := pause_of(rows, one)) is not None]
        if found:
            (visible if one.foreground else hidden).append(max(pause for pause, _ in found))
            steps += [step for _, each in found for step in each]
    pause_s, foreground_s = statistics.median(hidden), statistics.median(visible)
    return {
        "switches": {"prepared": len(hidden), "foreground": len(visible)},
        "pause_ms": spread(hidden),
        "foreground_ms": spread(visible),
        "hidden_share": round(1 - pause_s / foreground_s, 4),
        "standby_start_s": round(standby_s, 2),
        "hidden_share_with_standby_start": round(1 - pause_s / (foreground_s + standby_s), 4),
        "step_while_preparing": round(statistics.median(steps), 3) if steps else None,
        "goal": "pause at most 100 ms, 0.86 hidden, bitwise equal",
        "goal_met": max(hidden) <= 0.1 and 1 - pause_s / foreground_s >= 0.86,
    }


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    with Nursery() as nursery:
        with RepairJob(words(arguments, Path("none"), 0.0), arguments.ranks, nursery=nursery) as plain:
            plain.await_end(600.0)
            whole = plain.outcomes()
        job = RepairJob([], arguments.ranks, nursery=nursery, respawn_s=RESPAWN_S)
        hold = job.folder / "hold"
        job.command = words(arguments, hold, arguments.step_ms / 1e3)
        with job:
            standby_s = start_standby(job)
            job.open_gate()
            switches = replace_in_turn(job, hold, arguments.switches, arguments.every)
            job.await_end(600.0)
            assert_equal(job.outcomes(), whole, replayed_max=0)
            found = figures(switches, read_rows(job.results), standby_s)
    return {
        "bench": "planned_session",
        "ranks": arguments.ranks,
        "step_ms": arguments.step_ms,
        "connect_ms": arguments.connect_ms,
        **found,
        "replayed": 0,
        "bitwise_equal": True,
        "load_average": os.getloadavg()[0],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--switches", type=int, default=20, help="half of them in the foreground")
    parser.add_argument("--every", type=int, default=80, help="steps from one switch to the next, at least")
    parser.add_argument("--width", type=int, default=330, help="330: about 4 MB of state a rank")
    parser.add_argument("--step-ms", type=float, default=30.0, help="of a step besides its work")
    parser.add_argument("--connect-ms", type=float, default=0.0, help="added to each connection")
    print(json.dumps(measure(parser.parse_args())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
