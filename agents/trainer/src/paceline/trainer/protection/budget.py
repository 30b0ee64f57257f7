"""Whether protection fits beside the training, and which interval it can hold. Pure."""

import math
from dataclasses import dataclass
from enum import Enum

INTERVAL_STEPS_MAX = 1000
OVERHEAD_MAX = 0.01  # of the step time, as a mean over the interval
OVERHEAD_AIM = 0.0075  # what an interval is chosen for, so that what is measured lies within the limit whole
# A step of several ranks lasts as long as on the slowest and pays more than each rank's own mean: 3.7 ms for
# 1.5 of known parts on two ranks, with steps of 147 and of 277 ms (docs/performance.md).
SLOWEST_RANK = 2.5


class BudgetReason(str, Enum):
    """What decides the interval."""

    FITS = "fits"  # every step
    COPY_SLOW = "copy_slow"  # the copy outlives the next forward and backward
    COMMIT_SLOW = "commit_slow"  # the keeper has it too late
    CPU_BUSY = "cpu_busy"  # copying takes CPU time, or Python's lock, from the training
    TOO_SLOW = "too_slow"  # not even every INTERVAL_STEPS_MAX steps


@dataclass(frozen=True)
class Costs:
    """Measured costs of one protected step and of one step of training, in seconds.

    `free_share`: how much of the protection's CPU time finds an idle core (1 where the training is on an
    accelerator, 0 where its processes use every core). `list_s`: of the copy, what holds the interpreter's
    lock, so that the training thread stands still for it whatever cores are idle.
    """

    copy_s: float
    seal_s: float
    send_s: float
    capture_s: float
    step_s: float
    optimizer_s: float
    free_share: float = 1.0
    list_s: float = 0.0


@dataclass(frozen=True)
class Budget:
    """What protection costs at the smallest interval that holds.

    `overhead`: expected share of the step time. `replayed_steps_max`: after a loss, at this interval.
    """

    interval_steps: int
    reason: BudgetReason
    overhead: float
    replayed_steps_max: int
    detail: str

    @property
    def fits(self) -> bool:
        """Whether every single step can be protected within the limit."""
        return self.reason is BudgetReason.FITS


def budget(costs: Costs, overhead_max: float = OVERHEAD_AIM) -> Budget:
    """The smallest interval whose mean overhead stays within `overhead_max`, and what decides it."""
    window_s = max(costs.step_s - costs.optimizer_s, 0.0)
    cpu_s = costs.copy_s + costs.seal_s + costs.send_s
    stall_s = max(costs.copy_s - window_s, 0.0)
    own_s = costs.capture_s + costs.list_s
    fixed_s = SLOWEST_RANK * own_s + (cpu_s - costs.list_s) * (1.0 - costs.free_share)
    behind_s = max(costs.copy_s + costs.seal_s + costs.send_s - window_s, 0.0)
    needs = {
        BudgetReason.COPY_SLOW: _steps(stall_s, overhead_max * costs.step_s),
        BudgetReason.CPU_BUSY: _steps(stall_s + fixed_s, overhead_max * costs.step_s),
        BudgetReason.COMMIT_SLOW: 1 + _steps(behind_s, costs.step_s) if behind_s else 1,
    }
    interval = max(1, *needs.values())
    reason = BudgetReason.FITS
    if interval > 1:
        reason = next(name for name, steps in needs.items() if steps == interval)
    if interval > INTERVAL_STEPS_MAX:
        interval, reason = INTERVAL_STEPS_MAX, BudgetReason.TOO_SLOW
    exposed_s = stall_s if interval > 1 else max(stall_s, behind_s)
    overhead = (exposed_s + fixed_s) / (interval * costs.step_s) if costs.step_s > 0 else 0.0
    exposed = f", which costs a step {fixed_s * 1e3:.2f} ms" if fixed_s else ""
    detail = (
        f"a copy takes {costs.copy_s * 1e3:.2f} ms and is safe {cpu_s * 1e3:.2f} ms after its step{exposed}; "
        f"forward and backward take {window_s * 1e3:.2f} ms"
    )
    return Budget(interval, reason, overhead, 1 if interval == 1 else 2 * interval - 1, detail)


def _steps(seconds: float, allowed_s: float) -> int:
    """Over how many steps `seconds` must be spread so that each gets at most `allowed_s`."""
    if seconds <= 0:
        return 1
    if allowed_s <= 0:
        return INTERVAL_STEPS_MAX + 1
    return min(math.ceil(seconds / allowed_s), INTERVAL_STEPS_MAX + 1)


@dataclass(frozen=True)
class Coverage:
    """What has a second copy where, told once at the start; bytes of this rank."""

    shared_bytes: int  # equal on the other replicas, each of which is a copy
    kept_bytes: int  # this rank's alone, kept by its keeper
    skipped_bytes: int  # optimizer state that a keeper would only duplicate
    exposed: tuple[str, ...]  # what has no second copy outside its failure domain

    def lines(self) -> list[str]:
        """For the log."""
        said = [f"{self.kept_bytes} bytes go to the keeper, {self.shared_bytes} bytes are equal on replicas"]
        if self.skipped_bytes:
            said.append(
                f"the optimizer is not sharded: {self.skipped_bytes} bytes of its state are equal on all "
                "replicas and not sent"
            )
        said += [f"not protected: {name}" for name in self.exposed]
        return said
