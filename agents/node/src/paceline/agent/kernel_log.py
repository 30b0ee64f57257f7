"""The kernel's log: `/dev/kmsg` record by record, else a file that syslog or the journal writes.

Reading never blocks, and a poll takes a bounded number of records; the next one goes on from there. The
position is kept by boot, so that nothing is told twice after a restart of the agent, and nothing lost
that the kernel's ring still holds.
"""

import os
import stat
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from paceline.agent.findings import Found
from paceline.analysis.adapters.kernel_amd import BY_PORT, AmdEvents
from paceline.analysis.adapters.kernel_log import DeviceEvents, HostKills, normal_pci
from paceline.analysis.adapters.kernel_network import KernelPorts
from paceline.analysis.adapters.model import Block, LineAdapter
from paceline.analysis.facts import DeviceEvent, Fact, HostKill, Line, NetworkFailure, Origin
from paceline.contracts.registry import HealthKind

FILES = ("var/log/kern.log", "var/log/messages", "var/log/syslog")
RECORDS_MAX = 2000  # of one poll: 1 s of a storm
RECORD_BYTES_MAX = 8192  # the kernel's own bound of one record (CONSOLE_EXT_LOG_MAX)
FILE_BYTES_MAX = 1 << 20  # of one poll
AFTER_LINES = 4  # a report of several lines
OLD_S = 900.0  # what a first start finds in the ring and is older concerns no job of now
_ADAPTERS: tuple[LineAdapter, ...] = (DeviceEvents(), HostKills(), KernelPorts(), AmdEvents())
_NEEDLES = tuple(needle for adapter in _ADAPTERS for needle in adapter.needles)
_HARD_PORT = ("fatal", "compromised", "lost", "internal error", "not responding", "error state", "TX timeout")
_AMD_HARD = ("uncorrectable hardware error", "lost from the bus", "reset failed")


class KernelReason(str, Enum):
    XID = "kernel_xid"
    OFF_THE_BUS = "kernel_off_the_bus"
    SWITCH = "kernel_sxid"
    SWITCH_ERRORS = "kernel_sxid_nonfatal"
    AMD = "kernel_amdgpu"
    PORT = "kernel_port"
    PORT_ERRORS = "kernel_port_errors"
    KILLED = "kernel_out_of_memory"
    NOT_A_FAULT = "not_a_fault"  # consequences, resets, faults of the program
    SEEN_AT_PORT = "seen_at_port"  # a link that goes down: its port's counters say more


@dataclass(frozen=True)
class Record:
    """One line; `name` is the same whenever it is read again."""

    text: str
    name: str
    at_unix_s: float | None


@dataclass
class Position:
    """How far was read: a sequence number of /dev/kmsg, or an inode and offset."""

    boot: str = ""
    sequence: int = -1
    inode: int = 0
    offset: int = -1  # -1: the file was never read


@dataclass(frozen=True)
class Machine:
    """What names in the log mean here; addresses as `0000:9b:00`."""

    gpus: dict[str, int]  # PCI address: index
    ports: dict[str, str]  # PCI address: RDMA device


def judge_records(records: Iterable[Record], machine: Machine, told: Counter[str]) -> Iterator[Found]:
    """Findings in the order of the log; `told` counts every reason, also of what is not told."""
    waiting: deque[Line] = deque()
    lines = [(record, Line(Origin("kernel", 0), record.text)) for record in records]
    for at, (record, line) in enumerate(lines):
        if not any(needle in record.text for needle in _NEEDLES):
            continue
        waiting.clear()
        waiting.extend(after for _, after in lines[at + 1 : at + 1 + AFTER_LINES])
        for adapter in _ADAPTERS:
            if not any(needle in record.text for needle in adapter.needles):
                continue
            for fact in adapter.read(Block(line, waiting)):
                reason, found = judge_fact(fact, record, machine)
                told[reason.value] += 1
                if found is not None:
                    yield found


