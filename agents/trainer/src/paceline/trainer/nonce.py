"""The attempt's nonce: agreed through the job's store, by whoever is first, awaited by nobody."""

import logging
import secrets
import threading
from collections.abc import Callable
from typing import Any

log = logging.getLogger("paceline")
KEY = "paceline/attempt"
NONCE_HEX = 12


class NonceReader:
    """A daemon thread that asks the store once and calls `settle(nonce)`, with "" where it cannot.

    Every rank offers its own nonce by compare-and-set, so nobody waits for rank 0. The store is
    cloned where it can be: a client shared by threads serialises, and training owns this one.
    """

    def __init__(
        self,
        store: Any,
        settle: Callable[[str], None],
        draw: Callable[[], str] = lambda: secrets.token_hex(NONCE_HEX // 2),
        ask: "Callable[[Any, str], str] | None" = None,
    ) -> None:
        self._store = store
        self._settle = settle
        self._draw = draw
        self._ask = ask or agree_on_nonce
        self._thread = threading.Thread(target=self._run, name="paceline-identity", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def join(self, timeout_s: float) -> bool:
        """True where the thread has ended within `timeout_s`."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            nonce = self._ask(self._store, self._draw())
        except Exception as error:
            log.info("the job's store gave no attempt nonce (%r); using the restart count", error)
            nonce = ""
        finally:
            self._store = None
        try:
            self._settle(nonce)
        except Exception as error:
            log.info("could not settle the attempt: %r", error)


def agree_on_nonce(store: Any, offer: str) -> str:
    """The nonce all members of the store have; ours where we are first. Errors of the store pass."""
    own = store.clone() if hasattr(store, "clone") else store
    answer = own.compare_set(KEY, "", offer)
    text = answer.decode() if isinstance(answer, bytes) else str(answer)
    return text or offer


def follow_nonce(store: Any, _: str) -> str:
    """The nonce that a member of the store hands on; waits for it as long as the store's timeout."""
    own = store.clone() if hasattr(store, "clone") else store
    answer = own.get(KEY)
    return answer.decode() if isinstance(answer, bytes) else str(answer)
