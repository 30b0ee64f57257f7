"""The double of a page."""

from collections.abc import Callable
from typing import Any

import pytest


class PageDouble:
    """Remembers its calls, and refuses the one named in `broken`."""

    page_fd = -1
    control_fd = -1

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.broken = ""
        self._tickets = 0
        self._slots = 0

    def _note(self, name: str, *arguments: Any) -> None:
        if name == self.broken:
            raise OSError(f"{name} is broken")
        self.calls.append((name, *arguments))

    def open_communicator(self, *arguments: int) -> int:
        self._note("open_communicator", *arguments)
        self._slots += 1
        return self._slots - 1

    def close_communicator(self, slot: int) -> None:
        self._note("close_communicator", slot)

    def add_flags(self, slot: int, flags: int) -> None:
        self._note("add_flags", slot, flags)

    def enter(self, *arguments: int) -> int:
        self._note("enter", *arguments)
        self._tickets += 1
        return self._tickets

    def returned(self, ticket: int) -> None:
        self._note("returned", ticket)

    def complete(self, ticket: int, failed: bool) -> None:
        self._note("complete", ticket, failed)

    def settler(self, ticket: int, followed: dict[int, bool]) -> Callable[[Any], None]:
        followed[ticket] = True

        def settle(future: Any) -> None:
            try:
                future.value()
                failed = False
            except RuntimeError:
                failed = True
            self.complete(ticket, failed)
            del followed[ticket]

        return settle

    def set_identity(self, *arguments: Any) -> None:
        self._note("set_identity", *arguments)

    def set_phase(self, phase: int, name: str) -> None:
        self._note("set_phase", phase, name)

    def set_step(self, step: int) -> None:
        self._note("set_step", step)

    def set_host_wait(self, kind: int, name: str, rank: int) -> None:
        self._note("set_host_wait", kind, name, rank)

    def count_error(self) -> None:
        self._note("count_error")

    def beat(self) -> None:
        return None

    def finish(self) -> None:
        self._note("finish")


@pytest.fixture
def page() -> PageDouble:
    return PageDouble()
