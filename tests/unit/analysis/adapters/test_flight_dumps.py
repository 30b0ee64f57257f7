"""Flight Recorder dumps of all versions and backends become one kind of table."""

import json
from typing import Any

import numpy as np
import pytest

from paceline.analysis.adapters.flight_dump import rank_in_name, read_dump
from paceline.analysis.adapters.flight_json import FlightJson
from paceline.analysis.adapters.model import Document, UnusableInput
from paceline.analysis.facts import FlightDump
from tests.unit.analysis.flight_examples import dump, entry, message, pending


def _read_json(name: str, text: str) -> FlightDump:
    document = Document(name, text.encode())
    assert FlightJson().recognise(document)
    (found,) = FlightJson().read(document)
    assert isinstance(found, FlightDump)
    return found


def _as_json(record: dict[str, Any]) -> dict[str, Any]:
    """As `dump_nccl_trace_json` writes it: lists, 0 for missing times, words in the status."""
    plain: dict[str, Any] = json.loads(json.dumps(record))
    for each in plain["entries"]:
        each["time_discovered_started_ns"] = each["time_discovered_completed_ns"] = 0
    return plain


def test_pickle_and_json_give_the_same_table() -> None:
    record = dump([entry(0, 1), pending(1, 2)])
    status = {
        "0": {"last_enqueued_collective": 2, "last_started_collective": -1, "last_completed_collective": 1}
    }
    record["pg_status"] = status
    words = {"0": {key: str(value) for key, value in status["0"].items()}}
    one = read_dump("rank_3", record)
    two = _read_json("rank_3.json", json.dumps(_as_json(record) | {"pg_status": words}, sort_keys=True))
    assert np.array_equal(one.entries, two.entries)
    assert (one.speaker.rank, one.groups, one.works, one.status) == (
        3,
        two.groups,
        two.works,
        {"0": (2, -1, 1)},
    )
    assert one.status == two.status


def test_a_cut_json_gives_its_whole_entries() -> None:
    text = json.dumps(_as_json(dump([entry(at, at + 1) for at in range(9)])), sort_keys=True)
    found = _read_json("rank_1.json", text[: text.index('"record_id": 7')])
    assert len(found.entries) == 7
    assert found.groups[0].ranks == ()  # the table stood behind the cut
    assert "cut" in found.notes[0]


def test_json_without_entries_and_other_json() -> None:
    record = dump([])
    del record["entries"]
    assert len(_read_json("rank_0", json.dumps(record)).entries) == 0
    assert not FlightJson().recognise(Document("x.json", b'{"step": 1, "loss": 2}'))
    with pytest.raises(UnusableInput, match="of which nothing can be read"):
        list(FlightJson().read(Document("x.json", b'{"version": "2.4", "pg_config": 3, "entries": [')))


def test_gloo_completion_is_retirement_and_its_groups_come_from_the_entries() -> None:
    names = {"process_group": ("1", "undefined"), "pg_id": 1}
    entries = [
        entry(0, 1, "gloo:all_reduce", state="scheduled"),
        entry(1, 1, "gloo:broadcast", state="scheduled") | names,
        pending(2, 2, "gloo:all_reduce"),
    ]
    found = read_dump("rank_2", dump(entries, pg_config={"": {"name": "", "desc": "", "ranks": "[]"}}))
    assert found.entries["state"].tolist() == [2, 2, 0]
    assert [(group.name, group.ranks) for group in found.groups] == [("0", ()), ("1", ())]
    assert found.backend == "gloo"


def test_a_failed_operation_of_gloo_is_retired_and_open() -> None:
    counts = {"last_enqueued_collective": 2, "last_started_collective": -1, "last_completed_collective": 1}
    entries = [entry(at, at + 1, "gloo:all_reduce", state="scheduled") for at in range(2)]
    found = read_dump("rank_0", dump(entries, pg_status={"0": counts}))
    assert found.entries["state"].tolist() == [2, 0]


