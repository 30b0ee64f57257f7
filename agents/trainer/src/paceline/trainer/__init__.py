"""Paceline inside the training process.

    from paceline import trainer
    trainer.attach()                      # before init_process_group; `paceline run` does it by itself
    with trainer.phase("checkpoint"): ...
    trainer.step()                        # only where no torch optimizer steps

Nothing here raises into the script, waits for the network or changes a result. Without the native
probe, without an agent, or with `PACELINE_DISABLED=1` every call does nothing.
"""

import logging
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paceline.trainer.repair.session import Session

__all__ = ["Session", "attach", "phase", "step"]

_log = logging.getLogger("paceline")


def attach(
    job_id: str | None = None, name: str | None = None, coordinates: Mapping[str, int] | None = None
) -> bool:
    """Observe this process from its first process group on; True where the hook is in.

    `job_id` groups the ranks of one job, `name` is shown to people, `coordinates` say where this rank
    stands, for example {"tp": 1, "pp": 0, "dp": 3}. Call it before `init_process_group`; calling it
    again adds what is new.
    """
    try:
        from paceline.trainer.process import install

        process = install()
        process.declare(job_id, name, coordinates)
        return process.hook is not None
    except Exception as error:
        _log.warning("paceline could not start (%r); training goes on unobserved", error)
        return False


def phase(name: str) -> AbstractContextManager[None]:
    """Declare what the script does inside the block: `checkpoint`, `evaluate`, `compile`, `data`, ...

    Other ranks that wait meanwhile are judged by longer limits. Any other word is shown as it is.
    """
    from paceline.trainer.process import current

    process = current()
    return process.phase(str(name)) if process is not None else nullcontext()


def step(number: int | None = None) -> None:
    """End of one training step, numbered by the script or counted; optimizers are then not counted."""
    from paceline.trainer.process import current

    process = current()
    if process is not None:
        process.step(number)


def __getattr__(name: str) -> Any:
    if name == "Session":  # imported only by scripts that are to be repaired
        from paceline.trainer.repair.session import Session

        return Session
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
