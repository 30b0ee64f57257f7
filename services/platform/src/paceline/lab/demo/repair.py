"""`paceline demo --fault kill` and `--fault hang`: a rank is lost, and with `--mode auto` a standby takes its
place while the job runs, through the whole platform."""

import argparse
import secrets
import time
from pathlib import Path

from paceline.contracts.repair import RepairMode
from paceline.lab.demo.job import REPAIRED_RANKS
from paceline.lab.demo.repair_report import Result, lines_of
from paceline.lab.demo.scene import JOB, Scene
from paceline.lab.repair.crew import Crew, all_ended, await_end, await_fault, difference
from paceline.lab.repair.policies import allow
from paceline.lab.repair.registry import actions_of, settled_action
from paceline.lab.repair.story import Story, tell
from paceline.lab.repair.watch import RepairWatch, watching_repair
from paceline.runtime.settings import KafkaSettings, load_settings
from paceline.store import Database
from paceline.store.models.repair import RepairAction
from paceline.trainer.testing import Fault, RepairJob, draw_fault

PROGRAM = Path(__file__).with_name("repaired.py")
KINDS = {"kill": "sigkill", "hang": "sigstop"}
WARMUP_S = 3.0
STEP_S = 0.1
STEPS_AFTER = 80  # of the fault, so that the job is still under way when the repair has proven itself
DECISION_S_MAX = 60.0
END_S_MAX = 60.0
POLL_S = 0.1
SETTLED_S_MAX = 10.0


class RepairDemo:
    """What happens on the scene: warm-up, fault, repair, comparison with an uninterrupted run."""

    def __init__(self, arguments: argparse.Namespace, scene: Scene, crew: Crew) -> None:
        self.outcome: Result | None = None
        self._mode = RepairMode(arguments.mode)
        self._once: bool = arguments.once
        self._seed: int = secrets.randbelow(1 << 31) if arguments.seed is None else arguments.seed
        warmup_s = WARMUP_S if arguments.warmup is None else arguments.warmup
        self._step = max(2, round(warmup_s / STEP_S))
        drawn = draw_fault(self._seed, REPAIRED_RANKS, 4, kinds=[KINDS[arguments.fault]])
        rank = drawn.rank if arguments.rank is None else arguments.rank
        self._fault = Fault(drawn.kind, rank, self._step, drawn.phase)
        self._steps = self._step + STEPS_AFTER
        self._scene = scene
        self._crew = crew

    @property
    def _command(self) -> list[str]:
        return [str(PROGRAM), "--steps", str(self._steps), "--pause"]

    async def act(self) -> None:
        """Sets `outcome`; without --once it stays on until it is stopped."""
        scene = self._scene
        store = Database(scene.platform.database_url)
        try:
            async with watching_repair(load_settings(KafkaSettings)) as watch:
                job = await self._crew.start(store, [*self._command, str(STEP_S)], [self._fault], JOB)
                await allow(scene.platform.token, self._mode, job.name)
                scene.say(f"job       {job.name}, {REPAIRED_RANKS} ranks and a warm standby")
                scene.say_console()
                self.outcome = await self._strike(store, watch, job)
                if not self._once:
                    scene.say("Ctrl-C stops everything")
                    await scene.stop.wait()
        finally:
            await store.stop()

    async def _strike(self, store: Database, watch: RepairWatch, job: RepairJob) -> Result:
        scene = self._scene
        began_s = time.monotonic()
        job.open_gate()
        fault_s = await await_fault(job, 30.0 + 4 * self._step * STEP_S)
        scene.say(f"healthy   {self._step} steps in {time.monotonic() - began_s:.1f} s")
        scene.say(
            f"fault     {self._fault.kind.upper()} of rank {self._fault.rank} in phase "
            f"{self._fault.phase} of step {self._step} (seed {self._seed})"
        )

        def story() -> Story:
            return tell(watch.seen[job.name], fault_s, REPAIRED_RANKS)

        if self._mode is RepairMode.AUTO:
            await watch.until(lambda: story().is_over, DECISION_S_MAX)
            has_ended = await await_end(job, END_S_MAX)
            unlike = await self._compare(job) if has_ended else "the job did not end"
            action = await settled_action(store, job.name, SETTLED_S_MAX)
        else:
            action = await self._proposal(store, watch, job)
            unlike = ""
        result = Result(self._mode, self._fault, self._seed, self._steps, story(), unlike, action)
        for line in lines_of(result):
            scene.say(line)
        if not result.right:
            scene.say(f"the ranks said:\n{job.output()}")
        return result

    async def _proposal(self, store: Database, watch: RepairWatch, job: RepairJob) -> RepairAction | None:
        """The first proposal that names a rank; nobody carries it out."""
        until = time.monotonic() + DECISION_S_MAX
        while time.monotonic() < until and not all_ended(job):
            for action in await actions_of(store, job.name):
                if action.ranks:
                    return action
            await watch.until(lambda: False, POLL_S)
        return None

    async def _compare(self, job: RepairJob) -> str:
        """With the same program that nobody has disturbed."""
        whole = await self._crew.uninterrupted([*self._command, "0"])
        return difference(job, whole)
