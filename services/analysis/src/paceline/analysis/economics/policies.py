"""The three policies, as decisions on events of a run."""

import math

from paceline.analysis.economics.scenario import Scenario
from paceline.analysis.economics.timeline import Policy, Run


def policies_of(scenario: Scenario) -> dict[str, Policy]:
    """A fresh policy of each kind by name, in the order they are shown."""
    return {
        "restart": RestartPolicy(scenario),
        "survivors": SurvivorsPolicy(scenario),
        "hot_swap": HotSwapPolicy(scenario),
    }


class _Checkpoints:
    """Which step is on disk: the last multiple of the interval, or what was saved on purpose."""

    def __init__(self, every_steps: float) -> None:
        self._every = int(every_steps)
        self._saved = 0

    def last(self, completed: int) -> int:
        return max(completed // self._every * self._every, min(self._saved, completed))

    def save(self, completed: int) -> None:
        self._saved = max(self._saved, completed)


class RestartPolicy:
    """A failure kills all; the newest checkpoint is loaded. A failure during a restart begins it anew."""

    standby_gpus = 0.0

    def __init__(self, scenario: Scenario) -> None:
        self._restart = scenario.restart
        self._checkpoints = _Checkpoints(scenario.restart.checkpoint_steps)
        step_s = scenario.job.step_s
        self.overhead_share = self._restart.checkpoint_stall_s / (self._restart.checkpoint_steps * step_s)

    def rate(self) -> float:
        return 1.0

    def on_failure(self, run: Run) -> None:
        run.roll_back(self._checkpoints.last(run.completed))
        run.restart_pause(self._restart.detect_s + self._restart.down_s + self._restart.reschedule_s)

    def on_planned(self, run: Run) -> None:
        if run.down:
            return  # the restart under way takes the machine out as well
        self._checkpoints.save(run.completed)
        run.pause(self._restart.planned_save_s + self._restart.planned_down_s)

    def on_timer(self, run: Run, what: str) -> None:
        raise AssertionError(f"no timer is set: {what}")


class SurvivorsPolicy:
    """A failed replica group leaves; the others go on at a smaller batch until it is replaced."""

    standby_gpus = 0.0

    def __init__(self, scenario: Scenario) -> None:
        self._settings = scenario.survivors
        self._restart = scenario.restart
        self._checkpoints = _Checkpoints(scenario.restart.checkpoint_steps)
        self._active = int(scenario.survivors.groups)
        self.overhead_share = scenario.survivors.overhead_share

    def rate(self) -> float:
        return self._active / self._settings.groups

    def on_failure(self, run: Run) -> None:
        if self._active == 0:
            return
        self._active -= 1
        run.timer(self._settings.replace_s, "joined")
        if self._active == 0:  # nobody holds the state any more
            run.ledger.fallbacks += 1
            run.roll_back(self._checkpoints.last(run.completed))
        else:
            run.roll_back(run.completed)  # the errored step's gradients are discarded
        run.pause(self._settings.detect_s + self._settings.rebuild_s)
        self._wait_for_enough(run)

    def on_planned(self, run: Run) -> None:
        if self._active <= self._settings.groups_min:
            return  # nobody takes a machine from a job that would stop without it
        self._active -= 1
        run.timer(self._settings.replace_s, "joined")
        run.pause(self._settings.rebuild_s)

    def on_timer(self, run: Run, what: str) -> None:
        self._active += 1
        joins_s = self._settings.rebuild_s + self._settings.heal_s
        if self._active >= self._settings.groups_min and math.isinf(run.resumes_s):
            run.restart_pause(joins_s)
        run.pause(joins_s)

    def _wait_for_enough(self, run: Run) -> None:
        if self._active < self._settings.groups_min and not math.isinf(run.resumes_s):
            run.ledger.waits += 1
            run.restart_pause(math.inf)


class HotSwapPolicy:
    """A standby takes the failed machine's place at the last committed step.

    The running step is lost, and the one before where its copy was not yet acknowledged. Where the
    neighbour that holds the copy is lost as well the job falls back to the checkpoint on disk. Without
    a standby it waits for one; the state stays in the memory of the others.
    """

    def __init__(self, scenario: Scenario) -> None:
        self._settings = scenario.hot_swap
        self._restart = scenario.restart
        self._checkpoints = _Checkpoints(scenario.restart.checkpoint_steps)
        self._ready = int(scenario.hot_swap.standbys)
        self._missing = 0  # machines that a job which is down waits for
        self._asked = 0  # planned replacements that wait for a standby
        self._committed = 0
        self.overhead_share = self._settings.overhead_share
        self.standby_gpus = self._settings.standbys * self._settings.machine_gpus

    def rate(self) -> float:
        return 1.0

    def on_failure(self, run: Run) -> None:
        if run.random.random() < self._settings.both_lost_share:
            self._fall_back(run)
            return
        committed = run.completed
        if run.steps - committed < self._settings.commit_lag_share:
            committed -= 1
        self._committed = max(self._committed, committed, 0)
        run.roll_back(self._committed)
        self._missing += 1
        run.timer(self._settings.refill_s, "refilled")
        self._swap(run, self._settings.detect_s + self._settings.swap_s)

    def on_planned(self, run: Run) -> None:
        self._asked += 1
        self._take_planned(run)

    def on_timer(self, run: Run, what: str) -> None:
        if self._missing:
            self._ready += 1
            self._swap(run, self._settings.swap_s)
        else:
            self._ready = min(self._ready + 1, max(int(self._settings.standbys), self._asked))
            self._take_planned(run)

    def _fall_back(self, run: Run) -> None:
        """The scheduler restarts the whole job on other machines; standbys are left as they are."""
        run.ledger.fallbacks += 1
        self._committed = self._checkpoints.last(run.completed)
        self._missing = 0
        run.roll_back(self._committed)
        run.restart_pause(self._restart.detect_s + self._restart.down_s + self._restart.reschedule_s)

    def _swap(self, run: Run, seconds: float) -> None:
        taken = min(self._missing, self._ready)
        self._missing -= taken
        self._ready -= taken
        if self._missing:
            run.ledger.waits += not math.isinf(run.resumes_s)
            run.restart_pause(math.inf)
        elif math.isinf(run.resumes_s):
            run.restart_pause(seconds)
        else:
            run.pause(seconds)

    def _take_planned(self, run: Run) -> None:
        """Prepared in the background, switched at a step boundary: nothing is replayed."""
        while self._asked and self._ready:
            self._asked -= 1
            self._ready -= 1
            run.timer(self._settings.refill_s, "refilled")
            run.pause(self._settings.planned_s)
