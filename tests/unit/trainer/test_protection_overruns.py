"""When protection says that it takes too much of the training's time."""

from paceline.trainer.protection.overruns import WINDOW_STEPS, OverrunWatch, Taken


def run(watch: OverrunWatch, windows: int, held_s: float, start: float = 0.0) -> list[Taken]:
    """Steps of 100 ms, of which `held_s` at the gate."""
    told = []
    for step in range(windows * WINDOW_STEPS + 1):
        taken = watch.end_step(start + step * 0.1, step, step * held_s, 0.0)
        if taken is not None:
            told.append(taken)
    return told


def test_a_share_within_the_limit_is_measured_and_not_told() -> None:
    watch = OverrunWatch()
    assert run(watch, 3, 0.0009) == []
    assert watch.newest is not None
    assert abs(watch.newest.share - 0.009) < 1e-9


def test_a_share_above_it_is_told_with_its_figures_at_each_doubling() -> None:
    watch = OverrunWatch()
    told = run(watch, 9, 0.005)
    assert len(told) == 4  # the first, second, fourth and eighth window
    assert watch.exceeded == 9
    assert str(told[0]).startswith("protection took 5.0% of 64 steps of 100.0 ms: they were held up 64 times")


def test_what_lies_between_two_generations_is_no_step() -> None:
    watch = OverrunWatch()
    watch.end_step(0.0, 0, 0.0, 0.0)
    watch.restart()
    assert run(watch, 1, 0.0, start=1000.0) == []
    assert watch.newest is not None
    assert watch.newest.elapsed_s < 7.0
