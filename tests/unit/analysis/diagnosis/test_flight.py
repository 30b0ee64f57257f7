"""From dumps of all ranks to who is to blame."""

from collections.abc import Iterable
from typing import Any

import pytest

from paceline.analysis.diagnosis.flight import flight_evidence, read_flight
from paceline.analysis.diagnosis.flight_verdict import judge_flight
from paceline.contracts.verdicts import SubReason, Verdict, VerdictClass
from tests.unit.analysis.flight_examples import Record, dump, entry, message, pending, read_all


def _judge(records: dict[int, Record]) -> Verdict:
    return judge_flight(read_flight(read_all(records))).verdict


def _roots(verdict: Verdict) -> list[int | None]:
    return sorted((root.rank for root in verdict.roots), key=lambda rank: -1 if rank is None else rank)


def _ranks(world: int, odd: dict[int, list[Record]], usual: list[Record]) -> dict[int, Record]:
    return {rank: dump(odd.get(rank, usual), world) for rank in range(world)}


def _history(count: int) -> list[Record]:
    return [entry(at, at + 1) for at in range(count)]


def test_a_rank_that_did_not_enter() -> None:
    verdict = _judge(_ranks(4, {2: _history(5)}, [*_history(5), pending(5, 6)]))
    assert (verdict.verdict_class, _roots(verdict)) == (VerdictClass.H1, [2])
    assert verdict.operation is not None
    assert (verdict.operation.function, verdict.operation.round) == ("all_reduce", 6)


@pytest.mark.parametrize(
    ("call", "sub"),
    [
        ({"name": "nccl:all_reduce", "size": 1025}, SubReason.SIZE_MISMATCH),
        ({"name": "nccl:_all_gather_base"}, SubReason.OPERATION_MISMATCH),
        ({"input_dtypes": ["Half"]}, SubReason.DTYPE_MISMATCH),
    ],
)
@pytest.mark.parametrize("odd", [0, 3])
def test_a_rank_that_calls_something_else(call: dict[str, Any], sub: SubReason, odd: int) -> None:
    verdict = _judge(_ranks(4, {odd: [*_history(5), pending(5, 6, **call)]}, [*_history(5), pending(5, 6)]))
    assert (verdict.verdict_class, verdict.sub_reason, _roots(verdict)) == (VerdictClass.H2, sub, [odd])


def test_uneven_all_to_all_is_no_mismatch() -> None:
    ranks = {rank: dump([*_history(5), pending(5, 6, "nccl:all_to_all", 10 + rank)], 4) for rank in range(4)}
    report = read_flight(read_all(ranks))
    assert report.divergences == ()
    assert judge_flight(report).verdict.verdict_class is VerdictClass.H3


def test_a_slip_that_completed_is_found_where_it_began() -> None:
    """Rank 1 leaves out one gradient; both go on for three calls and stop in another one."""
    sizes = [64, 64, 64, 1, 1, 2]
    behind = [64, 64, 1, 1, 2]
    calls = [entry(at, at + 1, size=size) for at, size in enumerate(sizes)]
    calls[-1] |= {"state": "started", "retired": False}
    report = read_flight(
        read_all({0: dump(calls, 2), 1: dump([entry(at, at + 1, size=s) for at, s in enumerate(behind)], 2)})
    )
    (first,) = report.divergences
    assert (first.sequence, first.odd, first.slip, first.completed) == (3, (), -1, True)
    verdict = judge_flight(report).verdict
    assert (verdict.verdict_class, _roots(verdict)) == (VerdictClass.H1, [1])
    assert "1 call fewer" in verdict.evidence[0].statement


def test_an_extra_call_in_the_past_outweighs_who_is_missing_now() -> None:
    """Rank 2 made one call too many; its peers have finished and it waits alone."""
    usual = [entry(at, at + 1, size=size) for at, size in enumerate([8, 8, 4, 4])]
    extra = [entry(at, at + 1, size=size) for at, size in enumerate([8, 9, 8, 4, 4])]
    extra[-1] |= {"state": "scheduled", "retired": False}
    report = read_flight(read_all(_ranks(4, {2: extra}, usual)))
    assert (report.divergences[0].sequence, report.divergences[0].odd) == (2, (2,))
    verdict = judge_flight(report).verdict
    assert (verdict.verdict_class, _roots(verdict)) == (VerdictClass.H2, [2])
    assert verdict.operation is not None
    assert verdict.operation.round == 2


