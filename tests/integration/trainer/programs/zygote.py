"""Ranks as forks of a process that has imported torch once (an import takes seconds), led by that process.

Nothing may have started a thread before the fork, and a child ends by `os._exit`.
"""

import json
import os
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

GUARD_S = 60.0


class Line:
    """JSON lines over a socket."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._early = b""

    def tell(self, **said: Any) -> None:
        self._sock.sendall((json.dumps(said) + "\n").encode())

    def hear(self, what: str, timeout_s: float = GUARD_S) -> Any:
        """The next thing said, which has to hold the key `what`; its value."""
        return self.hear_all(what, timeout_s)[what]

    def hear_all(self, what: str, timeout_s: float = GUARD_S) -> Any:
        """The next thing said, which has to hold the key `what`."""
        until = time.monotonic() + timeout_s
        while b"\n" not in self._early:
            if not select.select([self._sock], [], [], max(0.0, until - time.monotonic()))[0]:
                raise TimeoutError(f"{what!r} was not said within {timeout_s} s")
            data = self._sock.recv(65536)
            if not data:
                raise EOFError(f"the other end is gone, {what!r} was expected")
            self._early += data
        line, self._early = self._early.split(b"\n", 1)
        said = json.loads(line)
        if what not in said:
            raise ValueError(f"{what!r} was expected, said was {said}")
        return said


class Child(Line):
    def __init__(self, pid: int, sock: socket.socket) -> None:
        super().__init__(sock)
        self.pid = pid

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def await_stopped(self) -> None:
        os.waitpid(self.pid, os.WUNTRACED)


class Ranks:
    """Children of this process; what still lives at the end is killed."""

    def __init__(self) -> None:
        self.children: list[Child] = []

    def __enter__(self) -> "Ranks":
        return self

    def __exit__(self, *_: object) -> None:
        for child in self.children:
            for number in (signal.SIGKILL, signal.SIGCONT):
                try:
                    os.kill(child.pid, number)
                except ProcessLookupError:
                    pass
            try:
                os.waitpid(child.pid, 0)
            except ChildProcessError:
                pass

    def fork(self, run: Callable[..., None], *arguments: Any) -> Child:
        """A child that runs `run(line, *arguments)`."""
        ours, theirs = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            ours.close()
            try:
                run(Line(theirs), *arguments)
            except BaseException:
                traceback.print_exc()
                sys.stderr.flush()
            finally:
                os._exit(0)
        theirs.close()
        child = Child(pid, ours)
        self.children.append(child)
        return child
