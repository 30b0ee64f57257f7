"""`python -m paceline.trainer.supervisor -- COMMAND ...`: COMMAND under a supervisor, with its status."""

import os
import sys

from paceline.trainer.settings import is_disabled
from paceline.trainer.supervisor.child import StartError
from paceline.trainer.supervisor.core import Supervisor
from paceline.trainer.supervisor.settings import read_supervisor_settings
from paceline.trainer.supervisor.signals import Signals

USAGE = 2
NOT_EXECUTABLE = 126


def main(arguments: list[str]) -> int:
    """Supervise the command; without a rank, or where Paceline is disabled, become the command instead."""
    command = arguments[1:] if arguments[:1] == ["--"] else arguments
    if not command:
        sys.stderr.write("paceline supervisor: no command; write it after --\n")
        return USAGE
    settings = read_supervisor_settings(os.environ)
    try:
        if is_disabled(os.environ) or (settings.rank < 0 and settings.role != "standby"):
            for warning in settings.warnings:
                sys.stderr.write(f"paceline supervisor: {warning}\n")
            sys.stderr.flush()
            os.execvp(command[0], command)  # noqa: S606
        signals = Signals()
        signals.install()
        return Supervisor(settings, command, os.environ, signals).run()
    except (OSError, StartError) as error:
        sys.stderr.write(f"paceline supervisor: {error}\n")
        return NOT_EXECUTABLE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