def test_one_rank_alone_in_a_call_is_the_odd_one() -> None:
    verdict = _judge(_ranks(4, {0: [*_history(5), pending(5, 6)]}, _history(5)))
    assert (verdict.verdict_class, _roots(verdict), verdict.victims) == (VerdictClass.H2, [0], ())


def test_two_ranks_do_not_outvote_each_other() -> None:
    verdict = _judge({0: dump([*_history(5), pending(5, 6)], 2), 1: dump(_history(5), 2)})
    assert (verdict.verdict_class, _roots(verdict)) == (VerdictClass.H1, [1])


def test_a_missing_dump_is_an_observation() -> None:
    ranks = _ranks(4, {}, [*_history(5), pending(5, 6)])
    del ranks[3]
    report = read_flight(read_all(ranks))
    assert report.missing == (3,)
    verdict = judge_flight(report).verdict
    assert verdict.verdict_class is VerdictClass.INCONCLUSIVE
    assert "rank 3" in verdict.summary
    assert any("no dump of rank 3" in text for text in report.notes)


def test_messages_meet_by_their_own_count() -> None:
    """Rank 1 posts no receive for the third message; the ring is whole, so the third is known as such."""
    sends = [message(at, at + 1, "send 0->1") for at in range(2)]
    receives = [message(at, at + 1, "recv 1<-0") for at in range(2)]
    idle = {rank: dump([], 4) for rank in (2, 3)}
    ranks = {0: dump([*sends, message(2, 3, "send 0->1", True)], 4), 1: dump(receives, 4), **idle}
    evidence = flight_evidence(read_all(ranks))
    assert evidence.peers["posted"][:, 0].tolist()[0] == 3
    waits = {
        0: dump([*sends, message(2, 3, "recv 0<-1", True)], 4),
        1: dump(receives, 4),
        **idle,
    }
    verdict = _judge(waits)
    assert (verdict.verdict_class, verdict.sub_reason) == (VerdictClass.H1, SubReason.P2P_MISSING_COUNTERPART)
    assert _roots(verdict) == [1]


def test_opposite_orders_in_two_groups_are_a_deadlock() -> None:
    config = {name: {"name": name, "desc": name, "ranks": "[0, 1, 2, 3]"} for name in ("mesh_a", "mesh_b")}

    def ordered(first: str, second: str) -> Iterable[Record]:
        for at, name in enumerate((first, second)):
            yield entry(at, 1, process_group=(name, name), pg_id=ord(name[-1]))
        yield pending(2, 2, process_group=(first, first), pg_id=ord(first[-1]))

    ranks = {
        rank: dump(
            list(ordered(*(("mesh_b", "mesh_a") if rank == 3 else ("mesh_a", "mesh_b")))), pg_config=config
        )
        for rank in range(4)
    }
    verdict = _judge(ranks)
    assert (verdict.verdict_class, _roots(verdict)) == (VerdictClass.DEADLOCK, [3])


def test_gloo_without_member_lists() -> None:
    broken = {"": {"name": "", "desc": "", "ranks": "[]"}}

    def calls(count: int, extra: list[Record]) -> Record:
        done = [entry(at, at + 1, "gloo:all_reduce", state="scheduled") for at in range(count)]
        return dump([*done, *extra], pg_config=broken)

    waits = [pending(3, 4, "gloo:all_reduce")]
    verdict = _judge({rank: calls(3, [] if rank == 1 else waits) for rank in range(4)})
    assert (verdict.verdict_class, _roots(verdict)) == (VerdictClass.H1, [1])


def test_of_two_dumps_of_a_rank_the_newer_counts_and_unnamed_ones_are_said() -> None:
    newer = [*_history(5), pending(5, 6)]
    facts = [*read_all({rank: dump(newer, 3) for rank in range(3)}), *read_all({1: dump(_history(2), 3)})]
    report = read_flight(facts)
    assert any("older dumps" in text for text in report.notes)
    assert judge_flight(report).verdict.verdict_class is VerdictClass.H3
    assert read_flight([]).evidence.world_size == 0
