"""Called by torch through the entry point `torch.backends` while `import torch` runs."""

import logging
import os

from paceline.trainer.supervisor import FD_VARIABLE

log = logging.getLogger("paceline")


def autoload() -> None:
    """Put the hook in where `PACELINE=1` asks for it; never raises, that would break `import torch`.

    torchrun's parent and data loaders import torch too: nothing is opened before the process makes
    a process group.
    """
    if os.environ.get("PACELINE") != "1":
        return
    try:
        from paceline.trainer.process import install

        install()
        if os.environ.get(FD_VARIABLE):
            from paceline.trainer.repair.wiring import wire

            wire()  # around the hook, which then sees what is made for each generation
    except (Exception, SystemExit) as error:
        log.warning("paceline could not start (%r); training goes on unobserved", error)
