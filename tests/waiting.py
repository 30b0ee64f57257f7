"""How tests without an event loop wait; with one: the fixture `eventually`."""

import time
from collections.abc import Callable

DEADLINE_S = 20.0
POLL_S = 0.005


def until(condition: Callable[[], object]) -> None:
    """Returns when `condition` is true; AssertionError after DEADLINE_S."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"the condition did not come true within {DEADLINE_S:g} s"
        time.sleep(POLL_S)
