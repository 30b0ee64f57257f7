"""What rows of steps and operations say: named reasons for every kind, nothing for healthy jobs."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

from paceline.analysis.diagnosis.slow_answer import SlowReason
from paceline.analysis.diagnosis.slow_rows import judge_rows
from paceline.analysis.facts import (
    Clock,
    Fact,
    Origin,
    PhaseKind,
    PhaseSeen,
    ProgressSeen,
    SampleRow,
    Speaker,
)
from paceline.contracts.verdicts import VerdictClass

Table = npt.NDArray[np.float64]
R = SlowReason


def _row(kind: str, rank: int | None, numbers: dict[str, float], **words: str) -> SampleRow:
    return SampleRow(origin=Origin("f"), speaker=Speaker(rank=rank), kind=kind, numbers=numbers, words=words)


def _job(own: Table, transfer: Table, drop: tuple[str, ...] = ()) -> list[Fact]:
    """Rows of a job in which everybody waits for the last one, then `transfer`."""
    found: list[Fact] = []
    for step, works in enumerate(own):
        for rank, work in enumerate(works):
            took = works.max() + transfer[step]
            numbers = {"step": step, "own_s": work, "collective_s": took - work, "step_s": took}
            found.append(_row("steps", rank, {name: v for name, v in numbers.items() if name not in drop}))
    return found


def _usual(seed: int, steps: int = 30, ranks: int = 8, noise: float = 0.005) -> tuple[Table, Table]:
    rng = np.random.default_rng(seed)
    return 0.2 * (1 + noise * rng.standard_normal((steps, ranks))), 0.03 * np.exp(
        0.1 * rng.standard_normal(steps)
    )


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("ranks", [2, 4, 32])
def test_healthy_jobs_have_nothing(seed: int, ranks: int) -> None:
    rng = np.random.default_rng(seed)
    own, transfer = _usual(seed, ranks=ranks, noise=0.02)
    lengths = own * (1 + 0.2 * rng.standard_normal((30, 1)).clip(-2, 2))  # steps differ, ranks do not
    stages = own * (1 + 0.01 * rng.standard_normal((1, ranks)))
    warming = own.copy()
    warming[0] *= 8
    for works in (own, lengths, stages, warming):
        answer = judge_rows(_job(works, transfer))
        assert answer is not None
        assert answer.reason is R.HEALTHY, answer.statement


@pytest.mark.parametrize("ranks", [2, 3, 8, 32])
@pytest.mark.parametrize("growth", [1.05, 1.3, 3.0])
def test_one_rank_became_slow(ranks: int, growth: float) -> None:
    own, transfer = _usual(1, ranks=ranks)
    own[14:, 1] *= growth
    answer = judge_rows(_job(own, transfer))
    assert answer is not None
    assert (answer.reason, answer.verdict_class, answer.ranks) == (R.LATE, VerdictClass.S1, (1,))
    assert answer.since == 14
    assert 1 not in answer.others


@pytest.mark.parametrize("drop", [("step_s",), ("own_s",), ("collective_s",), ("own_s", "step_s")])
def test_any_two_of_the_times_are_enough(drop: tuple[str, ...]) -> None:
    own, transfer = _usual(2)
    own[10:, 5] *= 1.4
    answer = judge_rows(_job(own, transfer, drop))
    assert answer is not None
    assert (answer.reason, answer.ranks) == (R.LATE, (5,))


def test_slow_from_the_first_row_on() -> None:
    own, transfer = _usual(3)
    own[:, 6] *= 1.2
    answer = judge_rows(_job(own, transfer))
    assert answer is not None
    assert (answer.reason, answer.ranks, answer.since) == (R.LATE_ALWAYS, (6,), None)


def _transfers(own: Table, transfer: Table) -> None:
    transfer[12:] *= 3


def _both(own: Table, transfer: Table) -> None:
    own[12:, [2, 3]] *= 1.3
    transfer[12:] *= 3


def _bursts(own: Table, transfer: Table) -> None:
    transfer[[3, 9, 17, 18]] *= 8


def _input(own: Table, transfer: Table) -> None:
    own[5::6] += 2.0 * np.linspace(0.97, 1.03, own.shape[1])


def _together(own: Table, transfer: Table) -> None:
    own[12:] *= 1.3


def _turns(own: Table, transfer: Table) -> None:
    for step, rank in ((4, 3), (9, 7), (15, 1), (22, 5)):
        own[step, rank] += 0.1


def _every_step(own: Table, transfer: Table) -> None:
    for step in range(len(own)):
        own[step, step * 3 % own.shape[1]] *= 5


def _now_and_then(own: Table, transfer: Table) -> None:
    own[[4, 9, 15, 22], 2] += 0.1


@pytest.mark.parametrize(
    ("change", "reason", "klass", "ranks"),
    [
        (_transfers, R.TRANSFERS, VerdictClass.S2, ()),
        (_both, R.LATE_AND_TRANSFERS, VerdictClass.S3, (2, 3)),
        (_bursts, R.BURSTS, VerdictClass.S2, ()),
        (_input, R.INPUT_BOUND, VerdictClass.S1, ()),
        (_together, R.SLOWER_TOGETHER, VerdictClass.S1, ()),
        (_turns, R.ROTATING, VerdictClass.S1, (1, 3, 5, 7)),
        (_every_step, R.ROTATING, VerdictClass.S1, tuple(range(8))),
        (_now_and_then, R.LATE_NOW_AND_THEN, VerdictClass.S1, (2,)),
    ],
)
def test_kinds(
    change: Callable[[Table, Table], None], reason: SlowReason, klass: VerdictClass, ranks: tuple[int, ...]
) -> None:
    own, transfer = _usual(4)
    change(own, transfer)
    answer = judge_rows(_job(own, transfer))
    assert answer is not None
    assert (answer.reason, answer.verdict_class, tuple(sorted(answer.ranks))) == (reason, klass, ranks)
    assert answer.ratio > 1.03


def test_the_period_of_stalls_is_named() -> None:
    own, transfer = _usual(5)
    _input(own, transfer)
    answer = judge_rows(_job(own, transfer))
    assert answer is not None
    assert (answer.period, answer.slow_steps) == (6, 5)


def test_announced_checkpoints_are_no_stalls() -> None:
    own, transfer = _usual(6)
    own[9::10] += 8
    spoken: list[Fact] = []
    for step in (9, 19, 29):
        at = Origin("log", step)
        spoken.append(PhaseSeen(origin=at, kind=PhaseKind.CHECKPOINT, ended=False))
        spoken.append(ProgressSeen(origin=at, done=step))
    answer = judge_rows([*_job(own, transfer), *spoken])
    assert answer is not None
    assert answer.reason is R.HEALTHY


def test_collections_explain_a_rotation() -> None:
    own, transfer = _usual(7)
    _turns(own, transfer)
    events = [
        _row("collections", rank, {"step": step, "generation": 2, "duration_s": 0.1})
        for step, rank in ((4, 3), (9, 7), (15, 1), (22, 5))
    ]
    small = [_row("collections", 0, {"step": 9, "generation": 0, "duration_s": 0.001})]
    answer = judge_rows([*_job(own, transfer), *events, *small])
    assert answer is not None
    assert (answer.reason, set(answer.ranks)) == (R.COLLECTIONS, {1, 3, 5, 7})


def test_work_behind_the_collective() -> None:
    rows: list[Fact] = [
        _row("steps", r, {"step": s, "collective_s": 0.85, "tail_s": tail, "wait_s": 5.0 - tail})
        for s in range(5)
        for r, tail in enumerate((0.06, 4.9, 0.06, 0.06))
    ]
    answer = judge_rows(rows)
    assert answer is not None
    assert (answer.reason, answer.ranks) == (R.TAIL, (1,))


@pytest.mark.parametrize("link", [(2, 5), None])
def test_rates_name_a_link_or_nobody(link: tuple[int, int] | None) -> None:
    own, transfer = _usual(8)
    _transfers(own, transfer)
    rates: list[Fact] = []
    for step in range(30):
        for rank in range(8):
            slow = step >= 12
            send = 50.0 if slow and (link is None or link[0] == rank) else 100.0
            receive = 50.0 if slow and (link is None or link[1] == rank) else 100.0
            rates.append(_row("rates", rank, {"step": step, "send_rate": send, "receive_rate": receive}))
    answer = judge_rows([*_job(own, transfer), *rates])
    assert answer is not None
    assert answer.verdict_class is VerdictClass.S2
    assert (answer.ends.links if answer.ends else ()) == ((link,) if link else ())


def test_an_agent_that_writes_while_operations_are_slow() -> None:
    rows: list[Fact] = []
    for at in range(100):
        slow = 30 <= at < 50 and at % 2 == 0
        for rank in (0, 1):
            fact = _row("operations", rank, {"collective_s": 0.016 if slow else 0.002}, op="AllReduce")
            rows.append(_timed(fact, at * 0.05))
    calm = judge_rows(rows)
    action = _row("actions", None, {}, action="setPowerLimit")
    actions = [_timed(action, at * 0.05) for at in range(30, 50)]
    answer = judge_rows([*rows, *actions])
    assert answer is not None
    assert (answer.reason, answer.verdict_class) == (R.AGENT_WRITES, VerdictClass.S2)
    assert answer.agent is not None
    assert (answer.agent.is_write, answer.agent.ranks) == (True, (0, 1))
    assert calm is not None
    assert calm.reason is R.BURSTS


def _timed(row: SampleRow, at: float) -> SampleRow:
    return SampleRow(
        origin=row.origin, speaker=row.speaker, kind=row.kind, numbers=row.numbers, words=row.words,
        time_s=at, clock=Clock.START,
    )  # fmt: skip


def test_too_little_to_judge() -> None:
    own, transfer = _usual(9, steps=2)
    assert judge_rows(_job(own, transfer)) is None
    assert judge_rows([]) is None
    assert judge_rows(_job(*_usual(9, ranks=1))) is None


def test_holes_are_no_zeros() -> None:
    own, transfer = _usual(10)
    own[14:, 1] *= 1.3
    rows = _job(own, transfer)
    answer = judge_rows([row for at, row in enumerate(rows) if at % 7])
    assert answer is not None
    assert (answer.reason, answer.ranks) == (R.LATE, (1,))
