"""The papers' own arithmetic, in closed form."""


def recovery_ratio(
    *, step_s: float, checkpoint_steps: float, restart_s: float, swap_s: float, replayed_steps: float = 1.0
) -> float:
    """How many times more a failure costs with checkpoints than with a copy of the last step.

    A failure falls on average half-way between two checkpoints. At a step of 0.9 s, 1,000 steps, 150 s
    and 31 s it is 18.8, and most of that is replay: without step time and interval the figure says
    nothing about a mechanism.
    """
    return (restart_s + step_s * checkpoint_steps / 2) / (swap_s + step_s * replayed_steps)


def lost_share(down_s: float, every_s: float) -> float:
    """Share of the wall time that is lost where the job is down for `down_s` once in `every_s`."""
    return down_s / every_s


def ettr(down_s: float, every_s: float) -> float:
    """Effective training time ratio under the same condition."""
    return 1.0 - lost_share(down_s, every_s)