def test_a_timed_out_operation_of_nccl_is_retired_and_open() -> None:
    found = read_dump("rank_0", dump([entry(0, 1), entry(1, 2, state="started")]))
    assert found.entries["state"].tolist() == [2, 1]


def test_coalesced_messages_end_with_their_group() -> None:
    parts = [
        message(0, 1, "send 0->1", True),
        message(1, 1, "recv 0<-1", True),
        entry(2, 0, "nccl:coalesced", is_p2p=True, p2p_seq_id=1, input_sizes=[], output_sizes=[]),
        message(3, 2, "send 0->1", True),
    ]
    assert read_dump("rank_0", dump(parts)).entries["state"].tolist() == [2, 2, 2, 0]


def test_old_versions_and_odd_values() -> None:
    old = [
        {"id": 0, "pg_id": 0, "seq_id": 5, "profiling_name": "nccl:all_reduce", "state": "completed",
         "input_sizes": [[4]], "output_sizes": [[4]], "time_created_ns": 7},
        {"id": 1, "pg_id": 0, "seq_id": "6", "profiling_name": None, "state": 3, "input_sizes": {"a": 1},
         "time_created_ns": -1.5},
        "rubbish",
    ]  # fmt: skip
    found = read_dump("rank_0", {"version": "2.1", "entries": old})
    assert found.entries["sequence"].tolist() == [5, 6]
    assert found.works[0].count_in == 4
    assert "1 entries" in found.notes[0]


def test_a_message_with_unreadable_sizes_has_no_count() -> None:
    found = read_dump("rank_0", dump([entry(0, 1, input_sizes=[[-1], ["x"]], output_sizes=7)]))
    assert (found.works[0].count_in, found.works[0].count_out) == (None, None)


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("nccl_trace_rank_3", 3),
        ("fr/comm_lib_trace_rank_12.json", 12),
        ("_dump_9", 9),
        ("host-17_rank_4.pkl", 4),
        ("nccl_trace_rank_gpu-node-2_5", 5),
        ("rank0007.json.gz", 7),
        ("node3/7.pickle", 7),
        ("trace", None),
    ],
)
def test_rank_from_the_name(name: str, rank: int | None) -> None:
    assert rank_in_name(name) == rank


def test_rank_from_content_comes_first() -> None:
    config = {"5": {"name": "5", "desc": "pp", "ranks": "[3, 7, 11]"}}
    names = {"process_group": ("5", "pp")}
    found = read_dump("rank_0", dump([message(0, 1, "recv 1<-0") | names], pg_config=config))
    assert found.speaker.rank == 7
    alone = {
        "1": {"name": "1", "desc": "a", "ranks": "[2, 6]"},
        "2": {"name": "2", "desc": "b", "ranks": "[6, 7]"},
    }
    assert read_dump("host0", dump([], pg_config=alone)).speaker.rank == 6


def test_what_the_ring_no_longer_has_is_said() -> None:
    assert read_dump("rank_0", dump([entry(40, 41), entry(41, 42)])).overwritten == 40
    active = read_dump("rank_0", dump([pending(40, 41), pending(50, 45)]))
    assert (active.only_active, active.overwritten, active.gaps) == (True, 0, 9)


def test_status_finds_its_group_by_the_order_of_creation() -> None:
    config = {str(name): {"name": str(name), "desc": "", "ranks": "[0, 1]"} for name in (112, 9, 33)}
    status = {
        str(key): {
            "last_enqueued_collective": key,
            "last_started_collective": -1,
            "last_completed_collective": 0,
        }
        for key in (12, 4, 5)
    }
    found = read_dump("rank_0", dump([], pg_config=config, pg_status=status))
    assert {name: counts[0] for name, counts in found.status.items()} == {"9": 4, "33": 5, "112": 12}


def test_a_number_with_two_signs_is_no_number() -> None:
    status = {"--0": {"last_enqueued_collective": "--7"}}
    record = dump([entry(0, 1)], pg_status=status)
    assert isinstance(_read_json("trace_0", json.dumps(_as_json(record))), FlightDump)
