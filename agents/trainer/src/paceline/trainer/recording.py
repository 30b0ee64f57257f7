"""Starting the agent that records one command, beside it and out of its way.

The agent is no child of the command: it is started twice removed, in a session of its own, so that the
command keeps its process number, its exit status, its signals and its children as they would be without it.
"""

import os
import select
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import entry_points
from pathlib import Path

FOLDER_PREFIX = "paceline-record-"  # the agent removes a folder of this name when it ends
SOCKET_BYTES_MAX = 100  # a unix socket's path has 107
READY_S_MAX = 3.0  # then the command starts without waiting, and the agent says itself what fails
READY = b"ok\n"
ANSWER_BYTES_MAX = 4096


class NotRecorded(RuntimeError):
    """The agent does not record; the message says why and what to do. The command runs all the same."""


def start_recorder(folder: str, size: str, environment: Mapping[str, str]) -> str:
    """Path of the socket that the processes of the command are to use; NotRecorded where there is no agent.

    Waits until the agent listens, at most READY_S_MAX.
    """
    if not any(entry.name == "agent" for entry in entry_points(group="paceline.commands")):
        raise NotRecorded(
            f"the agent is not installed for {sys.executable} (pip install paceline-agent, Python 3.11 or "
            "newer)"
        )
    socket_path = _socket_path()
    words = [
        sys.executable, "-m", "paceline.contracts.cli", "agent", "--record", os.path.abspath(folder),
        "--record-max", size, "--socket", socket_path, "--follow", str(os.getpid()),
    ]  # fmt: skip
    reading, writing = os.pipe()
    given = {"--ready-fd": writing}
    try:
        # A number may be given to another process; this is the command, however late the agent looks.
        given["--follow-fd"] = os.pidfd_open(os.getpid())
    except (AttributeError, OSError):
        pass  # Python was built without it, or the kernel refuses: the agent goes by number and start
    try:
        more = [word for name, fd in given.items() for word in (name, str(fd))]
        start_apart([*words, *more], agent_environment(environment), tuple(given.values()))
        for fd in given.values():
            os.close(fd)
        given = {}
        answer = _await_answer(reading, READY_S_MAX)
    except OSError as error:
        raise NotRecorded(f"the agent could not be started: {error.strerror}") from error
    finally:
        for fd in (reading, *given.values()):
            os.close(fd)
    if answer is not None and answer != READY:
        text = answer.decode(errors="replace").strip()
        raise NotRecorded(text or "the agent ended at its start; `paceline agent --record DIR` shows why")
    return socket_path


def agent_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """An agent of one thread, on no GPU, whatever the job is told."""
    changed = {name: value for name, value in environment.items() if name != "PACELINE"}
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        changed[name] = "1"
    return changed


def start_apart(words: Sequence[str], environment: Mapping[str, str], fds: Sequence[int] = ()) -> None:
    """Run `words` as a grandchild in a session of its own, with `fds`; stdout and stdin are closed to it."""
    child = os.fork()
    if child:
        try:
            os.waitpid(child, 0)
        except ChildProcessError:
            pass  # SIGCHLD is ignored here: the kernel has taken its status
        return
    try:
        os.setsid()
        if os.fork() == 0:
            null = os.open(os.devnull, os.O_RDWR)
            os.dup2(null, 0)
            os.dup2(null, 1)
            for fd in fds:
                os.set_inheritable(fd, True)
            os.execve(words[0], list(words), dict(environment))  # noqa: S606
    finally:
        os._exit(0)


def _socket_path() -> str:
    for parent in (None, "/tmp"):  # noqa: S108
        folder = tempfile.mkdtemp(prefix=FOLDER_PREFIX, dir=parent)
        path = str(Path(folder) / "agent.sock")
        if len(os.fsencode(path)) <= SOCKET_BYTES_MAX:
            return path
        os.rmdir(folder)
    raise NotRecorded("no folder for the agent's socket: set TMPDIR to one with a short path")


def _await_answer(fd: int, limit_s: float, clock: Callable[[], float] = time.monotonic) -> bytes | None:
    """A line, what came before the end of the pipe, or None where the time is over."""
    answer, until = b"", clock() + limit_s
    poller = select.poll()  # `select` takes no descriptor above 1023
    poller.register(fd, select.POLLIN)
    while not answer.endswith(b"\n") and len(answer) < ANSWER_BYTES_MAX:
        left = until - clock()
        if left <= 0 or not poller.poll(left * 1000):
            return None
        data = os.read(fd, ANSWER_BYTES_MAX)
        if not data:
            return answer
        answer += data
    return answer
