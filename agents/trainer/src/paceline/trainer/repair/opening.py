"""Makes the engine of a training process that a supervisor has started."""

import logging
import socket
import sys
from collections.abc import Mapping
from typing import Any

from paceline.trainer.repair.control import Control, open_control
from paceline.trainer.repair.engine import Engine
from paceline.trainer.repair.place import follows_rank
from paceline.trainer.repair.placing import Placing
from paceline.trainer.repair.protecting import Protection
from paceline.trainer.repair.wiring import wiring
from paceline.trainer.settings import is_disabled
from paceline.trainer.supervisor import FD_VARIABLE
from paceline.trainer.supervisor.settings import DOMAIN_VARIABLE, WAIT_VARIABLE

log = logging.getLogger("paceline")


def end_soon_after_errors(control: Control) -> None:
    """An uncaught exception ends this process within seconds, whatever waits at its exit.

    Its peers wait for it, and gloo's destructors and other people's exit handlers wait for its peers.
    """
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        control.tell_dying()
        before(kind, error, trace)

    sys.excepthook = hook


def open_engine(environment: Mapping[str, str], protected: Mapping[str, Any]) -> Engine | None:
    """The engine of this process; None where nothing is to be repaired."""
    if is_disabled(environment) or not environment.get(FD_VARIABLE):
        return None
    wired = wiring()
    if wired is None or not wired.connected:
        log.warning(
            "paceline repairs nothing here: call init_process_group before Session.open, and leave "
            "TORCH_DEVICE_BACKEND_AUTOLOAD alone: groups become replaceable when torch is imported"
        )
        return None
    wired.follow_rank({name: thing for name, thing in protected.items() if follows_rank(thing)})
    protected = {name: thing for name, thing in protected.items() if not follows_rank(thing)}
    engines: list[Engine] = []
    control = open_control(
        environment,
        lambda order: engines[0].take_order(order) if engines else None,
        lambda order: engines[0].take_planned(order) if engines else None,
    )
    if control is None:
        return None
    wired.track(protected)
    protection = Protection(
        protected,
        wired.groups.job,
        environment.get(DOMAIN_VARIABLE) or socket.gethostname(),
        wired.host,
        wired.groups.check,
    )
    wait_s = float(environment.get(WAIT_VARIABLE) or 60.0)
    placing = Placing(wired, protection, protected)
    engine = Engine(control, wired, protection, placing, wait_s)
    engines.append(engine)
    wired.groups.on_fault = engine.tell_fault
    end_soon_after_errors(control)
    if environment.get("PACELINE_TEST_FAULTS"):
        from paceline.trainer.testing.attach import attach_injector

        attach_injector(engine, wired, protected, environment)
    control.start()
    return engine
