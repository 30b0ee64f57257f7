"""The promise that the hook never raises into user code, in one place."""

import logging
from collections.abc import Callable

log = logging.getLogger("paceline")


class Guard:
    """On while the hook may work; the first internal error switches it off for good.

    One error is enough: a hook that failed once inside a collective may fail in every one, and
    training pays for each. `errors` counts, `reason` tells the first one.
    """

    __slots__ = ("_count", "errors", "off", "reason")

    def __init__(self, count: Callable[[], object] | None = None) -> None:
        self.off = False
        self.errors = 0
        self.reason = ""
        self._count = count

    def trip(self, where: str, error: BaseException) -> None:
        """Count `error` and switch the hook off; logs the first one only."""
        self.off = True
        self.errors += 1
        if self.errors > 1:
            return
        self.reason = f"{where}: {type(error).__name__}: {error}"
        log.warning("paceline stopped observing this process (%s); training goes on", self.reason)
        if self._count is not None:
            try:
                self._count()
            except Exception as count_error:
                log.debug("could not tell the page of the error: %r", count_error)

    def attempt(self, where: str, action: Callable[[], object]) -> None:
        """Run `action` unless off; an error trips the guard and goes no further."""
        if self.off:
            return
        try:
            action()
        except Exception as error:
            self.trip(where, error)
