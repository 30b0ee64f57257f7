"""The stream of the agent socket cut into messages, however it arrives."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.contracts.agent_socket import LENGTH, MESSAGE_BYTES_MAX, Framer, FramingError


def framed(bodies: list[bytes]) -> bytes:
    return b"".join(LENGTH.pack(len(body)) + body for body in bodies)


@given(st.lists(st.binary(min_size=2, max_size=40), max_size=20), st.lists(st.integers(0, 900), max_size=10))
def test_bodies_come_out_whole_wherever_the_stream_is_cut(bodies: list[bytes], cuts: list[int]) -> None:
    stream = framed(bodies)
    edges = sorted({0, len(stream), *(min(cut, len(stream)) for cut in cuts)})
    framer = Framer()
    assert [body for a, b in pairwise(edges) for body in framer.feed(stream[a:b])] == bodies


@pytest.mark.parametrize("length", [0, 1, MESSAGE_BYTES_MAX + 1])
def test_a_length_that_makes_no_sense_behind_a_good_message(length: int) -> None:
    with pytest.raises(FramingError, match=f"message length {length}, expected 2 to"):
        Framer().feed(framed([b"{}"]) + LENGTH.pack(length))
