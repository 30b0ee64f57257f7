"""The discrete-event core: one job, one policy, one seed.

Time jumps from event to event: a failure, a planned replacement, a timer of the policy, the end of a
pause, the last step. Between two events the job trains at a constant rate or is down. Whole steps are
never walked through, so 100,000 of them cost as many operations as there are events.
"""

import heapq
import math
import random
from dataclasses import dataclass
from typing import Protocol

from paceline.analysis.economics.scenario import Job, Scenario

EVENTS_MAX = 20_000_000
_ROUNDING = 1e-6  # of a step: what floating point adds up to over a run


@dataclass
class Ledger:
    """Where the wall time of one run went, in seconds; its parts add up to `wall_s`.

    `useful_s` is the time that the kept steps take at full speed. `replay_s` was trained and thrown away,
    `reduced_s` is what missing machines would have done, `overhead_s` what a policy adds to each step.
    `replayed_steps` counts completed steps done again; an interrupted step was never completed.
    """

    wall_s: float = 0.0
    useful_s: float = 0.0
    down_s: float = 0.0
    replay_s: float = 0.0
    reduced_s: float = 0.0
    overhead_s: float = 0.0
    standby_gpu_s: float = 0.0
    failures: int = 0
    planned: int = 0
    replayed_steps: int = 0
    replayed_steps_most: int = 0
    fallbacks: int = 0
    waits: int = 0  # for a machine, with the job down


class Arrivals:
    """Seconds to the next failure or planned replacement; the same draws for every policy."""

    def __init__(self, every_s: float, kind: str, stream: random.Random) -> None:
        self._every_s = every_s
        self._kind = kind
        self._stream = stream
        self.remaining_s = self._draw()

    def _draw(self) -> float:
        if self._every_s <= 0:
            return math.inf
        return self._every_s if self._kind == "every" else self._stream.expovariate(1.0 / self._every_s)

    def due_in(self, training: bool) -> float:
        return self.remaining_s if training or self._kind != "training" else math.inf

    def advance(self, seconds: float, training: bool) -> None:
        if training or self._kind != "training":
            self.remaining_s -= seconds

    def renew(self) -> None:
        self.remaining_s = self._draw()


class Policy(Protocol):
    """What happens on an event. `rate` is the share of full work done while the job trains."""

    overhead_share: float
    standby_gpus: float

    def rate(self) -> float: ...
    def on_failure(self, run: "Run") -> None: ...
    def on_planned(self, run: "Run") -> None: ...
    def on_timer(self, run: "Run", what: str) -> None: ...


class Run:
    """The state of one simulated job, and what policies may do to it."""

    def __init__(self, scenario: Scenario, seed: int) -> None:
        self.job: Job = scenario.job
        self.ledger = Ledger()
        self.now_s = 0.0
        self.resumes_s = 0.0  # down before this time
        self.random = random.Random(f"{seed}/policy")
        self._timers: list[tuple[float, int, str]] = []
        self._timer_count = 0
        planned_kind = "every" if scenario.arrivals == "every" else "exponential"
        self._failures = Arrivals(
            self.job.failure_every_s, scenario.arrivals, random.Random(f"{seed}/failures")
        )
        self._planned = Arrivals(self.job.planned_every_s, planned_kind, random.Random(f"{seed}/planned"))

    @property
    def down(self) -> bool:
        return self.now_s < self.resumes_s

    @property
    def steps(self) -> float:
        """Steps done and kept, with the part of the running one."""
        return self.ledger.useful_s / self.job.step_s

    @property
    def completed(self) -> int:
        return math.floor(self.steps + _ROUNDING)

    def pause(self, seconds: float) -> None:
        """Down for `seconds` from now, or longer where it already is."""
        self.resumes_s = max(self.resumes_s, self.now_s + seconds)

    def restart_pause(self, seconds: float) -> None:
        """Down for `seconds` from now, whatever was under way before."""
        self.resumes_s = self.now_s + seconds

    def roll_back(self, to_step: int) -> None:
        """Throws away what was done after `to_step`."""
        again = max(0, self.completed - to_step)
        kept_s = min(self.ledger.useful_s, to_step * self.job.step_s)
        self.ledger.replay_s += self.ledger.useful_s - kept_s
        self.ledger.useful_s = kept_s
        self.ledger.replayed_steps += again
        self.ledger.replayed_steps_most = max(self.ledger.replayed_steps_most, again)

    def timer(self, seconds: float, what: str) -> None:
        self._timer_count += 1
        heapq.heappush(self._timers, (self.now_s + seconds, self._timer_count, what))

    def play(self, policy: Policy) -> Ledger:
        """Runs to the last step."""
        for _ in range(EVENTS_MAX):
            if self._advance(policy):
                self.ledger.standby_gpu_s = policy.standby_gpus * self.ledger.wall_s
                return self.ledger
        raise RuntimeError(f"not finished after {EVENTS_MAX} events")

    def _advance(self, policy: Policy) -> bool:
        """To the next event; True after the last step."""
        training = not self.down
        rate = policy.rate() / (1.0 + policy.overhead_share)
        left_s = self.job.steps * self.job.step_s - self.ledger.useful_s
        ends = {
            "end": (left_s / rate if rate > 0 else math.inf) if training else math.inf,
            "resume": math.inf if training else self.resumes_s - self.now_s,
            "timer": self._timers[0][0] - self.now_s if self._timers else math.inf,
            "failure": self._failures.due_in(training),
            "planned": self._planned.due_in(training),
        }
        event = min(ends, key=ends.__getitem__)
        self._pass(max(ends[event], 0.0), training, policy)
        if event == "end":
            return True
        if event == "resume":
            self.now_s = self.resumes_s
        elif event == "timer":
            policy.on_timer(self, heapq.heappop(self._timers)[2])
        elif event == "failure":
            self._failures.renew()
            self.ledger.failures += 1
            policy.on_failure(self)
        else:
            self._planned.renew()
            self.ledger.planned += 1
            policy.on_planned(self)
        return False

    def _pass(self, seconds: float, training: bool, policy: Policy) -> None:
        self.now_s += seconds
        self.ledger.wall_s += seconds
        self._failures.advance(seconds, training)
        self._planned.advance(seconds, training)
        if not training:
            self.ledger.down_s += seconds
            return
        without_overhead_s = seconds / (1.0 + policy.overhead_share)
        useful_s = without_overhead_s * policy.rate()
        self.ledger.useful_s += useful_s
        self.ledger.overhead_s += seconds - without_overhead_s
        self.ledger.reduced_s += without_overhead_s - useful_s
