"""The order of gathering, and the archive with its list of what was got and what was not."""

import io
import json
import os
import re
import shutil
import signal
import tarfile
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from paceline.analysis.collect.bounded import Item, read_bounded, run_bounded
from paceline.analysis.collect.dumps import ask_by_pipe, ask_by_signal, dumps_on_disk, from_worker_server
from paceline.analysis.collect.process import Process, examine, find_processes, identify

TOTAL_BYTES_MAX = 4 << 30
LOG_TAIL_BYTES = 8 << 20
KERNEL_TAIL_BYTES = 4 << 20
COMPRESSION = 3
ENTRY_BYTES = 1024  # head and padding of one file, before they are compressed
MANIFEST_BYTES_KEPT = 256 << 10  # of a bounded archive, for the list that comes last
MISSING_MAX = 1000
MANIFEST = "collect.json"
FORMAT = "paceline-collect-1"


@dataclass(frozen=True)
class Request:
    """What to gather; no pids means every rank of this node whose environment may be read."""

    pids: Sequence[int] = ()
    logs: Sequence[str] = ()
    files: Sequence[str] = ()  # taken whole
    signal: int | None = None
    limit_s: float = 10.0  # of one item
    say: Callable[[str], None] = field(default=lambda text: None)
    ranks: Mapping[int, int] = field(default_factory=dict)  # of pids whose environment may not be read
    node_only: bool = False  # no process at all
    pause: bool = True  # py-spy may pause a process for an instant; else it looks while the process runs
    ask: bool = True  # processes may be asked for dumps
    total_s: float = 3600.0  # what is left out then is said
    archive_bytes_max: int = TOTAL_BYTES_MAX
    tail_bytes_max: int = LOG_TAIL_BYTES  # of one log


@dataclass
class Collected:
    """What became of a collection."""

    processes: int = 0
    got: int = 0
    missing: list[str] = field(default_factory=list)
    bytes_taken: int = 0
    bytes_packed: int = 0  # about what the archive has on disk


def collect(request: Request, target: Path) -> Collected:
    """Gather and write `target`, at the end in one rename. Raises OSError where it cannot be written."""
    host = os.uname().nodename
    processes = _processes(request)
    result = Collected(processes=len(processes))
    deadline = time.monotonic() + request.total_s
    part = target.with_name(f".{target.name}.part")
    base = f"collect-{host}"
    try:
        with tarfile.open(part, "w:gz", compresslevel=COMPRESSION) as archive:
            for item in _items(request, processes):
                _take(archive, base, item, result, request)
                if time.monotonic() > deadline:
                    result.missing.append(f"what follows {item.name}: {request.total_s:g} s are over")
                    break
            manifest = _manifest(host, processes, result)
            _add(archive, f"{base}/{MANIFEST}", json.dumps(manifest, indent=1).encode())
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
    return result


def _processes(request: Request) -> list[Process]:
    if request.node_only:
        return []
    processes = [identify(pid) for pid in request.pids] or find_processes()
    for process in processes:
        if process.rank is None:
            process.rank = request.ranks.get(process.pid)
    return processes


def default_name() -> str:
    """In the current folder; hosts of one job do not collide."""
    return f"paceline-{os.uname().nodename}-{time.strftime('%Y%m%dT%H%M%S')}.tar.gz"


def signal_number(name: str) -> int:
    """`USR1`, `SIGUSR1` or `10`. Raises ValueError for others, and for those that stop or end any process."""
    try:
        found = (
            signal.Signals(int(name)) if name.isdigit() else signal.Signals[f"SIG{name.removeprefix('SIG')}"]
        )
    except (KeyError, ValueError):
        raise ValueError(f"{name} is no signal") from None
    if found in (
        signal.SIGKILL,
        signal.SIGSTOP,
        signal.SIGTERM,
        signal.SIGINT,
        signal.SIGTSTP,
        signal.SIGABRT,
    ):
        raise ValueError(f"{name} stops or ends processes: use the one that the job dumps on")
    return int(found)


def _items(request: Request, processes: list[Process]) -> Iterator[Item]:
    """First what changes least by looking and is lost first by a kill."""
    for number, name in enumerate(request.files):
        path = Path(name)
        yield read_bounded(f"given/{number}/{path.name}", path.read_bytes, request.limit_s)
    for process in processes:
        request.say(f"{process.folder} (pid {process.pid})")
        examine(process)
        yield from _stacks(process, request)
        yield from _dumps(process, request)
    yield _kernel(request.limit_s)
    yield from _logs(request, processes)
    if shutil.which("nvidia-smi"):
        yield run_bounded("nvidia-smi-q.txt", ("nvidia-smi", "-q"), 2 * request.limit_s)
    else:
        yield Item("nvidia-smi-q.txt", None, "nvidia-smi is not installed")


