"""Who is seen: every caller of torch.distributed exactly once, on real gloo with two ranks."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.needs_torch
EXPECTED = {
    "all_reduce": ["ALL_REDUCE"],
    "imported before": ["ALL_REDUCE"],
    "async": ["ALL_REDUCE"],
    "method": ["ALL_REDUCE"],
    "older method": ["ALL_GATHER"],
    "broadcast": ["BROADCAST"],
    "reduce": ["REDUCE"],
    "all_gather": ["ALL_GATHER"],
    "all_gather_into_tensor": ["ALL_GATHER"],
    "reduce_scatter": ["REDUCE_SCATTER"],
    "reduce_scatter_tensor": ["REDUCE_SCATTER"],
    "all_to_all_single": ["ALL_TO_ALL"],
    "all_to_all": ["ALL_TO_ALL"],
    "gather": ["GATHER"],
    "scatter": ["SCATTER"],
    "barrier": ["BARRIER"],
    "monitored_barrier": ["BARRIER"],
    "all_gather_object": ["ALL_GATHER", "ALL_GATHER"],
    "broadcast_object_list": ["BROADCAST", "BROADCAST"],
    "send and recv": ["SEND", "RECV"],
    "recv from any": ["RECV_ANY", "SEND"],
    "batch_isend_irecv": ["SEND", "RECV"],
    "coalescing manager": ["ALL_REDUCE"],
    "functional all_reduce": ["ALL_REDUCE"],
    "functional all_gather": ["ALL_GATHER"],
    "functional reduce_scatter": ["REDUCE_SCATTER"],
    "new_group": ["ALL_REDUCE"],
    "new_group again": ["ALL_REDUCE"],
    "DDP step": ["ALL_REDUCE"],
    "FSDP2 step": ["ALL_GATHER", "REDUCE_SCATTER"],
    "DTensor redistribute": ["ALL_GATHER"],
}
ONE_SIDED = ("send and recv", "recv from any")
STEPS = 50


@pytest.fixture(scope="module")
def results(launch: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    result = tmp_path_factory.mktemp("callers") / "rank"
    socket_path = str(result) + "-no-agent.sock"
    ranks = launch("callers.py", environment={"RESULT": str(result), "PACELINE_AGENT_SOCKET": socket_path})
    assert [rank.status for rank in ranks] == [0, 0], ranks[0].errors[-2000:]
    return [json.loads(Path(f"{result}{rank}").read_text()) for rank in range(2)]


@pytest.mark.parametrize("caller", EXPECTED)
@pytest.mark.parametrize("rank", [0, 1])
def test_every_caller_is_seen_exactly_once(results: list[dict[str, Any]], caller: str, rank: int) -> None:
    expected = EXPECTED[caller]
    if caller in ONE_SIDED:
        expected = [expected[rank]]
    assert results[rank]["callers"][caller] == expected


def test_no_caller_is_left_out(results: list[dict[str, Any]]) -> None:
    assert set(results[0]["callers"]) == set(EXPECTED)


def test_training_gives_the_same_bits(results: list[dict[str, Any]]) -> None:
    for rank in results:
        assert len(set(rank["plain losses"])) > STEPS // 2, (
            "the model learns nothing, so equality says nothing"
        )
        assert rank["observed losses"] == rank["plain losses"]


def test_everything_that_was_entered_has_completed(results: list[dict[str, Any]]) -> None:
    for rank in results:
        for frame in rank["frames"]:
            assert frame["open_ops"] == 0
            assert frame["completed"] == frame["started"]
        assert max(frame["started"] for frame in rank["frames"]) > STEPS
        assert rank["errors"] == [0, 0]


def test_ranks_count_alike(results: list[dict[str, Any]]) -> None:
    """Members of one communicator have one number and the same rounds; that is what H1 stands on."""
    first, second = ({frame["comm"]: frame for frame in rank["frames"]} for rank in results)
    shared = [number for number in first if number in second]
    assert len(shared) >= 2
    for number in shared:
        assert first[number]["started"] == second[number]["started"]
        assert first[number]["instance"] == second[number]["instance"]


def test_point_to_point_still_gives_the_source(results: list[dict[str, Any]]) -> None:
    assert results[0]["any source"] == [1, 7.0]


def test_all_ranks_agree_on_the_attempt(results: list[dict[str, Any]]) -> None:
    attempts = {tuple(rank["attempt"]) for rank in results}
    assert len(attempts) == 1
    assert attempts.pop()[1] == "store"


def test_steps_are_counted_without_help(results: list[dict[str, Any]]) -> None:
    assert [rank["steps"] for rank in results] == [STEPS, STEPS]
