"""Ranks of a communicator from a hostile peer: what is found, and that ranges are never expanded."""

import json
import time
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.agent import ranks as ranks_module
from paceline.agent.ranks import PARTS_MAX, has_rank, read_ranks
from paceline.agent.registry import LocalJob, open_communicator
from paceline.agent.wire import MessageError, parse_message
from paceline.contracts.agent_socket import CommunicatorOpened, Hello

SPANS = st.builds(lambda low, count, step: range(low, low + count * step, step),
                  st.integers(0, 40), st.integers(1, 12), st.integers(1, 9))  # fmt: skip


def opened(ranks: str) -> CommunicatorOpened:
    return CommunicatorOpened("0" * 15 + "1", "world", ranks, 0, "nccl", 0)


def job_of(world_size: int) -> LocalJob:
    hello = Hello("job", "declared", "a1", "declared", 0, world_size, 0, 1, 1)
    return LocalJob(("job", "a1"), 0, hello, 0, 0.0)


def test_a_million_ranks_cost_what_their_bytes_cost() -> None:
    """One read of the socket holds hundreds of such messages, and the loop has nothing else to run on."""
    body = json.dumps(asdict(opened("0-999998"))).encode()
    job = job_of(1_000_000)
    started = time.process_time()
    for _ in range(400):
        message = parse_message(body)
        assert isinstance(message, CommunicatorOpened)
        assert open_communicator(job, 7, message) is None
    assert time.process_time() - started < 1.0  # 70 s where ranges are expanded


def test_ranges_that_take_long_to_compare_are_refused() -> None:
    text = ",".join(f"{i}-{900_000 + i}/{1009 + i}" for i in range(2000))
    started = time.process_time()
    with pytest.raises(ValueError, match="ranks"):
        read_ranks(text, 1_000_000)
    assert time.process_time() - started < 0.5


@pytest.mark.parametrize(
    "text", ["0-999999,999999", "0-999999/2,1-999999/2,500", "0-999999/6,3-999999/9", "0-600000,5-600000/7"]
)
def test_ranks_named_twice_in_long_ranges(text: str) -> None:
    with pytest.raises(ValueError, match=r"distinct|exceeds"):
        read_ranks(text, 1_000_000)


@pytest.mark.parametrize(
    "text", ["0-999999/2,1-999999/2", "0-999998/3,1-999999/6,2-999998/3", "500000-999999,0-499999"]
)
def test_long_ranges_that_share_no_rank(text: str) -> None:
    assert len(read_ranks(text, 1_000_000)) == text.count(",") + 1


@given(SPANS, SPANS)
def test_two_spans_meet_where_their_ranks_do(a: range, b: range) -> None:
    assert ranks_module._meet(a, b) is bool(set(a) & set(b))


@given(st.lists(SPANS, min_size=1, max_size=6))
def test_spans_are_disjoint_where_no_rank_is_named_twice(spans: list[range]) -> None:
    ranks = [rank for span in spans for rank in span]
    assert ranks_module._are_disjoint(spans) is (len(set(ranks)) == len(ranks))


@pytest.mark.parametrize("text", ["", "8", "0-8", "0-3,9", ",".join("0" * (PARTS_MAX + 1))])
def test_ranks_beyond_the_world_and_too_many_parts(text: str) -> None:
    with pytest.raises(ValueError, match="ranks"):
        read_ranks(text, 8)


def test_only_a_member_inside_the_world_opens() -> None:
    assert has_rank([range(0, 9, 2)], 4)
    assert open_communicator(job_of(8), 2, opened("0-6/2")) is None
    assert "of 8" in str(open_communicator(job_of(8), 1, opened("0-6/2")))
    assert "of 8" in str(open_communicator(job_of(8), 2, opened("0-8/2")))


def test_the_message_names_the_ranks() -> None:
    with pytest.raises(MessageError, match=r"communicator_opened\.ranks.*distinct"):
        parse_message(json.dumps(asdict(opened("0-999,5"))).encode())
