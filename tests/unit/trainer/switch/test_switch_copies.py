"""A copy from leaver to joiner over a real connection: to the bit, or refused where it is damaged."""

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from typing import Any

import pytest

from paceline.trainer.protection.checksum import checksum
from paceline.trainer.switch import copies
from paceline.trainer.switch.copies import Arriving, Leaving, connect, invite, limit_s
from paceline.trainer.switch.errors import PrepareFailed, SwitchCancelled, TransferFailed

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.needs_torch
DIGEST = "ab" * 32
MANIFEST = json.dumps([["model", "Linear", 2, "d1"], ["optimizer", "AdamW", 0, "d2"]]).encode()


class Store:
    """Of two threads."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._values: dict[str, bytes] = {}

    def set(self, key: str, value: str) -> None:
        with self._changed:
            self._values[key] = value.encode()
            self._changed.notify_all()

    def get(self, key: str) -> bytes:
        return self._values[key]

    def wait(self, keys: list[str], limit: timedelta) -> None:
        with self._changed:
            if not self._changed.wait_for(lambda: keys[0] in self._values, limit.total_seconds()):
                raise RuntimeError("nobody has said anything")


class Thread(threading.Thread):
    """Keeps what its work gives or raises."""

    def __init__(self, work: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self._work = work
        self.result: Any = None
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self.result = self._work()
        except Exception as error:
            self.error = error

    def end(self) -> Any:
        self.join(20)
        if self.error is not None:
            raise self.error
        return self.result


@pytest.fixture
def link() -> Iterator[Callable[..., tuple[Leaving, Arriving]]]:
    made: list[Any] = []

    def make(digest: str = DIGEST, manifest: bytes = MANIFEST) -> tuple[Leaving, Arriving]:
        store = Store()
        inviting = Thread(lambda: invite(store, "127.0.0.1", digest, manifest, 10.0))
        made.append(connect(store, DIGEST, MANIFEST, 10.0))
        made.append(inviting.end())
        return made[0], made[1]

    yield make
    for each in made:
        each.close()


def parts_of(seed: int) -> list[Any]:
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randint(0, 256, (size,), dtype=torch.uint8, generator=generator) for size in (100_000, 0, 777)
    ]


class Room:
    """Of a joiner."""

    def __init__(self) -> None:
        self.parts: list[Any] = []

    def make(self, header: Mapping[str, Any]) -> list[Any]:
        self.parts = [torch.zeros(size, dtype=torch.uint8) for size in header["sizes"]]
        return self.parts

    def is_whole(self, header: Mapping[str, Any]) -> bool:
        return bool([checksum(part) for part in self.parts] == header["sums"])


def header_of(parts: list[Any]) -> dict[str, Any]:
    return {"sizes": [part.numel() for part in parts], "sums": [checksum(part) for part in parts]}


def test_a_copy_arrives_bit_for_bit(link: Callable[..., Any]) -> None:
    leaving, arriving = link()
    offering = Thread(leaving.offer)
    arriving.accept()
    offering.end()
    parts, room = parts_of(1), Room()
    giving = Thread(lambda: leaving.give(41, header_of(parts), parts))
    step, text = arriving.await_state(10)
    header = arriving.take(text, room.make, room.is_whole)
    giving.end()
    assert step == 41
    assert header == header_of(parts)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(room.parts, parts, strict=True))


def test_a_damaged_byte_is_refused_and_the_leaver_knows(link: Callable[..., Any]) -> None:
    leaving, arriving = link()
    parts, room = parts_of(1), Room()
    header = header_of(parts)
    parts[2][5] ^= 1
    giving = Thread(lambda: leaving.give(41, header, parts))
    _, text = arriving.await_state(10)
    with pytest.raises(TransferFailed, match="damaged"):
        arriving.take(text, room.make, room.is_whole)
    with pytest.raises(TransferFailed, match="not taken"):
        giving.end()


def test_a_header_without_sizes_is_refused(link: Callable[..., Any]) -> None:
    leaving, arriving = link()
    room = Room()
    giving = Thread(lambda: leaving.give(41, {"size": 1}, []))
    _, text = arriving.await_state(10)
    with pytest.raises(TransferFailed, match="header"):
        arriving.take(text, room.make, room.is_whole)
    arriving.close()
    with pytest.raises(OSError, match=r"closed|reset"):
        giving.end()


def test_a_cancelled_switch_is_told(link: Callable[..., Any]) -> None:
    leaving, arriving = link()
    leaving.cancel()
    with pytest.raises(SwitchCancelled):
        arriving.await_state(10)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"manifest": MANIFEST.replace(b"d1", b"d3")}, r"model: leaver \['Linear', 2, 'd1'\]"),
        ({"manifest": b"[]"}, "2 tensors differ"),
        ({"digest": "cd" * 32}, "follows plan"),
    ],
)
def test_what_does_not_fit_is_refused_while_training_goes_on(
    link: Callable[..., Any], change: dict[str, Any], why: str
) -> None:
    leaving, arriving = link(**change)
    offering = Thread(leaving.offer)
    with pytest.raises(PrepareFailed, match=why):
        arriving.accept()
    with pytest.raises(PrepareFailed, match="the joiner holds other tensors"):
        offering.end()


def test_a_joiner_that_never_comes_is_waited_for_so_long_and_no_longer() -> None:
    with pytest.raises(RuntimeError, match="nobody"):
        connect(Store(), DIGEST, MANIFEST, 0.05)


@pytest.mark.parametrize("said", ["somewhere", "h: 00", "h:x 00", "h:1 " + "0" * 600])
def test_what_is_no_address_is_refused(said: str) -> None:
    store = Store()
    store.set("joiner", said)
    with pytest.raises(PrepareFailed, match="address"):
        connect(store, DIGEST, MANIFEST, 0.05)


def test_a_transfer_has_as_long_as_its_size_needs_and_one_below_the_least_rate_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert limit_s(0) == copies.ANSWER_S
    assert limit_s(64 << 30) > 1000, "a large state is no stuck transfer"
    monkeypatch.setattr(copies, "PIECE_BYTES", 1024)
    times = iter((0.0, 0.0, 1.0, copies.ANSWER_S + 1.0))

    class Slow:
        """The pieces of a copy without a socket."""

        waits_s: list[float]

        def __init__(self) -> None:
            self.waits_s = []

        def set_timeout(self, seconds: float) -> None:
            self.waits_s.append(seconds)

        def receive_into(self, memory: memoryview) -> None:
            memory[:] = bytes(len(memory))

    channel: Any = Slow()
    arriving = Arriving(channel, DIGEST, MANIFEST, lambda: next(times))
    with pytest.raises(TransferFailed, match="4096 bytes did not arrive within 10 s"):
        arriving._fill([torch.zeros(4096, dtype=torch.uint8)])
    limit = limit_s(4096)
    assert channel.waits_s[1:] == [limit, limit - 1.0], "each wait has what is left of the whole"
