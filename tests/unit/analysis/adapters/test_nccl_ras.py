"""`ncclras`, text of both grammars, monitor mode and JSON, whole and broken."""

import json
from pathlib import Path

import pytest

from paceline.analysis.facts import Counted, Membership, NetworkFailure, ProcessFault
from tests.unit.analysis.adapters.reading_lines import facts_of, of_type

HEAD = """NCCL version {version} compiled with CUDA 12.6
CUDA runtime version 12060, driver version 12060

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         2         8        16        16   RUNNING  MISMATCH
    1         2         1         4         8        16   RUNNING,INIT  INCOMPLETE,MISMATCH

"""


def test_the_named_ranks_carry_the_count_of_the_line_above(tmp_path: Path) -> None:
    text = HEAD.format(version="2.26.2") + (
        "#0-0 (00ab54) MISMATCH\n"
        "  Communicator ranks have different ReduceScatter operation counts\n"
        "  14 ranks have launched up to operation 90\n"
        "  2 ranks have launched up to operation 91\n"
        "  Rank 3 -- GPU 3 managed by process 77 on node 10.1.0.4\n"
        "  Rank 9 -- GPU 1 (NVML 5) managed by process 78 on node 10.1.0.5\n"
    )
    counted = of_type(facts_of(tmp_path, text), Counted)
    assert [(one.speaker.group_rank, one.launched, one.ranks_alike) for one in counted] == [
        (None, 90, 14),
        (3, 91, 1),
        (9, 91, 1),
    ]
    assert {(one.group.name, one.group.size, one.function) for one in counted} == {
        ("0xab54", 16, "reduce_scatter")
    }
    assert counted[1].speaker.local_rank == 3
    assert counted[2].speaker.local_rank is None  # two numberings: neither is the local rank


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (
            "  Rank 7 has launched up to operation 60 -- GPU 3 managed by process 5 on node h",
            (7, 60, "all_gather"),
        ),
        (
            "  Rank 7 has not launched any operations -- GPU 3 managed by process 5 on node h",
            (7, 0, "all_gather"),
        ),
        (
            "  Rank 7 has launched up to operation 61 -- [process information not found]",
            (7, 61, "all_gather"),
        ),
        ("  6 ranks have not launched any operations", (None, 0, "all_gather")),
    ],
)
def test_both_grammars_of_counts(tmp_path: Path, lines: str, expected: tuple[int | None, int, str]) -> None:
    head = HEAD.format(version="2.30.7") + "#1-1 (1) MISMATCH\n"
    text = head + "  Communicator ranks have different AllGather operation counts\n" + lines + "\n"
    (counted,) = of_type(facts_of(tmp_path, text), Counted)
    assert (counted.speaker.group_rank, counted.launched, counted.function) == expected
    assert counted.group.size == 8


def test_old_text_counts_all_functions_together(tmp_path: Path) -> None:
    text = HEAD.format(version="2.24.3") + (
        "#0-0 (aa) MISMATCH\n  Communicator ranks have different collective operation counts\n"
        "  Rank 2 has launched up to operation 5 -- GPU 2 managed by process 1 on node n\n"
    )
    (counted,) = of_type(facts_of(tmp_path, text), Counted)
    assert (counted.function, counted.launched) == ("", 5)


@pytest.mark.parametrize(
    ("text", "ranks", "missing"),
    [
        (
            "#0-0 (aa) INCOMPLETE\n  Missing communicator data from 1 rank\n  The missing rank: 21\n",
            [21],
            "no_data",
        ),
        (
            "#0-0 (aa) INCOMPLETE\n  Missing communicator data from 2 ranks\n  The missing ranks: 2,4\n",
            [2, 4],
            "no_data",
        ),
        (
            "#0-0 (aa) INCOMPLETE\n  Missing communicator data from 1 rank\n"
            "  Rank 6 -- GPU 6 managed by process 9 on node n\n",
            [6],
            "no_data",
        ),
        ("DEAD\n  1 job process is considered dead\n  Process 9 on node n managing GPU 6\n", [None], "dead"),
        (
            "INCOMPLETE\n  Missing communicator data from 1 job process\n  Process 9 on node n "
            "managing GPU 6",
            [None],
            "unresponsive",
        ),
        ("[2026-01-10 13:07:07] PEER_DEAD: Process 9 on node n managing GPU 6 \n", [None], "dead"),
        (
            "[2026-01-10 13:07:07] PEER_UNRESPONSIVE: Process 9 on node n managing GPU 6 no answer\n",
            [None],
            "unresponsive",
        ),
    ],
)
def test_missing_data_is_no_count(tmp_path: Path, text: str, ranks: list[int | None], missing: str) -> None:
    counted = of_type(facts_of(tmp_path, HEAD.format(version="2.28.7") + text), Counted)
    assert [one.speaker.group_rank for one in counted] == ranks
    assert all(one.missing == missing and one.launched is None for one in counted)


