import threading

import pytest

from paceline.trainer.nonce import NonceReader, agree_on_nonce


class Store:
    """compare_set as torch's stores have it, shared by all clones."""

    def __init__(self, values: dict[str, bytes] | None = None) -> None:
        self.values = {} if values is None else values
        self.clones = 0

    def clone(self) -> "Store":
        self.clones += 1
        return Store(self.values)

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        if self.values.get(key, b"").decode() == expected:
            self.values[key] = desired.encode()
        return self.values[key]


def test_the_first_offer_is_everybodys_nonce() -> None:
    store = Store()
    assert [agree_on_nonce(store, offer) for offer in ("a", "b", "c")] == ["a", "a", "a"]
    assert store.clones == 3, "training owns the store's own connection"


def settle(store: object) -> str:
    settled: list[str] = []
    reader = NonceReader(store, settled.append, lambda: "mine")
    reader.start()
    assert reader.join(5)
    (nonce,) = settled
    return nonce


def test_the_reader_settles() -> None:
    assert settle(Store()) == "mine"


def test_a_store_that_fails_settles_for_nothing() -> None:
    class Broken:
        def compare_set(self, key: str, expected: str, desired: str) -> bytes:
            raise RuntimeError("Connection reset by peer")

    assert settle(Broken()) == ""


def test_nobody_waits_for_a_store_that_hangs() -> None:
    release = threading.Event()

    class Hanging:
        def compare_set(self, key: str, expected: str, desired: str) -> bytes:
            release.wait(10)
            return b"late"

    settled: list[str] = []
    reader = NonceReader(Hanging(), settled.append)
    reader.start()
    assert settled == []
    release.set()
    assert reader.join(5)
    assert settled == ["late"]


def test_a_settle_that_raises_ends_the_thread_quietly(caplog: pytest.LogCaptureFixture) -> None:
    def broken(nonce: str) -> None:
        raise ValueError(nonce)

    reader = NonceReader(Store(), broken)
    reader.start()
    assert reader.join(5)
