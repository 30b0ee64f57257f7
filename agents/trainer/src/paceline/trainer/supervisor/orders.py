"""Which orders a supervisor carries out; pure, clock and generation are given."""

from collections import OrderedDict
from dataclasses import dataclass
from enum import Enum

from paceline.contracts.recovery import Order, OrderKind, OrderOutcome, OrderResult

RESULTS_KEPT_MAX = 256  # newest orders that are answered again instead of repeated
OF_A_NEW_GENERATION = (OrderKind.REBUILD, OrderKind.RETRY)


class Verdict(str, Enum):
    ACCEPT = "accept"
    ANSWER = "answer"  # with `result`
    IGNORE = "ignore"  # it is being carried out


@dataclass(frozen=True)
class Judgement:
    verdict: Verdict
    reason: str
    result: OrderResult | None = None


class OrderBook:
    """Orders that one supervisor has seen, and the newest generation it knows of."""

    def __init__(self, member: str) -> None:
        self._member = member
        self._seen: OrderedDict[str, OrderResult | None] = OrderedDict()
        self.generation = 0
        self.attempt_no = -1  # of the newest REBUILD or RETRY of `generation`

    def judge(self, order: Order, now_unix_s: float) -> Judgement:
        """What is to be done with `order`; an accepted one counts as begun."""
        if order.id in self._seen:
            result = self._seen[order.id]
            if result is None:
                return Judgement(Verdict.IGNORE, "it is being carried out")
            return Judgement(Verdict.ANSWER, "it was carried out before", result)
        if now_unix_s > order.expires_unix_s:
            return self._refuse(order, OrderOutcome.EXPIRED, "it came after its expiry")
        if order.generation < self.generation:
            reason = f"generation {order.generation} is older than {self.generation}"
            return self._refuse(order, OrderOutcome.REFUSED, reason)
        if order.kind in OF_A_NEW_GENERATION:
            if (order.generation, order.attempt_no) <= (self.generation, self.attempt_no):
                reason = f"attempt {order.attempt_no} of generation {order.generation} was begun before"
                return self._refuse(order, OrderOutcome.REFUSED, reason)
            self.generation, self.attempt_no = order.generation, order.attempt_no
        self._keep(order.id, None)
        return Judgement(Verdict.ACCEPT, "it is new and of the newest generation")

    def enter(self, order: Order) -> None:
        """A switch has taken place: nothing of an older generation is obeyed any more."""
        self.generation, self.attempt_no = max(
            (self.generation, self.attempt_no), (order.generation, order.attempt_no)
        )

    def finish(self, order_id: str, outcome: OrderOutcome, message: str, generation: int = 0) -> OrderResult:
        """The result of an order of `generation`, kept for whoever asks again; it names the newest one known.

        An order that only prepares a generation is answered before anybody is in it."""
        newest = max(self.generation, generation)
        result = OrderResult(order_id, self._member, outcome, message[:900], newest)
        self._keep(order_id, result)
        return result

    def knows(self, order_id: str) -> bool:
        return order_id in self._seen

    def _refuse(self, order: Order, outcome: OrderOutcome, reason: str) -> Judgement:
        return Judgement(Verdict.ANSWER, reason, self.finish(order.id, outcome, reason))

    def _keep(self, order_id: str, result: OrderResult | None) -> None:
        self._seen[order_id] = result
        self._seen.move_to_end(order_id)
        while len(self._seen) > RESULTS_KEPT_MAX:
            self._seen.popitem(last=False)
