"""The `Session` of a training script: a step that a fault interrupts is repaired and run again.

    from paceline.trainer import Session
    dist.init_process_group("gloo")
    ...
    session = Session.open(model=model, optimizer=optimizer, scheduler=scheduler)
    for step in session.steps(1000):
        with session.step(step):
            ...

Without a supervisor (`paceline run --repair`), or with `PACELINE_DISABLED=1`, it only counts
(docs/adr/0042-supervisors.md).
"""

from paceline.trainer.repair.errors import NotRepaired, TransientFault
from paceline.trainer.repair.session import Session

__all__ = ["NotRepaired", "Session", "TransientFault"]
