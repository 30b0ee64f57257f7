"""What the kernel tells about a process: `/proc`, a pidfd, and the exit status where it is readable.

`root` is injected so that tests can lay out a fake `/proc`.
"""

import array
import fcntl
import os
from dataclasses import dataclass
from pathlib import Path

from paceline.contracts.codes import ProcessState

_STATES = {
    b"R": ProcessState.RUNNING,
    b"S": ProcessState.SLEEPING,
    b"I": ProcessState.SLEEPING,
    b"D": ProcessState.DISK_SLEEP,
    b"T": ProcessState.STOPPED,
    b"t": ProcessState.TRACED,
    b"Z": ProcessState.ZOMBIE,
    b"X": ProcessState.GONE,
    b"x": ProcessState.GONE,
}
# include/uapi/linux/pidfd.h: _IOWR(0xFF, 11, struct pidfd_info), 64 bytes in its first version;
# PIDFD_INFO_EXIT (Linux 6.15) is answered after the process has been reaped.
_PIDFD_GET_INFO = 0xC040FF0B
_PIDFD_INFO_EXIT = 1 << 3
_PIDFD_INFO_WORDS = 16
_STAT_BYTES_MAX = 4096
_STATUS_BYTES_MAX = 65536
KEPT_MAX = 128  # processes whose files stay open: two descriptors each
ENVIRONMENT_BYTES_MAX = 256 << 10


@dataclass(frozen=True)
class ProcessReading:
    """One reading of `/proc/PID`. `state` is GONE where there is no such process any more."""

    state: ProcessState
    start_ticks: int = 0  # field 22: clock ticks since boot
    cpu_ms: int = 0  # user and system
    voluntary_switches: int = 0
    wait_status: int | None = None  # field 52; only of a zombie, None where it is not readable


GONE = ProcessReading(ProcessState.GONE)
UNREADABLE = ProcessReading(ProcessState.UNKNOWN)


class ProcReader:
    """Reads processes below `root`; never raises for a process that is gone or malformed."""

    def __init__(self, root: Path = Path("/proc"), ticks_per_s: int | None = None) -> None:
        self._root = root
        self._ticks_per_s = ticks_per_s or os.sysconf("SC_CLK_TCK")
        self._kept: dict[int, dict[str, int]] = {}  # pid: descriptors by name

    def read(self, pid: int, *, keep: bool = False, switches: int | None = None) -> ProcessReading:
        """State, times and switches of `pid`; UNREADABLE where the kernel's text makes no sense.

        `keep` leaves the files open for the next time, until `forget`: to open them costs twice as much as
        to read them. `switches`, where given, is taken for the number of voluntary switches: the kernel makes
        the whole text of another file for it.
        """
        if keep and pid not in self._kept and len(self._kept) < KEPT_MAX:
            self._kept[pid] = {}
        try:
            text = self._read(pid, "stat", _STAT_BYTES_MAX)
        except (FileNotFoundError, ProcessLookupError):
            return GONE
        except OSError:
            return UNREADABLE
        # The command in parentheses may itself hold spaces and parentheses: split behind the last one.
        fields = text[text.rfind(b")") + 2 :].split()
        try:
            state = _STATES.get(fields[0], ProcessState.UNKNOWN)
            ticks = int(fields[11]) + int(fields[12])
            start = int(fields[19])
            status = int(fields[49]) if state is ProcessState.ZOMBIE and len(fields) > 49 else None
        except (ValueError, IndexError):
            return UNREADABLE
        known = self._switches(pid) if switches is None else switches
        return ProcessReading(
            state, start, ticks * 1000 // self._ticks_per_s, known, self._trusted(pid, status)
        )

    def forget(self, pid: int) -> None:
        """Close what is open of `pid`."""
        for descriptor in self._kept.pop(pid, {}).values():
            os.close(descriptor)

    def describe(self, pid: int) -> str:
        """State, kernel function it waits in and system call, as far as they may be read; one line."""
        words = [f"pid {pid}"]
        for name in ("State", "Threads"):
            value = self._status_line(pid, f"{name}:".encode()).decode("utf-8", "replace")
            words += [f"{name.lower()} {value}"] if value else []
        for name in ("wchan", "syscall"):
            try:
                with open(self._root / str(pid) / name, "rb") as file:
                    value = file.read(200).decode("utf-8", "replace").strip()
            except OSError:
                value = ""
            words += [f"{name} {value}"] if value not in ("", "0") else []
        return ", ".join(words)

    def innermost_pid(self, pid: int) -> int | None:
        """The pid that `pid` has in its own namespace (last value of NSpid), None where unreadable."""
        values = self._status_line(pid, b"NSpid:")
        try:
            return int(values.split()[-1]) if values else None
        except ValueError:
            return None

    def _switches(self, pid: int) -> int:
        value = self._status_line(pid, b"voluntary_ctxt_switches:")
        return int(value) if value.isdigit() else 0

    def _trusted(self, pid: int, status: int | None) -> int | None:
        # Without permission the kernel prints 0 for field 52, which would read as a clean exit.
        if status is None or status:
            return status
        uid = self._status_line(pid, b"Uid:").split()[:1]
        allowed = os.geteuid() == 0 or uid == [str(os.geteuid()).encode()]
        return status if allowed else None

    def _status_line(self, pid: int, name: bytes) -> bytes:
        try:
            text = b"\n" + self._read(pid, "status", _STATUS_BYTES_MAX)
        except OSError:
            return b""
        _, found, rest = text.partition(b"\n" + name)
        return rest.partition(b"\n")[0].strip() if found else b""

    def _read(self, pid: int, name: str, bytes_max: int) -> bytes:
        kept = self._kept.get(pid)
        if kept is not None and name in kept:
            try:
                return os.pread(kept[name], bytes_max, 0)
            except ProcessLookupError:
                self.forget(pid)  # that process is gone; another may have its number
                kept = None
        descriptor = os.open(f"{self._root}/{pid}/{name}", os.O_RDONLY | os.O_CLOEXEC)
        if kept is not None:
            kept[name] = descriptor
            return os.pread(descriptor, bytes_max, 0)
        try:
            return os.read(descriptor, bytes_max)
        finally:
            os.close(descriptor)


def open_pidfd(pid: int) -> int | None:
    """A descriptor that becomes readable when `pid` ends; None where the kernel refuses or Python was built
    without it."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None


def read_exit_status(pidfd: int) -> int | None:
    """Wait status of a reaped process, None while it is not reaped or on a kernel before 6.15."""
    info = array.array("I", [0] * _PIDFD_INFO_WORDS)
    info[0] = _PIDFD_INFO_EXIT
    try:
        fcntl.ioctl(pidfd, _PIDFD_GET_INFO, info, True)
    except OSError:
        return None
    return info[15] if info[0] & _PIDFD_INFO_EXIT else None


def exit_code_of(wait_status: int) -> int:
    """Exit status, or minus the signal, of a wait status."""
    return os.waitstatus_to_exitcode(wait_status & 0xFFFF & ~0x80)


def read_environment(root: Path, pid: int) -> dict[str, str]:
    """What a process was started with, at most 256 KiB of it; empty where it may not be read."""
    try:
        with (root / "proc" / str(pid) / "environ").open("rb") as file:
            content = file.read(ENVIRONMENT_BYTES_MAX)
    except OSError:
        return {}
    pairs = (entry.decode("utf-8", "replace").partition("=") for entry in content.split(b"\0"))
    return {name: value for name, _, value in pairs if name}
