"""From SIGKILL or SIGSTOP of a random rank to the first step of the full world, through the whole platform.

One platform for all runs: Apache Kafka, PostgreSQL, every service in one process, one node agent; policies
say `auto` for a rank that is gone or stopped. Each run is a fresh DDP job of four gloo ranks under
supervisors with one warm standby; kind, rank and phase come from the seed of the run. Times come from what
the topics say. A run counts as recovered if the platform's own record says succeeded, nothing was given up,
and losses, samples and final state are those of an uninterrupted run to the bit. Prints one JSON object.

    python -m tests.bench.repair_platform --kills 20 --stops 20
"""

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from paceline.contracts.repair import ActionStatus, RepairMode
from paceline.lab.demo.scene import Scene, prepare_home
from paceline.lab.processes import LabError
from paceline.lab.repair.crew import Crew, await_end, await_fault, difference
from paceline.lab.repair.policies import allow
from paceline.lab.repair.registry import actions_of, overlapping, recoveries_of, settled_action
from paceline.lab.repair.story import Story, tell
from paceline.lab.repair.watch import RepairWatch, watching_repair
from paceline.runtime.settings import KafkaSettings, load_settings
from paceline.store import Database
from paceline.trainer.testing import Fault, RepairJob, draw_fault
from paceline.trainer.testing.job import Outcome
from tests.bench.recovery import PAUSE_S, PROGRAM

FAULT_STEPS = 14  # as in `recovery`: the fault comes in the middle of them
STEPS = 44  # so that the job is still under way when the repair has proven itself
STEADY = range(24, 40)  # steps whose time is stated
FAULT_S_MAX = 60.0
STORY_S_MAX = 90.0
END_S_MAX = 90.0
SETTLED_S_MAX = 15.0
PAUSE_BETWEEN_S = 1.0  # for the last words about one job, before the next one starts


@dataclass(frozen=True)
class Run:
    """Seconds since the fault; None where it did not happen."""

    fault: str
    total_s: float | None
    detected_s: float | None
    times: Mapping[str, float]
    recovered: bool
    replayed: int
    different: str
    fell_back: str
    orders: int
    actions: list[str]
    at_once: int  # recoveries of the job that began before another one had ended
    step_s: float | None


class Series:
    """All runs, one after the other."""

    def __init__(self, scene: Scene, crew: Crew, faults: Sequence[Fault]) -> None:
        self.runs: list[Run] = []
        self.failed: list[str] = []
        self._scene, self._crew, self._faults = scene, crew, faults
        self._command = [str(PROGRAM), "--steps", str(STEPS), "--pause"]

    async def act(self) -> None:
        store = Database(self._scene.platform.database_url)
        try:
            async with watching_repair(load_settings(KafkaSettings)) as watch:
                await allow(self._scene.platform.token, RepairMode.AUTO)
                whole = await self._crew.uninterrupted([*self._command, "0"])
                for number, fault in enumerate(self._faults):
                    await self._run(store, watch, fault, whole)
                    self._scene.say(f"{number + 1} of {len(self._faults)}: {self._newest()}")
                    await asyncio.sleep(PAUSE_BETWEEN_S)
        finally:
            await store.stop()

    def _newest(self) -> str:
        run = self.runs[-1] if self.runs else None
        return "failed" if run is None else f"{run.fault} {run.total_s} {run.different[:200]}{run.fell_back}"

    async def _run(
        self, store: Database, watch: RepairWatch, fault: Fault, whole: Mapping[int, Outcome]
    ) -> None:
        try:
            job = await self._crew.start(store, [*self._command, str(PAUSE_S)], [fault], "bench")
        except LabError as error:
            self.failed.append(f"{text_of(fault)}: {error}"[-1500:])
            return
        try:
            self.runs.append(await self._watched(store, watch, job, fault, whole))
        except LabError as error:
            self.failed.append(f"{text_of(fault)}: {error}"[-1500:])
        finally:
            self._crew.close(job)

    async def _watched(
        self, store: Database, watch: RepairWatch, job: RepairJob, fault: Fault, whole: Mapping[int, Outcome]
    ) -> Run:
        ranks = self._crew.ranks
        job.open_gate()
        fault_s = await await_fault(job, FAULT_S_MAX)
        await watch.until(lambda: tell(watch.seen[job.name], fault_s, ranks).is_over, STORY_S_MAX)
        step_s = await steady_step_s(job)
        has_ended = await await_end(job, END_S_MAX)
        story = tell(watch.seen[job.name], fault_s, ranks)
        different = difference(job, whole) if has_ended else f"it did not end:\n{job.output()}"
        action = await settled_action(store, job.name, SETTLED_S_MAX)
        actions = await actions_of(store, job.name)
        recoveries = await recoveries_of(store, job.name)
        succeeded = action is not None and action.status == ActionStatus.SUCCEEDED.value
        fell_back = story.fell_back or next((a.reason for a in actions if a.kind == "fallback"), "")
        return Run(
            fault=text_of(fault), total_s=story.resumed_s, detected_s=story.detected_s,
            times=times_of(story), replayed=story.replayed, different=different[-1500:],
            fell_back=fell_back, orders=story.orders, at_once=overlapping(recoveries), step_s=step_s,
            actions=[f"{a.kind} by {a.cause}: {a.status} ({a.reason})" for a in actions],
            recovered=succeeded and story.resumed_s is not None and not different and not fell_back,
        )  # fmt: skip


