"""What protection has taken of the training's time, told where it is more than it may be."""

from dataclasses import dataclass

from paceline.trainer.protection.budget import OVERHEAD_MAX

WINDOW_STEPS = 64


@dataclass(frozen=True)
class Taken:
    """Of one window of steps; `held_s` at the gate, `capture_s` at the ends of steps, of `elapsed_s`."""

    steps: int
    overruns: int
    held_s: float
    capture_s: float
    elapsed_s: float

    @property
    def share(self) -> float:
        """Of the time of the steps."""
        return (self.held_s + self.capture_s) / self.elapsed_s if self.elapsed_s > 0 else 0.0

    @property
    def step_s(self) -> float:
        return self.elapsed_s / self.steps

    @property
    def exceeds(self) -> bool:
        return self.share > OVERHEAD_MAX

    def __str__(self) -> str:
        return (
            f"protection took {self.share:.1%} of {self.steps} steps of {self.step_s * 1e3:.1f} ms: they "
            f"were held up {self.overruns} times, {self.held_s * 1e3:.1f} ms together, and "
            f"{self.capture_s * 1e3:.1f} ms went into the copies' beginning"
        )


class OverrunWatch:
    """Given the running totals at the end of each step; the first window begins with the first one.

    `newest` is the last full window. Windows that exceed are told at each doubling of their number, so that a
    long run writes few lines.
    """

    def __init__(self) -> None:
        self.newest: Taken | None = None
        self.exceeded = 0
        self._steps = 0
        self._start: tuple[float, int, float, float] | None = None

    def restart(self) -> None:
        """A generation has ended: what lies between is no step."""
        self._start = None

    def end_step(self, now_s: float, overruns: int, held_s: float, capture_s: float) -> Taken | None:
        """What is to be told now."""
        if self._start is None:
            self._start, self._steps = (now_s, overruns, held_s, capture_s), 0
            return None
        self._steps += 1
        if self._steps < WINDOW_STEPS:
            return None
        began_s, before, held, captured = self._start
        taken = Taken(self._steps, overruns - before, held_s - held, capture_s - captured, now_s - began_s)
        self._start, self._steps, self.newest = (now_s, overruns, held_s, capture_s), 0, taken
        if not taken.exceeds:
            return None
        self.exceeded += 1
        return taken if self.exceeded & (self.exceeded - 1) == 0 else None
