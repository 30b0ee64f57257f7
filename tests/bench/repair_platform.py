"""From a fault on a random rank to the first step of the full world, through the whole platform.

One platform for all runs: Apache Kafka, PostgreSQL, every service in one process, one node agent; policies
say `auto` for a rank that is gone or stopped, and for an error that may pass. Each run is a fresh DDP job
of four gloo ranks under supervisors with one warm standby; rank and phase come from the seed of the run.
Times come from what the topics say. A run counts as recovered if the platform's own record says succeeded,
nothing was given up, losses, samples and final state are those of an uninterrupted run to the bit, and
those ranks changed hands that should (`repair_cases`). Prints one JSON object; status 1 where a bar is
missed (`repair_summary`).

    python -m tests.bench.repair_platform --kills 20 --stops 20
    python -m tests.bench.repair_platform --kills 0 --stops 0 --transients 50 --permanents 50 --flaps 10
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from paceline.contracts.repair import ActionStatus, RepairCause, RepairKind, RepairMode, RepairState
from paceline.lab.demo.scene import Scene, prepare_home
from paceline.lab.processes import LabError
from paceline.lab.repair.crew import Crew, await_end, await_fault, difference
from paceline.lab.repair.policies import CAUSES, allow
from paceline.lab.repair.registry import (
    actions_of,
    members_of,
    overlapping,
    recoveries_of,
    settled_action,
)
from paceline.lab.repair.story import Story, tell
from paceline.lab.repair.watch import RepairWatch, watching_repair
from paceline.runtime.settings import KafkaSettings, load_settings
from paceline.store import Database
from paceline.trainer.testing import RepairJob
from paceline.trainer.testing.job import Outcome
from tests.bench.recovery import PAUSE_S, PROGRAM
from tests.bench.repair_cases import Case, Seats, changed_hands, draw_case, seats_of
from tests.bench.repair_summary import Run, missed_bars, summary

STEPS = 44  # so that the job is still under way when the repair has proven itself
STEADY = range(24, 40)  # steps whose time is stated
FAULT_S_MAX = 60.0
STORY_S_MAX = 90.0
END_S_MAX = 90.0
SETTLED_S_MAX = 60.0  # the proof is read late on a busy machine
PAUSE_BETWEEN_S = 1.0  # for the last words about one job, before the next one starts


class Series:
    """All runs, one after the other."""

    def __init__(self, scene: Scene, crew: Crew, cases: Sequence[Case]) -> None:
        self.runs: list[Run] = []
        self.failed: list[str] = []
        self._scene, self._crew, self._cases = scene, crew, cases
        self._command = [str(PROGRAM), "--steps", str(STEPS), "--pause"]

    async def act(self) -> None:
        store = Database(self._scene.platform.database_url)
        try:
            async with watching_repair(load_settings(KafkaSettings)) as watch:
                causes = (*CAUSES, RepairCause.TRANSIENT)
                await allow(self._scene.platform.token, RepairMode.AUTO, causes=causes)
                whole = await self._crew.uninterrupted([*self._command, "0"])
                for number, case in enumerate(self._cases):
                    await self._run(store, watch, case, whole)
                    self._scene.say(f"{number + 1} of {len(self._cases)}: {self._newest()}")
                    await asyncio.sleep(PAUSE_BETWEEN_S)
        finally:
            await store.stop()

    def _newest(self) -> str:
        run = self.runs[-1] if self.runs else None
        return "failed" if run is None else f"{run.fault} {run.total_s} {run.different[:200]}{run.fell_back}"

    async def _run(
        self, store: Database, watch: RepairWatch, case: Case, whole: Mapping[int, Outcome]
    ) -> None:
        command = [*self._command, str(PAUSE_S)]
        try:
            job = await self._crew.start(store, command, case.faults, "bench")
        except LabError as error:
            self.failed.append(f"{case.text}: {error}"[-1500:])
            return
        try:
            self.runs.append(await self._watched(store, watch, job, case, whole))
        except LabError as error:
            self.failed.append(f"{case.text}: {error}"[-1500:])
        finally:
            self._crew.close(job)

    async def _watched(
        self, store: Database, watch: RepairWatch, job: RepairJob, case: Case, whole: Mapping[int, Outcome]
    ) -> Run:
        ranks, orders = self._crew.ranks, len(case.faults)
        start = await seats_now(store, job.name)
        job.open_gate()
        fault_s = await await_fault(job, FAULT_S_MAX)
        await watch.until(lambda: tell(watch.seen[job.name], fault_s, ranks).is_over, STORY_S_MAX)
        step_s = await steady_step_s(job)
        has_ended = await await_end(job, END_S_MAX)
        story = tell(watch.seen[job.name], fault_s, ranks)
        different = difference(job, whole, orders) if has_ended else f"it did not end:\n{job.output()}"
        action = await settled_action(store, job.name, SETTLED_S_MAX)
        actions = await actions_of(store, job.name)
        recoveries = sorted(await recoveries_of(store, job.name), key=lambda each: each.generation)
        replaced = changed_hands([start, *(seats_of(each.seats) for each in recoveries)])
        succeeded = action is not None and action.status == ActionStatus.SUCCEEDED.value
        given_up = [each.reason for each in recoveries if each.state == RepairState.FALLBACK.value]
        given_up += [each.reason for each in actions if each.kind == RepairKind.FALLBACK.value]
        fell_back = story.fell_back or next(iter(given_up), "")
        is_whole = succeeded and story.resumed_s is not None and not different and not fell_back
        is_one = orders == 1  # the times of several recoveries are those of none
        return Run(
            kind=case.kind, fault=case.text, total_s=story.resumed_s if is_one else None,
            detected_s=story.detected_s, times=times_of(story) if is_one else {}, replayed=story.replayed,
            different=different[-1500:], fell_back=fell_back, orders=story.orders,
            at_once=overlapping(recoveries), step_s=step_s, replaced=replaced, expected=case.replaced,
            actions=[f"{a.kind} by {a.cause}: {a.status} ({a.reason}) {a.message[:200]}" for a in actions],
            recovered=is_whole and replaced == case.replaced,
        )  # fmt: skip


async def seats_now(store: Database, job: str) -> Seats:
    """Who has which rank before anything has happened."""
    rows = await members_of(store, job)
    return {row.rank: (row.member, row.child_pid) for row in rows if row.role == "member"}


def times_of(story: Story) -> dict[str, float]:
    """How long each part took, in seconds; the parts from `detect` to `first_step` follow one another."""
    marks: list[tuple[str, float | None]] = [
        ("detect", story.detected_s),
        ("decide_fence", story.fence_ordered_s),
        ("fence", None if story.fence_ordered_s is None else story.fenced_s),
        ("order", story.ordered_s),
        *((phase.value, time.done_s) for phase, time in (story.phases or {}).items()),
    ]
    times: dict[str, float] = {}
    before = 0.0
    for name, at_s in marks:
        if at_s is not None:
            times[name] = at_s - before
            before = at_s
    for phase, each in (story.phases or {}).items():
        times[f"{phase.value}_itself"] = each.took_s  # by the clock of the slowest member
    return times


async def steady_step_s(job: RepairJob) -> float | None:
    """A step of the repaired job, by the lines that its first rank writes."""
    path = job.results / "rank-0.jsonl"
    until = time.monotonic() + END_S_MAX
    seen: list[tuple[int, float]] = []
    while time.monotonic() < until:
        steps = path.read_bytes().count(b"\n") if path.exists() else 0
        if not seen or steps != seen[-1][0]:
            seen.append((steps, time.monotonic()))
        if steps >= STEADY.stop or all(process.poll() is not None for process in job.processes):
            break
        await asyncio.sleep(0.01)
    steady = [(steps, at_s) for steps, at_s in seen if STEADY.start <= steps <= STEADY.stop]
    if len(steady) < 2:
        return None
    return (steady[-1][1] - steady[0][1]) / (steady[-1][0] - steady[0][0])


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--stops", type=int, default=20)
    parser.add_argument("--transients", type=int, default=0, help="errors that may pass, one a job")
    parser.add_argument("--permanents", type=int, default=0, help="kills and errors of the script")
    parser.add_argument("--flaps", type=int, default=0, help="jobs with three errors that may pass")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--each", action="store_true", help="every run in the result as well")
    return parser.parse_args()


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    asked = {
        "sigkill": arguments.kills,
        "sigstop": arguments.stops,
        "transient": arguments.transients,
        "permanent": arguments.permanents,
        "flapping": arguments.flaps,
    }
    cases = [
        draw_case(kind, arguments.seed + number, arguments.ranks)
        for kind, wanted in asked.items()
        for number in range(wanted)
    ]
    with tempfile.TemporaryDirectory(prefix="paceline-bench-") as folder:
        Path(folder).chmod(0o755)  # the database's own user has to come through
        crew = Crew(prepare_home(Path(folder)), ranks=arguments.ranks)
        scene = Scene(Path(folder) / "demo", crew, port=0, quiet=True)
        series = Series(scene, crew, cases)
        try:
            scene.launch()
            asyncio.run(scene.run(series.act))
        finally:
            scene.close()
    kinds = {
        kind: summary([run for run in series.runs if run.kind == kind], wanted)
        for kind, wanted in asked.items()
        if wanted
    }
    result: dict[str, Any] = {
        "ranks": arguments.ranks,
        "step_pause_s": PAUSE_S,
        **kinds,
        "failed": series.failed,
        "faults": [f"{run.fault} {run.total_s}" for run in series.runs],
        "missed": [missed for kind, found in kinds.items() for missed in missed_bars(kind, found)],
    }
    if arguments.each:
        result["runs"] = [asdict(run) for run in series.runs]
    return result


def main() -> int:
    result = measure(read_arguments())
    sys.stdout.write(json.dumps(result) + "\n")
    return 1 if result["missed"] else 0


if __name__ == "__main__":
    sys.exit(main())
