"""Carries out the faults of this process's rank, inside the training process."""

import ctypes
import logging
import os
import signal
import time
from collections.abc import Callable, Sequence

from paceline.trainer.repair.points import Point
from paceline.trainer.testing.faults import Fault
from paceline.trainer.testing.job import FAULT_TIMES, RESULTS_VARIABLE

log = logging.getLogger("paceline")
SIGNALS = {"sigkill": signal.SIGKILL, "sigterm": signal.SIGTERM, "sigstop": signal.SIGSTOP}


class InjectedFault(RuntimeError):
    """The exception of the kind `exception`; no defect of the script."""


class Injector:
    """An observer of `repair.points` for the process of `rank`, which may change when it is promoted.

    `actions` are the kinds that need the session: transient, store_loss, corrupt_replica.
    """

    def __init__(
        self, faults: Sequence[Fault], rank: Callable[[], int], actions: dict[str, Callable[[], None]]
    ) -> None:
        self._faults = list(faults)
        self._rank = rank
        self._actions = actions

    def wants(self, point: Point) -> bool:
        """Whether any fault stands at `point`, so that a hook for it is worth its cost."""
        return any(fault.phase == point.value for fault in self._faults)

    def __call__(self, point: Point, step: int, generation: int) -> None:
        for fault in list(self._faults):
            if not self._is_now(fault, point, step, generation):
                continue
            if fault.kind == "slow_rank":
                time.sleep(fault.seconds)
                continue
            self._faults.remove(fault)
            log.warning("injected %s at %s of step %d on rank %d", fault.kind, point.value, step, fault.rank)
            self._inject(fault)

    def _is_now(self, fault: Fault, point: Point, step: int, generation: int) -> bool:
        if fault.phase != point.value or fault.rank != self._rank():
            return False
        if fault.generation not in (-1, generation):
            return False
        if point is Point.REBUILD:
            return True
        return step >= fault.step if fault.kind == "slow_rank" else step == fault.step

    def _note_time(self) -> None:
        folder = os.environ.get(RESULTS_VARIABLE)
        if folder:
            with open(os.path.join(folder, FAULT_TIMES), "a") as file:
                file.write(f"{time.monotonic():.6f}\n")

    def _inject(self, fault: Fault) -> None:
        self._note_time()
        if fault.kind in SIGNALS:
            os.kill(os.getpid(), SIGNALS[fault.kind])
        elif fault.kind == "exception":
            raise InjectedFault(f"injected at {fault.phase} of step {fault.step}")
        elif fault.kind == "held_gil":
            ctypes.PyDLL(None).usleep(int(fault.seconds * 1e6))  # PyDLL keeps the GIL during the call
        else:
            self._actions[fault.kind]()
