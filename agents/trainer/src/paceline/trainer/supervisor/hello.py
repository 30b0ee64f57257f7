"""What a supervisor says of itself, and when."""

import os
from collections.abc import Callable
from dataclasses import replace

from paceline.contracts.recovery import Role, SupervisorHello, Support
from paceline.trainer.supervisor.child import TrainingChild
from paceline.trainer.supervisor.local import ChildState
from paceline.trainer.supervisor.settings import SupervisorSettings

STEP_REPORT_S = 0.25  # a hello in which only the step is new comes no oftener


def make_hello(
    settings: SupervisorSettings, state: ChildState, child: TrainingChild | None
) -> SupervisorHello:
    """The member as it is now; a rank below 0 is a standby's."""
    known = state.support in [one.value for one in Support]
    return SupervisorHello(
        job=settings.job,
        attempt=settings.attempt,
        member=settings.member,
        role=Role.STANDBY if state.rank < 0 else Role.MEMBER,
        rank=max(-1, state.rank),
        pid=os.getpid(),
        child_pid=child.pid if child is not None else 0,
        child_pid_start=child.pid_start if child is not None else 0,
        generation=state.generation,
        step=state.step,
        store=state.store if child is not None else "",
        replica=state.replica if child is not None else "",
        failure_domain=settings.failure_domain,
        ready=state.ready and child is not None,
        world_size=state.world_size,
        support=Support(state.support) if known else Support.EXPERIMENTAL,
    )


class Teller:
    """Which hello is due: each change at once, a new step alone at most every STEP_REPORT_S."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._told: SupervisorHello | None = None
        self._told_s = 0.0

    def forget(self) -> None:
        """The next hello is due whatever it says."""
        self._told = None

    def due_in_s(self, hello: SupervisorHello) -> float | None:
        """Seconds until `hello` is to be told, 0 for now, None where nothing is new."""
        told = self._told
        if told is None:
            return 0.0
        if hello == told:
            return None
        if replace(hello, step=told.step) != told:
            return 0.0
        return max(0.0, self._told_s + STEP_REPORT_S - self._clock())

    def take(self, hello: SupervisorHello) -> None:
        """It has been told."""
        self._told, self._told_s = hello, self._clock()