def judge_fact(fact: Fact, record: Record, machine: Machine) -> tuple[KernelReason, Found | None]:
    """What one fact of the log means on this machine."""
    if isinstance(fact, DeviceEvent):
        return _device(fact, record, machine)
    if isinstance(fact, HostKill):
        reason, words = KernelReason.KILLED, f"the kernel killed {fact.name or 'it'} to get memory"
        return reason, _found(HealthKind.HOST_MEMORY, reason, words, record, pid=fact.speaker.pid)
    if isinstance(fact, NetworkFailure):
        return _port(fact, record, machine)
    return KernelReason.NOT_A_FAULT, None


def _device(fact: DeviceEvent, record: Record, machine: Machine) -> tuple[KernelReason, Found | None]:
    gpu = machine.gpus.get(fact.speaker.gpu)
    words = fact.text[:300]
    if fact.is_switch:
        hard = fact.severity == "Fatal"
        kind = HealthKind.NVLINK if hard else HealthKind.LINK_ERRORS
        reason = KernelReason.SWITCH if hard else KernelReason.SWITCH_ERRORS
        return reason, _found(kind, reason, words, record, code=fact.code, device=fact.process)
    if fact.label:
        if fact.follows or fact.of_application or fact.label not in _AMD_HARD or fact.label == BY_PORT:
            return KernelReason.NOT_A_FAULT, None
        kind = HealthKind.ECC if fact.label.startswith("uncorrectable") else HealthKind.GPU_SILENT
        reason = KernelReason.AMD
        return reason, _found(
            kind, reason, f"{fact.label}: {words}", record, gpu=gpu, device=fact.speaker.gpu
        )
    if fact.recovery.lower() == "none":  # Xid 154 back to its rest
        return KernelReason.NOT_A_FAULT, None
    reason = KernelReason.OFF_THE_BUS if fact.implied else KernelReason.XID
    device = "" if gpu is not None else fact.speaker.gpu  # a GPU that nobody could place keeps its address
    return reason, _found(HealthKind.XID, reason, words, record, gpu=gpu, code=fact.code, device=device)


def _port(fact: NetworkFailure, record: Record, machine: Machine) -> tuple[KernelReason, Found | None]:
    pci = fact.device.rpartition(" ")[2]
    device = machine.ports.get(normal_pci(pci), "")
    words = f"{fact.device}: {fact.text}"[:300]
    if device and "link" in fact.text.lower() and "down" in fact.text.lower():
        return KernelReason.SEEN_AT_PORT, None
    if device and any(word in fact.text for word in _HARD_PORT):
        reason = KernelReason.PORT
        return reason, _found(HealthKind.LINK, reason, words, record, device=device)
    reason = KernelReason.PORT_ERRORS  # a port that no RDMA device has may be that of the management
    return reason, _found(HealthKind.LINK_ERRORS, reason, words, record, device=device or fact.device)


def _found(
    kind: HealthKind,
    reason: KernelReason,
    message: str,
    record: Record,
    *,
    gpu: int | None = None,
    pid: int | None = None,
    code: int | None = None,
    device: str = "",
) -> Found:
    return Found(kind, reason.value, message, gpu, pid, code, device, record.at_unix_s, record.name)