def _stacks(process: Process, request: Request) -> Iterator[Item]:
    name = f"{process.folder}/py-spy.txt"
    if not shutil.which("py-spy"):
        yield Item(name, None, "py-spy is not installed (pip install py-spy)")
        return
    command = ("py-spy", "dump", "--pid", str(process.pid))
    if not request.pause:  # native stacks need the pause
        yield run_bounded(name, (*command, "--nonblocking"), request.limit_s)
        return
    item = run_bounded(name, (*command, "--native"), request.limit_s)
    yield item if item.content else run_bounded(name, command, request.limit_s)


def _dumps(process: Process, request: Request) -> Iterator[Item]:
    if not request.ask:
        yield from dumps_on_disk(process)
        return
    served = list(from_worker_server(process, request.limit_s))
    yield from served
    if any(item.content for item in served):
        return
    asked_s = time.time() - 1
    why = ask_by_signal(process, request.signal) if request.signal is not None else ask_by_pipe(process)
    if why:
        yield Item(f"{process.folder}/dump request", None, why)
    yield from dumps_on_disk(process, 0.0 if why else request.limit_s, asked_s)


def _logs(request: Request, processes: list[Process]) -> Iterator[Item]:
    """Ends of the named files, and of files that the processes write their output to."""
    taken: set[tuple[int, int]] = set()
    for number, name in enumerate(request.logs):
        yield from _tail(f"logs/{number}", Path(name), taken, request.tail_bytes_max)
    for process in processes:
        for descriptor in (1, 2):
            try:
                path = Path(os.readlink(f"/proc/{process.pid}/fd/{descriptor}"))
            except OSError:
                continue
            if path.is_file():
                yield from _tail(process.folder, path, taken, request.tail_bytes_max)


def _tail(folder: str, path: Path, taken: set[tuple[int, int]], bytes_max: int) -> Iterator[Item]:
    name = f"{folder}/{path.name}"
    try:
        status = path.stat()
    except OSError as error:
        yield Item(name, None, f"{path}: {error.strerror}")
        return
    if not path.is_file():
        yield Item(name, None, f"{path} is not a regular file")
    elif status.st_size and (status.st_dev, status.st_ino) not in taken:
        taken.add((status.st_dev, status.st_ino))
        yield read_bounded(name, lambda: _last_lines(path, bytes_max), 10.0)


def _last_lines(path: Path, bytes_max: int) -> bytes:
    with path.open("rb") as stream:
        start = max(0, stream.seek(0, io.SEEK_END) - bytes_max)
        stream.seek(start)
        content = stream.read(bytes_max)
    return content.partition(b"\n")[2] if start else content


def _kernel(limit_s: float) -> Item:
    item = run_bounded("kernel.log", ("dmesg", "--time-format", "iso"), limit_s)
    if item.content is None:
        item = run_bounded("kernel.log", ("dmesg",), limit_s)
    if item.content is None:
        return item
    return Item(item.name, with_host(item.content[-KERNEL_TAIL_BYTES:], os.uname().nodename))


def with_host(log: bytes, host: str) -> bytes:
    """The host after the time of each line, as syslog has it: logs of several nodes are read together."""
    return re.sub(rb"(?m)^(\d{4}-\S+|\[ *\d+\.\d+\]) ", rb"\1 " + host.encode() + b" ", log)


def _take(archive: tarfile.TarFile, base: str, item: Item, result: Collected, request: Request) -> None:
    packed = _packed_bytes(item, request)
    full = result.bytes_packed + packed > request.archive_bytes_max - MANIFEST_BYTES_KEPT
    if item.content is None or full or result.bytes_taken + len(item.content) > TOTAL_BYTES_MAX:
        why = item.why if item.content is None else "the archive is full"
        result.missing.append(f"{item.name}: {why}")
        request.say(f"  not got: {item.name}: {why}")
        return
    _add(archive, f"{base}/{item.name}", item.content)
    result.got += 1
    result.bytes_taken += len(item.content)
    result.bytes_packed += packed
    request.say(f"  {item.name}: {len(item.content):,} bytes")


def _packed_bytes(item: Item, request: Request) -> int:
    """About what an item adds to the archive; measured only where the archive is bounded."""
    if item.content is None or request.archive_bytes_max >= TOTAL_BYTES_MAX:
        return 0
    return len(zlib.compress(item.content, COMPRESSION)) + ENTRY_BYTES


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mtime, info.mode = len(content), int(time.time()), 0o600
    archive.addfile(info, io.BytesIO(content))


def _manifest(host: str, processes: list[Process], result: Collected) -> dict[str, object]:
    for process in processes:
        result.missing += [f"{process.folder}/{words}" for words in process.missing]
    return {
        "format": FORMAT,
        "host": host,
        "unix_s": round(time.time(), 3),
        "processes": [process.as_json() for process in processes],
        "missing": result.missing[:MISSING_MAX],
    }
