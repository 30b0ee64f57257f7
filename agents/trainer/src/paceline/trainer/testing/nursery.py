"""Supervisors and training processes as forks of one process that has imported torch, which takes seconds.

A supervisor made here is the real one; only its child is forked instead of executed. Run as a module it
reads one request a line, `{"log": PATH, "environment": {...}, "words": [...]}`, and answers with a pid.
"""

import faulthandler
import gc
import json
import os
import runpy
import signal
import socket
import sys
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

from paceline.trainer.supervisor.channel import Channel
from paceline.trainer.supervisor.child import TrainingChild, child_environment, die_with
from paceline.trainer.supervisor.core import Supervisor
from paceline.trainer.supervisor.settings import read_supervisor_settings
from paceline.trainer.supervisor.signals import PASSED_ON, Signals

PRELOADED = ("torch", "torch.distributed", "torch._dynamo", "torch.nn.parallel", "torch.optim")


class Forked:
    """What a supervisor needs of a `subprocess.Popen`."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._code: int | None = None

    def poll(self) -> int | None:
        if self._code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._code = os.waitstatus_to_exitcode(status)
        return self._code


def fork_child(
    command: Sequence[str], environment: Mapping[str, str], member: str, role: str
) -> TrainingChild:
    """As `start_child`, with `command` a Python program and its arguments, run in a fork."""
    ours, theirs = socket.socketpair()
    parent = os.getpid()
    pid = os.fork()
    if pid:
        theirs.close()
        return TrainingChild(Forked(pid), Channel(ours), role)
    ours.close()
    code = 1
    try:
        die_with(parent)
        signal.set_wakeup_fd(-1)
        for number in PASSED_ON:
            signal.signal(number, signal.SIG_DFL)
        os.environ.clear()
        os.environ.update(child_environment(environment, theirs.fileno(), member, role))
        faulthandler.enable()
        faulthandler.register(signal.SIGUSR1)  # a supervisor passes it on: where does it hang?
        code = _run_program(command)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _run_program(command: Sequence[str]) -> int:
    from paceline.trainer.autoload import autoload

    autoload()  # torch has been imported before the environment asked for it
    sys.argv = list(command)
    try:
        runpy.run_path(command[0], run_name="__main__")
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    return 0


def _fork_supervisor(request: Mapping[str, Any]) -> int:
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        die_with(parent)
        log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.environ.clear()
        os.environ.update(request["environment"])
        signals = Signals()
        signals.install()
        settings = read_supervisor_settings(os.environ)
        status = Supervisor(settings, request["words"], dict(os.environ), signals, start=fork_child).run()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def main() -> None:
    """Until the end of stdin; whatever runs then ends with it."""
    for name in PRELOADED:
        __import__(name)
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for line in sys.stdin:
        request = json.loads(line)
        if "wait" in request:
            answer: int | None = _poll(int(request["wait"]))
        else:
            answer = _fork_supervisor(request)
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


def _poll(pid: int) -> int | None:
    try:
        found, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return -1
    return os.waitstatus_to_exitcode(status) if found else None


if __name__ == "__main__":
    main()