class KernelLog:
    """Reads on from `position`. `uptime_s` is now on the kernel's clock, `unix_s` on ours."""

    def __init__(
        self, root: Path, position: Position, uptime_s: Callable[[], float], unix_s: Callable[[], float]
    ) -> None:
        self.position = position
        self.lost = 0  # records that the ring overwrote, or bytes of a file beyond a poll's bound
        self.source = ""  # what is read; empty where nothing may be
        self._root = root
        self._uptime_s = uptime_s
        self._unix_s = unix_s
        self._boot = read_boot(root)
        self._kmsg = -1

    def poll(self) -> list[Record]:
        """What is new, at most RECORDS_MAX records; empty where nothing can be read."""
        try:
            if self._open():
                return list(self._poll_kmsg())
            for name in FILES:
                path = self._root / name
                if path.is_file() and os.access(path, os.R_OK):
                    self.source = str(path)
                    return list(self._poll_file(path))
        except OSError:
            self.close()
        self.source = ""
        return []

    def close(self) -> None:
        if self._kmsg >= 0:
            os.close(self._kmsg)
            self._kmsg = -1

    def _open(self) -> bool:
        if self._kmsg >= 0:
            return True
        path = self._root / "dev" / "kmsg"
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return False
        mode = os.fstat(descriptor).st_mode
        if not (stat.S_ISCHR(mode) or stat.S_ISSOCK(mode) or stat.S_ISFIFO(mode)):
            os.close(descriptor)
            return False
        self._kmsg, self.source = descriptor, str(path)
        return True

    def _poll_kmsg(self) -> Iterator[Record]:
        """A read gives one record; EPIPE says that some were overwritten before they were read."""
        if self.position.boot != self._boot:
            self.position.boot, self.position.sequence = self._boot, -1
        is_first = self.position.sequence < 0
        booted_unix_s: float | None = None  # asked once there is a record: most polls find none
        for _ in range(RECORDS_MAX):
            try:
                data = os.read(self._kmsg, RECORD_BYTES_MAX)
            except BlockingIOError:
                return
            except BrokenPipeError:
                self.lost += 1
                continue
            if not data:
                return
            if booted_unix_s is None:
                booted_unix_s = self._unix_s() - self._uptime_s()
            record = parse_kmsg(data, self._boot, booted_unix_s)
            if record is None or record[0] <= self.position.sequence:
                continue
            self.position.sequence = record[0]
            age_s = self._unix_s() - (record[1].at_unix_s or 0.0)
            if not (is_first and age_s > OLD_S):
                yield record[1]

    def _poll_file(self, path: Path) -> Iterator[Record]:
        """Whole lines behind the last one; a file that is another one, or shorter, is read from its start.
        One that was never read is read from its end: its old lines have no dates that can be trusted."""
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            if self.position.offset < 0:
                self.position.offset = status.st_size
            elif status.st_ino != self.position.inode or status.st_size < self.position.offset:
                self.position.offset = 0
            self.position.inode = status.st_ino
            file.seek(self.position.offset)
            data = file.read(FILE_BYTES_MAX)
        whole = data.rpartition(b"\n")[0] + b"\n" if b"\n" in data else b""
        if not whole and len(data) == FILE_BYTES_MAX:
            whole = data  # a line beyond all bounds is no line of the kernel
            self.lost += 1
        at = self.position.offset
        self.position.offset += len(whole)
        for line in whole.splitlines():
            text = line[:RECORD_BYTES_MAX].decode("utf-8", "replace")
            yield Record(text, f"{status.st_ino}:{at}", None)
            at += len(line) + 1


def parse_kmsg(data: bytes, boot: str, booted_unix_s: float) -> tuple[int, Record] | None:
    """`priority,sequence,microseconds since boot,flags;text` and lines of details that begin with a space."""
    head, separator, rest = data.partition(b";")
    parts = head.split(b",")
    if not separator or len(parts) < 3 or not (parts[1].isdigit() and parts[2].isdigit()):
        return None
    if len(parts[1]) > 18 or len(parts[2]) > 18:
        return None
    sequence = int(parts[1])
    text = rest.split(b"\n", 1)[0].decode("utf-8", "replace")
    return sequence, Record(text, f"{boot}:{sequence}", booted_unix_s + int(parts[2]) / 1e6)


def read_boot(root: Path) -> str:
    try:
        return (root / "proc/sys/kernel/random/boot_id").read_text()[:64].strip()
    except OSError:
        return ""


def read_uptime_s(root: Path) -> float:
    try:
        return float((root / "proc/uptime").read_text()[:64].split()[0])
    except (OSError, ValueError, IndexError):
        return 0.0
