"""Puts the injector where a phase happens: at parameters, optimizers and groups of this process."""

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from paceline.trainer.repair import points
from paceline.trainer.repair.points import Point
from paceline.trainer.testing.faults import read_faults
from paceline.trainer.testing.injector import Injector
from paceline.trainer.testing.job import GATE_VARIABLE

GATE_S_MAX = 120.0
GATHERS = ("_allgather_base", "all_gather_single")  # names of one operation in different versions of torch
SCATTERS = ("_reduce_scatter_base", "reduce_scatter_single")
log = logging.getLogger("paceline")


def attach_injector(
    engine: Any, wired: Any, protected: Mapping[str, Any], environment: Mapping[str, str]
) -> None:
    """Carry out the faults of the environment in this process; ValueError where they cannot be read."""
    faults = read_faults(environment)
    points.observe(_Gate(environment.get(GATE_VARIABLE, "")))
    if not faults:
        return
    log.warning("%d faults will be injected (PACELINE_TEST_FAULTS)", len(faults))

    def transient() -> None:
        engine.break_transport(ConnectionError("injected: the connections of this rank are gone"))

    injector = Injector(
        faults,
        lambda: engine.rank,
        {
            "transient": transient,
            "store_loss": engine.stores.clear,
            "corrupt_replica": engine.corrupt_replica,
        },
    )
    points.observe(injector)
    sharded = any(hasattr(thing, "reset_iter_state") for thing in protected.values())  # FSDP2
    if injector.wants(Point.BACKWARD):

        def backward() -> None:
            points.reach(Point.BACKWARD, engine.step, engine.generation)

        if sharded:  # it gives the gradients to the parameters without autograd
            _at_operations(wired, SCATTERS, backward)
        else:
            _at_a_gradient(protected, backward)
    if injector.wants(Point.OPTIMIZER):
        for thing in protected.values():
            if callable(getattr(thing, "register_step_pre_hook", None)):
                thing.register_step_pre_hook(
                    lambda *_: points.reach(Point.OPTIMIZER, engine.step, engine.generation)
                )
    if injector.wants(Point.IN_COLLECTIVE):
        _at_operations(
            wired,
            GATHERS if sharded else ("allreduce", "send"),
            lambda: points.reach(Point.IN_COLLECTIVE, engine.step, engine.generation),
        )


class _Gate:
    """Holds the first step back until a file appears, so that standbys are warm before anything happens."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __call__(self, point: Point, _step: int, _generation: int) -> None:
        if point is not Point.FORWARD:  # a standby that warms up comes to other points only
            return
        until = time.monotonic() + GATE_S_MAX
        while self._path and not os.path.exists(self._path) and time.monotonic() < until:
            time.sleep(0.005)
        self._path = ""


def _at_a_gradient(protected: Mapping[str, Any], call: Callable[[], None]) -> None:
    for thing in protected.values():
        if callable(getattr(thing, "parameters", None)):
            parameters = [one for one in thing.parameters() if one.requires_grad]
            if parameters:

                def hook(gradient: Any) -> Any:
                    call()
                    return gradient

                parameters[len(parameters) // 2].register_hook(hook)
                return


def _at_operations(wired: Any, names: Sequence[str], call: Callable[[], None]) -> None:
    """After one was handed to the backend: it is in flight on all members then."""
    for group in wired.groups.living().values():
        for name in names:
            issue = getattr(group, name, None)
            if issue is None:
                continue

            def issued(*arguments: Any, _issue: Callable[..., Any] = issue, **keywords: Any) -> Any:
                work = _issue(*arguments, **keywords)
                call()
                return work

            setattr(group, name, issued)  # the trampoline asks the instance first
