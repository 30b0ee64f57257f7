"""State from leaver to joiner over a link in memory: bitwise, refused where it does not fit or is damaged."""

import queue
import threading
from datetime import timedelta
from typing import Any

import pytest

from paceline.trainer.switch.errors import PrepareFailed, SwitchCancelled, TransferFailed
from paceline.trainer.switch.transfer import JOINER, LEAVER, Transfer

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.needs_torch
DIGEST = "ab" * 32


class Done:
    def wait(self, timeout: timedelta) -> None:
        assert timeout.total_seconds() > 0


class Receiving:
    def __init__(self, source: "queue.Queue[Any]", target: Any) -> None:
        self._source, self._target = source, target

    def wait(self, timeout: timedelta) -> None:
        self._target.copy_(self._source.get(timeout=10))


class Pipe:
    """One end of a group of two; `damage` changes the n-th tensor that it sends."""

    def __init__(self, out: "queue.Queue[Any]", back: "queue.Queue[Any]", damage: int = -1) -> None:
        self._out, self._back, self._damage, self._sent = out, back, damage, 0

    def send(self, tensors: list[Any], peer: int, tag: int) -> Done:
        content = tensors[0].clone()
        if self._sent == self._damage:
            content[0] ^= 1
        self._sent += 1
        self._out.put(content)
        return Done()

    def recv(self, tensors: list[Any], peer: int, tag: int) -> Receiving:
        return Receiving(self._back, tensors[0])


def ends(leaver: dict[str, Any], joiner: dict[str, Any], damage: int = -1) -> tuple[Transfer, Transfer]:
    there: queue.Queue[Any] = queue.Queue()
    back: queue.Queue[Any] = queue.Queue()
    return (
        Transfer(Pipe(there, back, damage), LEAVER, leaver, 5),
        Transfer(Pipe(back, there), JOINER, joiner, 5),
    )


def state(seed: int) -> dict[str, Any]:
    torch.manual_seed(seed)
    whole = torch.randn(10, dtype=torch.bfloat16)
    return {
        "w": torch.randn(7, 5),
        "moment": torch.randn(1000, dtype=torch.float64),
        "part": whole[1:8],  # starts in the middle of a word
        "step": torch.tensor(3 + seed),
        "none": torch.zeros(0),
        "flags": torch.tensor([True, seed % 2 == 0]),
    }


def shake_hands(leaver: Transfer, joiner: Transfer, plan: str = DIGEST) -> list[PrepareFailed]:
    errors: list[PrepareFailed] = []

    def offer() -> None:
        try:
            leaver.offer(DIGEST)
        except PrepareFailed as error:
            errors.append(error)

    thread = threading.Thread(target=offer)
    thread.start()
    try:
        joiner.accept(plan)
    except PrepareFailed as error:
        errors.append(error)
    thread.join(10)
    return errors


def test_state_arrives_bit_for_bit_in_the_joiners_own_tensors() -> None:
    given, held = state(1), state(2)
    leaver, joiner = ends(given, held)
    assert not shake_hands(leaver, joiner)
    assert leaver.hand_over(41) == leaver.payload_bytes > 8000
    assert joiner.take_over(5) == 41
    for name, tensor in given.items():
        assert torch.equal(held[name].reshape(-1).view(torch.uint8), tensor.reshape(-1).view(torch.uint8)), (
            name
        )


@pytest.mark.parametrize("tensor", [1, 2, 3, 4, 5, 6])  # 0 is the header
def test_a_damaged_byte_is_refused(tensor: int) -> None:
    leaver, joiner = ends(state(1), state(2), damage=tensor)
    leaver.hand_over(41)
    with pytest.raises(TransferFailed, match="damaged"):
        joiner.take_over(5)


def test_what_is_no_header_is_refused() -> None:
    leaver, joiner = ends(state(1), state(2), damage=0)
    leaver.hand_over(41)
    with pytest.raises(TransferFailed, match="unknown message"):
        joiner.take_over(5)


def test_a_cancelled_switch_is_told() -> None:
    leaver, joiner = ends(state(1), state(2))
    leaver.cancel()
    with pytest.raises(SwitchCancelled):
        joiner.take_over(5)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"w": torch.zeros(5, 7)}, r"w: leaver \['torch.float32', \[7, 5\]\]"),
        ({"w": torch.zeros(7, 5, dtype=torch.float64)}, "float64"),
        ({"more": torch.zeros(1)}, "more: leaver None"),
    ],
)
def test_other_tensors_are_refused_while_training_goes_on(change: dict[str, Any], why: str) -> None:
    errors = shake_hands(*ends(state(1), {**state(2), **change}))
    assert len(errors) == 2  # both know
    with pytest.raises(PrepareFailed, match=why):
        raise next(error for error in errors if "differ" in str(error))


def test_another_plan_is_refused() -> None:
    errors = shake_hands(*ends(state(1), state(2)), plan="cd" * 32)
    assert any("follows plan" in str(error) for error in errors)


def test_memory_that_cannot_be_sent_as_it_is_is_refused() -> None:
    with pytest.raises(PrepareFailed, match="'w' is not contiguous"):
        ends({"w": torch.zeros(4, 4).t()}, {})
