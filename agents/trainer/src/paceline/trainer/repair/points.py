"""Named moments of a step and of a recovery; tests stand there, otherwise nobody does."""

from collections.abc import Callable
from enum import Enum


class Point(str, Enum):
    FORWARD = "forward"  # the step has begun
    BACKWARD = "backward"  # a gradient is being computed
    IN_COLLECTIVE = "in_collective"  # an operation was handed to the backend and is not over
    OPTIMIZER = "optimizer"  # the optimizer is about to write
    SNAPSHOT = "snapshot"  # the step is done, its copy and its way to the neighbour have begun
    REBUILD = "rebuild"  # the new groups are there, nothing is restored yet


Observer = Callable[[Point, int, int], None]  # point, step, generation; may raise what a script could raise
_observers: list[Observer] = []


def observe(observer: Observer) -> None:
    """Call `observer` at every point from now on."""
    _observers.append(observer)


def reach(point: Point, step: int, generation: int) -> None:
    """The training thread is at `point`."""
    for observer in _observers:
        observer(point, step, generation)
