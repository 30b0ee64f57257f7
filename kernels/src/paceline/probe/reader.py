"""Reads the page of another process. The page is hostile: its writer may be mad, killed in the
middle of a write, or somebody who wants to hurt the agent.

No offset, length or index is taken from the page; each copy is bounded in time; what is out of
range is refused by name or read as unknown (kernels/native/page_read.cc). Memory per reading is
bounded by PAGE_BYTES.
"""

from __future__ import annotations

import numpy as np

from paceline.contracts.dtypes import PROCESS_DTYPE
from paceline.contracts.layout import PAGE_BYTES
from paceline.probe._native import Mapping
from paceline.probe.control import ControlPage, check_descriptor
from paceline.probe.errors import PageError
from paceline.probe.snapshot import PageSnapshot

_HEADER, _FRAMES, _DETAILS = 0, 1, 2  # how much `Mapping.read` reads
# What is expected of a field where that is not one number.
_EXPECTED = {"nranks": "1 to {}", "comm_rank": "below {}", "comm": "a communicator id"}


class PageReader:
    """Maps one page read-only. Does not own the descriptors; `close` unmaps.

    `control` is the writable control page, None where no `control_fd` was given. Raises PageError,
    naming field, value and what was expected, where a descriptor is not a page of this version.
    """

    def __init__(self, page_fd: int, control_fd: int | None = None) -> None:
        check_descriptor("page", page_fd, PAGE_BYTES)
        try:
            self._mapping = Mapping(page_fd, PAGE_BYTES, False)
        except OSError as error:
            raise PageError("page descriptor", error.strerror, "a readable memfd") from None
        self.control: ControlPage | None = None
        try:
            self._read(_HEADER)
            if control_fd is not None:
                self.control = ControlPage(control_fd)
        except PageError:
            self._mapping.close()
            raise

    def close(self) -> None:
        """Unmap both pages; reading raises ValueError afterwards."""
        self._mapping.close()
        if self.control is not None:
            self.control.close()

    def read(self, *, detail: bool = True) -> PageSnapshot:
        """All frames, with their detail blocks unless `detail` is false. Bounded in time.

        Raises PageError where the header has become something else.
        """
        return self._read(_DETAILS if detail else _FRAMES)

    def _read(self, amount: int) -> PageSnapshot:
        header, whole, blocks, torn, refused = self._mapping.read(amount)
        faults = tuple(_fault(*one) for one in refused)
        if faults and refused[0][0] < 0:
            raise faults[0]
        process: np.void = np.frombuffer(header, PROCESS_DTYPE)[0]
        return PageSnapshot(process, blocks, torn, not whole, faults, has_detail=amount == _DETAILS)


def _fault(slot: int, name: str, value: int, expected: int) -> PageError:
    where = "page" if slot < 0 else f"frame {slot}"
    return PageError(f"{where} {name}", value, _EXPECTED.get(name, "{}").format(expected))
