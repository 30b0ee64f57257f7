"""Reads the files into which NCCL dumps its graphs: bounded, in a thread, never in a training process's way.

NCCL gives every communicator the same file, so what is read belongs to whoever wrote it last; who that was is
for `graph_orders` to find out. Only files on this machine's own file systems are read: on a shared one any
node may have been the last, and its clock is another one.
"""

import os
import stat
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from paceline.analysis.adapters.nccl_graph import GraphDump, read_graphs, read_topology
from paceline.analysis.adapters.plain_xml import XmlError

FILE_BYTES_MAX = 4 << 20  # 24 channels of 72 GPUs and five graphs are 0.5 MB
MAPS_BYTES_MAX = 16 << 20
FILES_MAX = 64  # that are remembered
SETTLE_S = 10.0  # by then the communicator that wrote it has shown itself
# On which nobody but this machine writes.
_LOCAL = frozenset({"btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "ramfs", "tmpfs", "xfs", "zfs"})
Version = tuple[int, int]  # time of the last change, ns; bytes


@dataclass(frozen=True)
class Announced:
    """One observed process and the files it names; `pid` as the agent sees it, 0 not at all."""

    pid: int
    pid_start: int
    uid: int
    graph: str
    topology: str


@dataclass(frozen=True)
class Dump:
    """What stood in a file. `places`: the processes that may have written it, by position."""

    places: tuple[int, ...]
    first_s: float  # unix time at which the earlier of the two files was written
    last_s: float
    graphs: GraphDump
    ranks: dict[int, int]  # of GPUs, from the dump of the machine; empty where the graphs have them


@dataclass
class DumpLook:
    dumps: list[Dump] = field(default_factory=list)
    dropped: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class _Found:
    key: tuple[int, int]  # device, inode
    version: Version
    path: str

    @property
    def written_s(self) -> float:
        return self.version[0] / 1e9


class NcclDumps:
    """Remembers what was read already. One thread at a time calls `read`."""

    def __init__(
        self, proc: Path = Path("/proc"), settle_s: float = SETTLE_S, ticks_per_s: int | None = None
    ) -> None:
        self._proc = proc
        self._settle_s = settle_s
        self._ticks_per_s = ticks_per_s or os.sysconf("SC_CLK_TCK")
        self._done: dict[tuple[int, int], Version] = {}
        self._local: dict[tuple[int, int], bool] = {}

    def read(self, wanted: Sequence[Announced], now_s: float) -> DumpLook:
        """Dumps that are new since the last time; `now_s` is unix time. Never raises for files."""
        look = DumpLook()
        shared: dict[tuple[int, int], list[int]] = {}
        found: dict[tuple[int, int], _Found] = {}
        boot_s = self._boot_s()
        for place, one in enumerate(wanted):
            file = self._find(one, one.graph, look)
            if file is None or self._done.get(file.key) == file.version:
                continue
            # What was there before the process is of an earlier one.
            if one.pid_start and boot_s + one.pid_start / self._ticks_per_s <= file.written_s + 1.0:
                shared.setdefault(file.key, []).append(place)
                found[file.key] = file
        for key, places in shared.items():
            if now_s - found[key].written_s >= self._settle_s:
                self._take(found[key], places, wanted, look, now_s)
        return look

    def _take(
        self, file: _Found, places: list[int], wanted: Sequence[Announced], look: DumpLook, now_s: float
    ) -> None:
        machine = self._find(wanted[places[0]], wanted[places[0]].topology, look)
        if machine is not None and now_s - machine.written_s < self._settle_s:
            return  # the next communicator is being made
        if len(self._done) >= FILES_MAX:
            self._done.clear()
        self._done[file.key] = file.version
        if self._is_rccl(wanted[places[0]].pid):
            look.dropped["order_dump_rccl"] += 1  # it makes trees of its own, which are not in it
            return
        try:
            graphs = read_graphs(_content(file))
            ranks, first = self._ranks(graphs, file, machine)
        except (OSError, XmlError):
            look.dropped["order_dump_unreadable"] += 1
            return
        look.dumps.append(Dump(tuple(places), first, file.written_s, graphs, ranks))

    def _ranks(self, graphs: GraphDump, file: _Found, machine: _Found | None) -> tuple[dict[int, int], float]:
        """Ranks of GPUs, where NCCL does not write them beside the GPU, and the time of the earlier file."""
        gpus = [gpu for channel in graphs.ring.channels for gpu in channel]
        if all(gpu.rank is not None for gpu in gpus) or machine is None or machine.written_s > file.written_s:
            return {}, file.written_s  # a machine that was dumped behind the graphs is another one's
        return read_topology(_content(machine)), machine.written_s

    def _find(self, one: Announced, path: str, look: DumpLook) -> _Found | None:
        if not path or not one.pid:
            return None
        home = f"{self._proc}/{one.pid}"
        seen = f"{home}/root{path}" if path.startswith("/") else f"{home}/cwd/{path}"
        try:
            status = os.stat(seen)
        except (OSError, ValueError):
            return None
        if not stat.S_ISREG(status.st_mode) or status.st_uid != one.uid:
            return None
        found = _Found((status.st_dev, status.st_ino), (status.st_mtime_ns, status.st_size), seen)
        return found if self._is_local(one.pid, found.key, look) else None

    def _is_local(self, pid: int, key: tuple[int, int], look: DumpLook) -> bool:
        """Asked of the mounts once for each file."""
        if key in self._local:
            return self._local[key]
        local = self._type_of(pid, key[0]) in _LOCAL
        if len(self._local) >= FILES_MAX:
            self._local.clear()
        self._local[key] = local
        if not local:
            look.dropped["order_dump_shared"] += 1
        return local

    def _type_of(self, pid: int, device: int) -> str:
        """The kind of file system, empty where the process's mounts do not say."""
        wanted = f"{os.major(device)}:{os.minor(device)}"
        try:
            mounts = (self._proc / str(pid) / "mountinfo").read_text(errors="replace")
        except OSError:
            return ""
        for line in mounts.splitlines():
            place, _, rest = line.partition(" - ")
            if place.split()[2:3] == [wanted]:
                return rest.split()[0] if rest else ""
        return ""

    def _is_rccl(self, pid: int) -> bool:
        try:
            with (self._proc / str(pid) / "maps").open("rb") as file:
                return b"/librccl.so" in file.read(MAPS_BYTES_MAX)
        except OSError:
            return False

    def _boot_s(self) -> float:
        """Unix time at which this machine was started; far away where nobody says."""
        try:
            for line in (self._proc / "stat").read_text(errors="replace").splitlines():
                if line.startswith("btime "):
                    return float(line.split()[1])
        except (OSError, ValueError, IndexError):
            pass
        return float("inf")


def _content(file: _Found) -> bytes:
    """The version that was found, XmlError where it is another one by now or too large."""
    descriptor = os.open(file.path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        data = os.pread(descriptor, FILE_BYTES_MAX + 1, 0)
        status = os.fstat(descriptor)
    finally:
        os.close(descriptor)
    if len(data) > FILE_BYTES_MAX or (status.st_mtime_ns, status.st_size) != file.version:
        raise XmlError("too large, or written to meanwhile")
    return data
