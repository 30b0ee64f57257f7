"""What happens around one operation of one communicator; the hot path of the hook."""

from collections.abc import Callable
from functools import partial
from typing import Any

from paceline.trainer.guard import Guard
from paceline.trainer.operations import Arguments, Describe, Description, Keywords
from paceline.trainer.probe import ProbePage

UNSEEN = -1
WrapWork = Callable[[Any, Callable[[bool], None]], Any]


class Watch:
    """Tells the page of each operation: entered, returned, completed or failed.

    Nothing here raises: an error of the hook trips the guard, and from then on each operation costs
    one attribute test. `wrap_work` makes a Work that reports its own completion, for operations
    whose Work has no future (gloo's send and receive).
    """

    __slots__ = ("_complete", "_enter", "_returned", "cpu_only", "guard", "slot", "wrap_work")

    def __init__(
        self, page: ProbePage, slot: int, guard: Guard, wrap_work: WrapWork, cpu_only: bool = False
    ) -> None:
        self._enter = page.enter
        self._returned = page.returned
        self._complete = page.complete
        self.slot = slot
        self.guard = guard
        self.wrap_work = wrap_work
        self.cpu_only = cpu_only

    def enter(self, describe: Describe, arguments: Arguments, keywords: Keywords) -> int:
        """A ticket, or UNSEEN where this operation is not for this hook or the hook is off."""
        try:
            if self.cpu_only and not _on_cpu(arguments):
                return UNSEEN
            return self._enter(self.slot, *describe(arguments, keywords))
        except Exception as error:
            self.guard.trip("enter", error)
            return UNSEEN

    def enter_described(self, description: Description) -> int:
        """As `enter` with a description that is already made."""
        try:
            return self._enter(self.slot, *description)
        except Exception as error:
            self.guard.trip("enter", error)
            return UNSEEN

    def fail(self, ticket: int) -> None:
        """The call itself raised."""
        self._finish(ticket, True)

    def issued(self, ticket: int, point_to_point: bool, work: Any) -> Any:
        """The call returned `work`; gives back the Work that the caller shall have."""
        try:
            self._returned(ticket)
            if work is None:
                self._complete(ticket, False)
                return work
            if point_to_point or not self._follows(ticket, work):
                return self.wrap_work(work, partial(self._finish, ticket))
        except Exception as error:
            self.guard.trip("returned", error)
        return work

    def follow(self, ticket: int, work: Any) -> None:
        """Complete `ticket` when `work` does; torch runs the callback before `work.wait()` returns."""
        work.get_future().add_done_callback(partial(self._settle, ticket))

    def issued_elsewhere(self, ticket: int, work: Any) -> None:
        """As `issued` where the caller's Work cannot be replaced: without a future the end is unknown."""
        try:
            self._returned(ticket)
            if work is None or not self._follows(ticket, work):
                self._complete(ticket, False)
        except Exception as error:
            self.guard.trip("returned", error)

    def _follows(self, ticket: int, work: Any) -> bool:
        try:
            self.follow(ticket, work)
        except RuntimeError:
            return False
        return True

    def _settle(self, ticket: int, future: Any) -> None:
        try:
            future.value()
        except Exception:
            self._finish(ticket, True)
        else:
            self._finish(ticket, False)

    def _finish(self, ticket: int, failed: bool) -> None:
        try:
            self._complete(ticket, failed)
        except Exception as error:
            self.guard.trip("complete", error)


def _on_cpu(arguments: Arguments) -> bool:
    """Whether the first tensor is on the CPU; a call without one (barrier) is not for gloo then."""
    value = arguments[0] if arguments else None
    while isinstance(value, (list, tuple)) and value:
        value = value[0]
    return bool(getattr(value, "is_cpu", False))
