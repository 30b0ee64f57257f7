"""Kept rounds of many senders at once: the same as one after the other, whatever order they come in."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from paceline.analysis.detection import DetectionPolicy, JobBlock
from paceline.analysis.detection.members import Members
from paceline.analysis.detection.rounds import RoundWindow
from paceline.contracts.batch import ROUND_ROW, STATE_ROW, Batch, BatchFlag, BatchKind, RowKind
from paceline.contracts.codes import OpKind, OpState

COMM, RANKS = 7, 4


def rounds_of(ranks: Sequence[int], numbers: Sequence[int], state: OpState = OpState.COMPLETED) -> Any:
    rows = np.zeros(len(ranks), ROUND_ROW)
    rows["comm"], rows["rank"], rows["round"] = COMM, ranks, numbers
    rows["kind"], rows["state"], rows["count"] = OpKind.COLLECTIVE, state, 8
    rows["duration_ns"] = 1000 * (1 + rows["rank"]) + rows["round"]
    return rows


def members() -> Members:
    table = Members(100, 10)
    table.admit(np.full(RANKS, COMM, np.uint64), np.arange(RANKS, dtype=np.uint32))
    return table


def batch(node: int, rounds: Any, flags: BatchFlag = BatchFlag.NONE) -> Batch:
    state = np.zeros(2, STATE_ROW)
    state["comm"], state["rank"] = COMM, [2 * node, 2 * node + 1]
    rows = {RowKind.STATE: state, RowKind.ROUND: rounds}
    return Batch(BatchKind.FRAMES, "j", "a", f"n{node}", 0, 1, 1, 10**9, 10**9, rows, flags)


@pytest.mark.parametrize("hint", [None, [0, 1, 2, 3], [3, 2, 1, 0], [0, 1]])
@pytest.mark.parametrize("turn", [1, 3])
def test_rounds_find_their_members_with_and_without_a_hint(hint: list[int] | None, turn: int) -> None:
    table, window = members(), RoundWindow(1 << 20)
    rows = rounds_of([rank for rank in range(RANKS) for _ in range(turn)], list(range(1, turn + 1)) * RANKS)
    window.apply(rows, table, 1, None if hint is None else np.array(hint))
    found = {int(one.number[0]): one for one in window.complete(table)}
    assert sorted(found) == list(range(1, turn + 1))
    assert found[1].t_min[0] == 1001
    assert found[1].t_max[0] == 4001


def test_rounds_of_strangers_are_left_out() -> None:
    table, window = members(), RoundWindow(1 << 20)
    window.apply(rounds_of([0, 9, 1, 2, 3], [1] * 5), table, 1, np.array([0, 1, 2, 3]))
    assert [int(one.t_max[0]) for one in window.complete(table)] == [4001]


def test_a_claimed_cell_forgets_the_round_before_it() -> None:
    table, window = members(), RoundWindow(1 << 20)
    window.apply(rounds_of(range(RANKS), [1] * RANKS), table, 1)
    assert len(list(window.complete(table))) == 1
    window.apply(rounds_of([0, 1], [1 + window.cells] * 2), table, 2)
    assert list(window.complete(table)) == []  # ranks 2 and 3 have not reported it


def test_only_open_rounds_of_a_calm_sender_are_kept_as_evidence() -> None:
    block = JobBlock(DetectionPolicy())
    calm, opened = rounds_of([0, 1], [1, 1]), rounds_of([2, 3], [1, 2])
    opened["state"][1] = OpState.STARTED
    suspect = replace(batch(0, calm, BatchFlag.SUSPECT), node="n9", rows={RowKind.ROUND: calm})
    block.apply([batch(0, calm), batch(1, opened), suspect])
    kept = {name: len(sender.extras.get(RowKind.ROUND, ())) for name, sender in block.senders.items()}
    assert kept == {"n0": 0, "n1": 1, "n9": 2}
