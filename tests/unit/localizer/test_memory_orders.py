"""What an attempt's memory keeps between two judgements."""

from paceline.contracts.registry import CommunicatorRecord, NodeRecord, OrderPart, RankRecord
from paceline.localizer.memory import AttemptMemory, MemoryBounds

COMM = "00000000000000ab"


def test_orders_of_the_registry_are_parsed_at_the_first_judgement_only() -> None:
    memory = AttemptMemory("j", "a")
    memory.note(CommunicatorRecord("j", "a", COMM, "dp", "0-3", 0, 0, "nccl"), MemoryBounds())
    for node, chain in enumerate(("0,1,2", "2,3,0")):
        part = OrderPart(COMM, 4, rings={"0": chain})
        ranks = tuple(RankRecord(rank, 0, 1, 1) for rank in (2 * node, 2 * node + 1))
        memory.note(NodeRecord("j", "a", f"n{node}", "g", ranks, orders=(part,)), MemoryBounds())
    rings = [memory.evidence(slow=False, stalled_unix_s=0.0).ring_of(0) for _ in range(3)]
    assert rings == ["0-3"] * 3
    assert memory.orders.parsed == 2