def test_missing_ranks_that_are_not_named_are_counted(tmp_path: Path) -> None:
    text = (
        HEAD.format(version="2.28.7") + "#0-0 (aa) INCOMPLETE\n  Missing communicator data from 12 ranks\n\n"
    )
    (counted,) = of_type(facts_of(tmp_path, text), Counted)
    assert (counted.missing, counted.ranks_alike, counted.speaker.group_rank) == ("no_data", 12, None)


def test_status_and_errors_are_read(tmp_path: Path) -> None:
    text = HEAD.format(version="2.26.2") + (
        "#1-0 (bb) MISMATCH\n  Communicator ranks have different status\n  7 ranks have status RUNNING\n"
        "  Rank 3 has status INIT -- GPU 3 managed by process 7 on node n\n\n"
        "#1-1 (cc) ERROR\n  Asynchronous errors on 3 ranks\n  2 ranks reported Remote process error\n"
        "  Rank 0 -- GPU 0 managed by process 1 on node n\n  Rank 1 -- GPU 1 managed by process 2 on node n\n"
        "  Rank 5 reported Unhandled CUDA error -- GPU 5 managed by process 6 on node n\n"
    )
    facts = facts_of(tmp_path, text)
    (member,) = of_type(facts, Membership)
    assert (member.rank_in_group, member.complete, member.stage) == (3, False, "init")
    assert [fact.speaker.group_rank for fact in of_type(facts, NetworkFailure)] == [0, 1]
    (fault,) = of_type(facts, ProcessFault)
    assert (fault.speaker.group_rank, fault.text) == (5, "Unhandled CUDA error")


def test_answers_in_one_file_are_different_snapshots(tmp_path: Path) -> None:
    body = (
        "#0-0 (aa) MISMATCH\n  Communicator ranks have different AllReduce operation counts\n"
        "  Rank 2 has launched up to operation {count} -- GPU 2 managed by process 1 on node n\n"
    )
    text = "".join(HEAD.format(version="2.30.7") + body.format(count=count) for count in (5, 6))
    first, second = of_type(facts_of(tmp_path, text), Counted)
    assert first.snapshot < second.snapshot


def _json_answer() -> str:
    status = {
        "init_state": 0,
        "async_error": 0,
        "finalize_called": False,
        "destroy_flag": False,
        "abort_flag": False,
    }
    ranks = [
        {"rank": rank, "host": "h", "pid": 10 + rank, "cuda_dev": rank, "nvml_dev": rank, "status": status,
         "collective_counts": {"AllReduce": count, "Broadcast": 0}}
        for rank, count in enumerate((4, 4, 3))
    ]  # fmt: skip
    lost = [{"rank": 3, "host": "h", "pid": 13, "cuda_dev": 3, "nvml_dev": 3,
             "status": {"unresponsive": True, "considered_dead": False}}]  # fmt: skip
    communicator = {"hash": "0x0ab", "size": 4, "ranks": ranks, "missing_ranks": lost}
    return json.dumps({"nccl_version": "2.28.9", "communicators": [communicator]}, indent=2)


def _without_commas(text: str) -> str:
    """As 2.28 writes it: none before `missing_ranks`, none after the last field of a missing rank."""
    ahead, _, behind = text.partition('],\n      "missing_ranks"')
    return ahead + ']\n      "missing_ranks"' + behind.replace('"nvml_dev": 3,', '"nvml_dev": 3')


@pytest.mark.parametrize("broken", ["whole", "commas", "banner"])
def test_json_is_read_also_where_commas_are_missing(tmp_path: Path, broken: str) -> None:
    text = _json_answer()
    if broken == "commas":
        text = _without_commas(text)
        with pytest.raises(json.JSONDecodeError):
            json.loads(text)
    if broken == "banner":
        text = "SERVER PROTOCOL 2\nOK\n" + text
    facts = facts_of(tmp_path, text, "ras.json")
    counted = of_type(facts, Counted)
    assert [(one.speaker.group_rank, one.function, one.launched) for one in counted[:3]] == [
        (0, "all_reduce", 4),
        (1, "all_reduce", 4),
        (2, "all_reduce", 3),
    ]
    assert (counted[3].speaker.pid, counted[3].missing, counted[3].launched) == (13, "unresponsive", None)
    assert all(one.group.name == "0xab" for one in counted)
    assert [member.complete for member in of_type(facts, Membership)] == [True] * 3


def test_json_that_was_cut_gives_what_is_whole(tmp_path: Path) -> None:
    text = _json_answer()
    counted = of_type(facts_of(tmp_path, text[: text.index('"missing_ranks"')], "ras.json"), Counted)
    assert [one.launched for one in counted] == [4, 4, 3]


def test_json_events_of_monitor_mode(tmp_path: Path) -> None:
    peer = {"host": "h", "pid": 9, "cuda_devs": [2], "nvml_devs": [2]}
    event = {"timestamp": "2026-01-10 13:07:07", "group": "LIFECYCLE", "peer": peer, "details": ""}
    text = "\n".join(json.dumps({**event, "event": name}, indent=1) for name in ("PEER_NEW", "PEER_DEAD"))
    (counted,) = of_type(facts_of(tmp_path, text, "events.json"), Counted)
    assert (counted.speaker.host, counted.speaker.pid, counted.missing) == ("h", 9, "dead")