def text_of(fault: Fault) -> str:
    return f"{fault.kind} rank {fault.rank} {fault.phase} step {fault.step}"


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


def spread(values: Sequence[float | None]) -> dict[str, float] | None:
    known = sorted(value for value in values if value is not None)
    if not known:
        return None
    return {
        "median": round(statistics.median(known), 3),
        "min": round(known[0], 3),
        "max": round(known[-1], 3),
        "p90": round(known[max(0, -(-len(known) * 9 // 10) - 1)], 3),  # nearest rank
        "n": len(known),
    }


def summary(runs: Sequence[Run], asked: int) -> dict[str, Any]:
    """Of the runs of one kind."""
    names = sorted({name for run in runs for name in run.times})
    return {
        "recovered": sum(run.recovered for run in runs),
        "of": asked,
        "fault_to_first_full_step_s": spread([run.total_s for run in runs if run.recovered]),
        "detect_s": spread([run.detected_s for run in runs]),
        "detected_to_first_full_step_s": spread(
            [run.total_s - run.detected_s for run in runs if run.total_s and run.detected_s is not None]
        ),
        "replayed_max": max((run.replayed for run in runs), default=-1),
        "fell_back": [f"{run.fault}: {run.fell_back}" for run in runs if run.fell_back],
        "different": [f"{run.fault}: {run.different}" for run in runs if run.different],
        "recoveries_at_once": sum(run.at_once for run in runs),
        "more_than_one_order": [f"{run.fault}: {run.orders}" for run in runs if run.orders > 1],
        "step_s": spread([run.step_s for run in runs]),
        "parts_s": {name: spread([run.times.get(name) for run in runs]) for name in names},
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--stops", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--each", action="store_true", help="every run in the result as well")
    arguments = parser.parse_args()
    kinds = {"sigkill": arguments.kills, "sigstop": arguments.stops}
    faults = [
        draw_fault(arguments.seed + number, arguments.ranks, FAULT_STEPS, kinds=[kind])
        for kind, wanted in kinds.items()
        for number in range(wanted)
    ]
    with tempfile.TemporaryDirectory(prefix="paceline-bench-") as folder:
        Path(folder).chmod(0o755)  # the database's own user has to come through
        crew = Crew(prepare_home(Path(folder)), ranks=arguments.ranks)
        scene = Scene(Path(folder) / "demo", crew, port=0, quiet=True)
        series = Series(scene, crew, faults)
        try:
            scene.launch()
            asyncio.run(scene.run(series.act))
        finally:
            scene.close()
    runs = {kind: [run for run in series.runs if run.fault.startswith(kind)] for kind in kinds}
    result: dict[str, Any] = {
        "ranks": arguments.ranks,
        "step_pause_s": PAUSE_S,
        **{kind: summary(runs[kind], wanted) for kind, wanted in kinds.items() if wanted},
        "failed": series.failed,
        "faults": [f"{run.fault} {run.total_s}" for run in series.runs],
    }
    if arguments.each:
        result["runs"] = [asdict(run) for run in series.runs]
    sys.stdout.write(json.dumps(result) + "\n")
    return 0 if series.runs and all(run.recovered for run in series.runs) and not series.failed else 1


if __name__ == "__main__":
    sys.exit(main())
