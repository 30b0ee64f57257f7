"""Files of measured rows through the whole diagnosis: who is named, and what is to be done."""

import json
from pathlib import Path

import numpy as np
import pytest

from paceline.analysis.diagnosis import Diagnosis, diagnose
from paceline.contracts.verdicts import ActionKind, RootKind, SubReason, VerdictClass


def _diagnose(folder: Path, rows: list[dict[str, object]]) -> Diagnosis:
    (folder / "any.dat").write_text("\n".join(json.dumps(row) for row in rows))
    return diagnose([str(folder)])[-1]


def _steps(
    late: dict[int, float], grown: float = 1.0, ranks: int = 8, at: str = "global_rank"
) -> list[dict[str, object]]:
    """Steps of a job with other field names than the examples have; slow from step 20 on."""
    rng = np.random.default_rng(5)
    rows: list[dict[str, object]] = []
    for step in range(40):
        works = 0.4 * (1 + 0.01 * rng.standard_normal(ranks))
        for rank, factor in late.items():
            works[rank] *= factor if step >= 20 else 1.0
        transfer = 0.05 * (grown if step >= 20 else 1.0)
        for rank, work in enumerate(works.tolist()):
            took = float(works.max()) - work + transfer
            rows.append({at: rank, "iteration": step, "fwdBwdTimeMs": work * 1e3, "comm_time_us": took * 1e6})
    return rows


def test_a_healthy_noisy_job_has_no_incident(tmp_path: Path) -> None:
    assert _diagnose(tmp_path, _steps({})).verdict_class is VerdictClass.NONE


def test_a_late_rank(tmp_path: Path) -> None:
    answer = _diagnose(tmp_path, _steps({6: 1.1}))
    assert answer.verdict_class is VerdictClass.S1
    assert [(root.kind, root.rank) for root in answer.roots] == [(RootKind.RANK, 6)]
    assert 6 not in answer.victims
    assert answer.action.kind is ActionKind.COLLECT
    assert "20" in answer.phase


def test_late_and_slow_transfers(tmp_path: Path) -> None:
    answer = _diagnose(tmp_path, _steps({2: 1.3, 3: 1.3}, grown=3.0))
    assert answer.verdict_class is VerdictClass.S3
    assert {root.rank for root in answer.roots} == {2, 3}


def test_slow_transfers_name_no_rank(tmp_path: Path) -> None:
    answer = _diagnose(tmp_path, _steps({}, grown=3.0))
    assert (answer.verdict_class, answer.sub_reason) == (VerdictClass.S2, SubReason.SHARED_PATH)
    assert [(root.kind, root.rank) for root in answer.roots] == [(RootKind.NONE, None)]
    assert answer.action.kind is ActionKind.NETWORK_TICKET


def test_rows_of_nodes_name_a_node(tmp_path: Path) -> None:
    rows = [{**row, "hostname": f"node-{row['global_rank']}"} for row in _steps({1: 1.2}, ranks=4)]
    for row in rows:
        del row["global_rank"]
    answer = _diagnose(tmp_path, rows)
    assert [(root.kind, root.node) for root in answer.roots] == [(RootKind.NODE, "node-1")]


@pytest.mark.parametrize("turns", [True, False])
def test_another_rank_each_time_is_nobody_to_replace(tmp_path: Path, turns: bool) -> None:
    rows = _steps({})
    for number, step in enumerate(range(3, 40, 6)):
        late = number % 8 if turns else 5
        for row in rows:
            if row["iteration"] == step:
                key = "fwdBwdTimeMs" if row["global_rank"] == late else "comm_time_us"
                row[key] = float(str(row[key])) + (150.0 if key == "fwdBwdTimeMs" else 150e3)
    answer = _diagnose(tmp_path, rows)
    assert answer.verdict_class is VerdictClass.S1
    assert [root.kind for root in answer.roots] == [RootKind.ROTATING if turns else RootKind.RANK]
    assert (answer.sub_reason is SubReason.ROTATING_STRAGGLER) is turns
