"""The agent's side of the control page."""

from __future__ import annotations

import fcntl
import os

from paceline.contracts.codes import DetailLevel
from paceline.contracts.layout import CONTROL, CONTROL_BYTES, CONTROL_MAGIC, LAYOUT_VERSION
from paceline.probe._native import Mapping
from paceline.probe.errors import PageError

F_GET_SEALS = 1034
F_SEAL_SHRINK = 0x0002
_TRUNCATED = (
    "its owner has truncated it, which the probe's own pages do not allow; the process trains on unobserved "
    "until it hands over a whole page: restart it, and find what resizes its memfds"
)
_OTHER_VERSION = "another version of the probe made it; install the paceline-probe of the agent in the job"


def check_descriptor(name: str, fd: int, size: int) -> None:
    """PageError where `fd` is no memfd of exactly `size` bytes that can never shrink.

    A file that shrinks while it is mapped kills its reader with SIGBUS: the seal is the guarantee.
    """
    try:
        seals = fcntl.fcntl(fd, F_GET_SEALS)
        actual = os.fstat(fd).st_size
    except OSError as error:
        raise PageError(f"{name} descriptor", f"not a memfd ({error.strerror})", "a sealed memfd") from None
    sealed = bool(seals & F_SEAL_SHRINK)
    if actual < size and not sealed:
        raise PageError(f"{name} size", f"{actual} bytes", f"{size} bytes: {_TRUNCATED}")
    if not sealed:
        raise PageError(f"{name} seals", f"{seals:#x}", f"F_SEAL_SHRINK ({F_SEAL_SHRINK:#x}) set")
    if actual != size:
        raise PageError(f"{name} size", f"{actual} bytes", f"{size} bytes: {_OTHER_VERSION}")


class ControlPage:
    """Detail level and pacing that the agent asks of one process. Does not own `control_fd`."""

    def __init__(self, control_fd: int) -> None:
        check_descriptor("control page", control_fd, CONTROL_BYTES)
        try:
            self._mapping = Mapping(control_fd, CONTROL_BYTES, True)
        except OSError as error:
            raise PageError("control page descriptor", error.strerror, "a writable memfd") from None
        data, _ = self._mapping.copy(CONTROL.field("lock").offset, 0, 8, 0, 0, 1)
        for name, expected in (("magic", CONTROL_MAGIC), ("version", LAYOUT_VERSION)):
            field = CONTROL.field(name)
            value = int.from_bytes(data[field.offset : field.offset + field.bytes], "little")
            if value != expected:
                self._mapping.close()
                raise PageError(f"control page {name}", f"{value:#x}", f"{expected:#x}")

    def write(
        self, detail: DetailLevel = DetailLevel.ROUNDS, pace_ns: int = 0, pace_expires_ns: int = 0
    ) -> int:
        """Replace the request as a whole; returns its generation.

        `pace_expires_ns` is CLOCK_MONOTONIC: a request outlives a dead agent by that much only.
        """
        return self._mapping.write_control(detail, pace_ns, pace_expires_ns)

    def beat(self) -> None:
        """Tell the process that its agent is alive."""
        self._mapping.beat()

    def close(self) -> None:
        """Unmap; `write` and `beat` raise ValueError afterwards."""
        self._mapping.close()
