"""Flight Recorder dumps of a rank: from torch's worker server, asked for by pipe or signal, or left on disk.

The worker server (torch.distributed.elastic.control_plane) speaks HTTP over a Unix socket and answers from a
thread of its own, so it answers while the training thread hangs.
"""

import errno
import http.client
import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from paceline.analysis.collect.bounded import ITEM_BYTES_MAX, Item, read_bounded
from paceline.analysis.collect.process import Process

SOCKET = "TORCH_WORKER_SERVER_SOCKET"
DUMP_PREFIXES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
DEFAULT_PREFIXES = ("/tmp/nccl_trace_rank_", "/tmp/comm_lib_trace_rank_")  # noqa: S108 - torch's own defaults
PIPE = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"
_HANDLERS = {
    "fr_trace_json": "fr_trace",
    "dump_nccl_trace_json": "nccl_trace",
}  # handler: file, as torch names it
_POLL_S = 0.1


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def from_worker_server(process: Process, limit_s: float) -> Iterator[Item]:
    """The recorder's content, where the job was started with a worker server."""
    path = process.environment.get(SOCKET, "")
    base = f"{process.folder}/"
    if not path:
        yield Item(f"{base}worker server", None, f"{SOCKET} is not set in the job")
        return
    first = Item("", None)
    for handler, stem in _HANDLERS.items():
        name = f"{base}{stem}{'' if process.rank is None else f'_rank_{process.rank}'}.json"
        item = read_bounded(name, lambda handler=handler: _post(path, handler, limit_s), limit_s + 1)  # type: ignore[misc]
        if item.content:
            yield item
            return
        first = first if first.name else item
    yield first


def _post(path: str, handler: str, limit_s: float) -> bytes:
    connection = _UnixConnection(path, limit_s)
    try:
        connection.request("POST", f"/handler/{handler}")
        answer = connection.getresponse()
        content = answer.read(ITEM_BYTES_MAX)
    except http.client.HTTPException as error:
        raise OSError(errno.EPROTO, f"the worker server answered: {error}") from error
    finally:
        connection.close()
    if answer.status != 200:
        raise OSError(errno.EPROTO, f"the worker server answered {answer.status} to {handler}")
    return content


def ask_by_pipe(process: Process) -> str:
    """Writes to the pipe that torch listens on where it was configured; empty when asked, else why not."""
    prefix = process.environment.get(PIPE, "")
    if not prefix or process.rank is None:
        return f"{PIPE} is not set in the job"
    try:
        pipe = os.open(f"{prefix}{process.rank}.pipe", os.O_WRONLY | os.O_NONBLOCK)  # fails without a reader
    except OSError as error:
        return f"{prefix}{process.rank}.pipe: {error.strerror}"
    try:
        os.write(pipe, b"1\n")
    except OSError as error:
        return f"{prefix}{process.rank}.pipe: {error.strerror}"
    finally:
        os.close(pipe)
    return ""


def ask_by_signal(process: Process, number: int) -> str:
    """Only where the process handles it: a signal without a handler would end the process."""
    name = signal.Signals(number).name
    if not process.catches(number):
        return f"{name} is not handled by process {process.pid} and would end it: not sent"
    try:
        os.kill(process.pid, number)
    except OSError as error:
        return f"{name}: {error.strerror}"
    return ""


def dumps_on_disk(process: Process, wait_s: float = 0.0, newer_than_s: float = 0.0) -> Iterator[Item]:
    """Files that torch wrote for this rank; after a request it waits for one that is new and at rest."""
    named = [process.environment[name] for name in DUMP_PREFIXES if process.environment.get(name)]
    if process.rank is None:
        return
    paths = [Path(f"{prefix}{process.rank}") for prefix in dict.fromkeys(named or DEFAULT_PREFIXES)]
    deadline = time.monotonic() + wait_s
    while wait_s and time.monotonic() < deadline and not any(_is_new(path, newer_than_s) for path in paths):
        time.sleep(_POLL_S)
    found = False
    for path in paths:
        if path.is_file():
            found = True
            yield read_bounded(f"{process.folder}/{path.name}", path.read_bytes, 10.0)
    if not found:
        names = ", ".join(map(str, paths))
        yield Item(f"{process.folder}/dump", None, f"no file {names}: TORCH_FR_BUFFER_SIZE may be 0")


def _is_new(path: Path, newer_than_s: float) -> bool:
    try:
        before = path.stat()
        time.sleep(_POLL_S)
        return (
            before.st_mtime >= newer_than_s and before.st_size > 0 and path.stat().st_size == before.st_size
        )
    except OSError:
        return False
