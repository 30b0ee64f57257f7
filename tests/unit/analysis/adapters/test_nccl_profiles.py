"""NCCL's Inspector and CoMMA: rows for what was slow, counts for what hangs."""

import json
from pathlib import Path
from typing import Any

import pytest

from paceline.analysis.facts import Counted, Membership, SampleRow
from tests.unit.analysis.adapters.reading_lines import facts_of, of_type


def _inspector(rank: int, sequence: int, function: str = "AllReduce") -> dict[str, Any]:
    return {
        "header": {"id": "0x7f8c496ae9f661", "rank": rank, "n_ranks": 8, "nnodes": 1},
        "metadata": {"dump_timestamp_us": 1748030377748202, "hostname": "node-a", "pid": 40 + rank},
        "coll_perf": {
            "coll": function,
            "coll_sn": sequence,
            "coll_msg_size_bytes": 1024,
            "coll_exec_time_us": 61974,
            "coll_algobw_gbs": 277.2,
            "coll_busbw_gbs": 485.1,
        },
    }


def _comma(rank: int, sequence: int, **more: Any) -> dict[str, Any]:
    return {
        "args": {"size": 2048},
        "cat": "COLL",
        "child_dur": 1456,
        "comm_hash": "0x058aecebabb9e37af",
        "dur": 11039,
        "name": "all_reduce",
        "ph": "X",
        "rank": rank,
        "seq_num": sequence,
        "ts": 9615369,
        **more,
    }


@pytest.mark.parametrize("indent", [None, 2])
def test_inspector_gives_rows_and_how_far_each_rank_came(tmp_path: Path, indent: int | None) -> None:
    operations = [_inspector(0, 6), _inspector(0, 7), _inspector(1, 6), _inspector(1, 3, "AllGather")]
    text = "\n".join(json.dumps(operation, indent=indent) for operation in operations)
    facts = facts_of(tmp_path, text, "inspector.log")
    counted = of_type(facts, Counted)
    assert [(one.speaker.group_rank, one.function, one.launched, one.completed) for one in counted] == [
        (0, "all_reduce", 8, 8),
        (1, "all_reduce", 7, 7),
        (1, "all_gather", 4, 4),
    ]
    assert {(one.group.name, one.group.size, one.speaker.host) for one in counted} == {
        ("0x7f8c496ae9f661", 8, "node-a")
    }
    assert len(of_type(facts, Membership)) == 2
    rows = of_type(facts, SampleRow)
    assert len(rows) == 4
    assert rows[0].numbers["collective_s"] == pytest.approx(0.061974)
    assert rows[0].words["op"] == "all_reduce"


def test_inspector_messages_have_a_peer_and_no_count(tmp_path: Path) -> None:
    operation = _inspector(0, 6)
    operation["p2p_perf"] = {"p2p": "Send", "p2p_sn": 4, "p2p_peer": 3, "p2p_exec_time_us": 10}
    del operation["coll_perf"]
    facts = facts_of(tmp_path, json.dumps(operation), "inspector.log")
    assert [row.numbers["peer"] for row in of_type(facts, SampleRow)] == [3]
    assert not of_type(facts, Counted)


def test_comma_tells_what_never_ended(tmp_path: Path) -> None:
    operations = [_comma(0, 56), _comma(0, 57, reclaimed=True), _comma(1, 56)]
    text = "\n".join(json.dumps(operation) for operation in operations)
    facts = facts_of(tmp_path, text, "latency-17.txt")
    counted = of_type(facts, Counted)
    assert [(one.speaker.group_rank, one.launched, one.completed) for one in counted] == [
        (0, 58, 57),
        (1, 57, 57),
    ]
    rows = of_type(facts, SampleRow)
    assert "collective_s" not in rows[1].numbers
    assert rows[0].numbers["collective_s"] == pytest.approx(0.001456)


def test_a_last_line_that_was_cut_is_passed_over(tmp_path: Path) -> None:
    text = json.dumps(_inspector(0, 6)) + "\n" + json.dumps(_inspector(0, 7))[:90]
    counted = of_type(facts_of(tmp_path, text, "inspector.log"), Counted)
    assert [one.completed for one in counted] == [7]
