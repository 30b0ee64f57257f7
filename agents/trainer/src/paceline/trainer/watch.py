"""What happens around one operation of one communicator; the hot path of the hook."""

from collections.abc import Callable
from functools import partial
from typing import Any

from paceline.contracts.codes import FrameFlag
from paceline.trainer.guard import Guard
from paceline.trainer.operations import Arguments, Describe, Description, Keywords
from paceline.trainer.probe import ProbePage

UNSEEN = -1
FOLLOWED_MAX = 65_536  # operations whose end is awaited, all communicators together


class Followed(dict[int, bool]):
    """Tickets of operations whose end torch will report from a thread of its own.

    Such a report while the interpreter is being finalized would abort the process (a thread that
    asks for the GIL then is ended inside C++), so the end of the process waits for them. torch
    itself waits for the same operations a moment later, when the groups are destroyed. A plain
    dict, since its single operations are atomic and cost no Python frame.
    """

    __slots__ = ()


WrapWork = Callable[[Any, Callable[[bool], None], Followed], Any]


class Watch:
    """Tells the page of each operation: entered, returned, completed or failed.

    Nothing here raises: an error of the hook trips the guard, and from then on each operation costs
    one attribute test. `wrap_work` makes a Work that reports its own completion, for operations
    whose Work has no future (gloo's send and receive).
    """

    __slots__ = (
        "_complete",
        "_enter",
        "_followed",
        "_page",
        "_returned",
        "_untold",
        "cpu_only",
        "guard",
        "slot",
        "streams",
        "wrap_work",
    )

    def __init__(
        self,
        page: ProbePage,
        slot: int,
        guard: Guard,
        followed: Followed,
        wrap_work: WrapWork,
        cpu_only: bool = False,
        streams: bool = False,
    ) -> None:
        self._page = page
        self._enter = page.enter
        self._returned = page.returned
        self._complete = page.complete
        self.slot = slot
        self.guard = guard
        self.wrap_work = wrap_work
        self.cpu_only = cpu_only
        self.streams = streams  # the end of an operation is on a device stream, which no future tells
        self._followed = followed
        self._untold = False

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

    def count_unseen(self) -> None:
        """One more operation that is not recorded."""
        self._page.count_error()

    def fail(self, ticket: int) -> None:
        """The call itself raised."""
        self._finish(ticket, True)

    def issued(self, ticket: int, waits: bool, work: Any) -> Any:
        """The call returned `work`; gives back the Work that the caller shall have.

        `waits`: the caller is about to wait for it, which costs less to see than a report by torch.
        """
        try:
            self._returned(ticket)
            if work is None:
                self._complete(ticket, False)
                return work
            if waits or not self._follow(ticket, work):
                return self.wrap_work(work, partial(self._finish, ticket), self._followed)
        except Exception as error:
            self.guard.trip("returned", error)
        return work

    def issued_elsewhere(self, ticket: int, work: Any) -> None:
        """As `issued` where the caller's Work cannot be replaced; an end nobody tells is flagged so."""
        try:
            self._returned(ticket)
            if work is not None and not self.streams and self._follow(ticket, work):
                return
            if work is not None and not self._untold:
                self._untold = True
                self._page.add_flags(self.slot, int(FrameFlag.COMPLETION_UNOBSERVABLE))
            self._complete(ticket, False)
        except Exception as error:
            self.guard.trip("returned", error)

    def _follow(self, ticket: int, work: Any) -> bool:
        """Have torch call back when `work` ends, which it does before `work.wait()` returns."""
        followed = self._followed
        if len(followed) >= FOLLOWED_MAX:
            return False
        try:
            work.get_future().add_done_callback(self._page.settler(ticket, followed))
        except RuntimeError:  # gloo's send, receive and reduce_scatter have no future
            followed.pop(ticket, None)
            return False
        return True

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
