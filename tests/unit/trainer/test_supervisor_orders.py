"""Which orders are carried out, and once."""

import pytest

from paceline.contracts.recovery import Order, OrderKind, OrderOutcome
from paceline.trainer.supervisor.orders import RESULTS_KEPT_MAX, OrderBook, Verdict


def order(
    number: int = 1, kind: OrderKind = OrderKind.REBUILD, generation: int = 1, attempt_no: int = 0
) -> Order:
    return Order(f"o{number}", kind, generation, attempt_no, expires_unix_s=100.0)


@pytest.fixture
def book() -> OrderBook:
    return OrderBook("m")


def test_a_new_order_is_carried_out_once_and_answered_ever_after(book: OrderBook) -> None:
    assert book.judge(order(), 50.0).verdict is Verdict.ACCEPT
    assert book.judge(order(), 50.0).verdict is Verdict.IGNORE, "it is being carried out"
    done = book.finish("o1", OrderOutcome.DONE, "goes on at step 4")
    again = book.judge(order(), 500.0)
    assert (again.verdict, again.result) == (Verdict.ANSWER, done), "expiry does not matter any more"


def test_an_order_that_came_late_is_refused(book: OrderBook) -> None:
    judgement = book.judge(order(), 100.1)
    assert judgement.result is not None
    assert judgement.result.outcome is OrderOutcome.EXPIRED


@pytest.mark.parametrize("kind", list(OrderKind))
def test_an_older_generation_is_refused_whatever_it_asks_for(book: OrderBook, kind: OrderKind) -> None:
    book.judge(order(1, generation=3), 0.0)
    judgement = book.judge(order(2, kind, generation=2), 0.0)
    assert judgement.result is not None
    assert judgement.result.outcome is OrderOutcome.REFUSED
    assert "older than 3" in judgement.result.message
    assert judgement.result.generation == 3


def test_attempts_of_a_generation_only_grow(book: OrderBook) -> None:
    assert book.judge(order(1, generation=3, attempt_no=1), 0.0).verdict is Verdict.ACCEPT
    assert book.judge(order(2, generation=3, attempt_no=1), 0.0).verdict is Verdict.ANSWER
    assert book.judge(order(3, generation=3, attempt_no=2), 0.0).verdict is Verdict.ACCEPT
    assert (book.generation, book.attempt_no) == (3, 2)


def test_a_fence_of_the_coming_generation_leaves_room_for_its_rebuild(book: OrderBook) -> None:
    assert book.judge(order(1, OrderKind.FENCE, generation=1), 0.0).verdict is Verdict.ACCEPT
    assert book.judge(order(2, OrderKind.REBUILD, generation=1), 0.0).verdict is Verdict.ACCEPT


def test_the_memory_of_orders_is_bounded(book: OrderBook) -> None:
    for number in range(RESULTS_KEPT_MAX + 10):
        book.judge(order(number, OrderKind.FENCE), 0.0)
        book.finish(f"o{number}", OrderOutcome.DONE, "")
    assert not book.knows("o0")
    assert book.knows(f"o{RESULTS_KEPT_MAX + 9}")
