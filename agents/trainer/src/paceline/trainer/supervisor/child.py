"""The training process of one supervisor: started, watched and killed through a pidfd."""

import ctypes
import os
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

from paceline.trainer.identity import parse_pid_start
from paceline.trainer.supervisor import FD_VARIABLE, MEMBER_VARIABLE, ROLE_VARIABLE
from paceline.trainer.supervisor.channel import Channel

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)  # loaded before any fork: nothing to load in the child


class StartError(RuntimeError):
    """The command cannot be started; the message says why."""


class Process(Protocol):
    """A child of this process, as `subprocess.Popen` has it."""

    pid: int

    def poll(self) -> int | None: ...


class TrainingChild:
    """One training process. Its pid is never reused while this object has not reaped it."""

    def __init__(self, process: Process, channel: Channel, role: str) -> None:
        self._process = process
        self.channel = channel
        self.role = role
        self.pid = process.pid
        self.pidfd = os.pidfd_open(process.pid)
        self.pid_start = read_pid_start(process.pid)
        self.code: int | None = None

    @property
    def alive(self) -> bool:
        return self.code is None

    def reap(self) -> int | None:
        """Its status, minus the signal where one ended it; None while it runs."""
        if self.code is None:
            self.code = self._process.poll()
        return self.code

    def is_named(self, pid: str, pid_start: str) -> bool:
        """Whether an order's `pid` and `pid_start` name this very process."""
        return pid == str(self.pid) and pid_start == str(self.pid_start) and self.pid_start != 0

    def send_signal(self, number: int) -> None:
        """Through the pidfd: no other process can be hit. Does nothing once it is gone."""
        try:
            signal.pidfd_send_signal(self.pidfd, number)
        except (ProcessLookupError, OSError):
            pass

    def close(self) -> None:
        self.channel.close()
        os.close(self.pidfd)


def start_child(
    command: Sequence[str], environment: Mapping[str, str], member: str, role: str
) -> TrainingChild:
    """Start `command`, connected by a socketpair; it dies with its supervisor. StartError where it cannot."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # preexec_fn: the supervisor has one thread.
        process = subprocess.Popen(
            list(command),
            env=child_environment(environment, theirs.fileno(), member, role),
            pass_fds=(theirs.fileno(),),
            preexec_fn=partial(die_with, os.getpid()),
        )
    except OSError as error:
        ours.close()
        raise StartError(f"{command[0]!r} could not be started: {error.strerror}") from error
    finally:
        theirs.close()
    return TrainingChild(process, Channel(ours), role)


def child_environment(environment: Mapping[str, str], fd: int, member: str, role: str) -> dict[str, str]:
    """`environment`, and what tells a training process of its supervisor; `fd`: its end of the socketpair."""
    return {
        **environment, "PACELINE": "1", FD_VARIABLE: str(fd), MEMBER_VARIABLE: member, ROLE_VARIABLE: role
    }  # fmt: skip


def die_with(parent: int) -> None:
    """In a new child of `parent`: the kernel kills this process when that one ends."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the line above
        os._exit(1)


def read_pid_start(pid: int) -> int:
    """Field 22 of /proc/PID/stat, 0 where it cannot be read."""
    try:
        return parse_pid_start(Path(f"/proc/{pid}/stat").read_text(errors="replace"))
    except OSError:
        return 0
