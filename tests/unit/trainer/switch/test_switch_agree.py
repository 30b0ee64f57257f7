"""All ranks decide alike from one sum, whoever is ready when."""

import math
import random
import struct

import pytest

from paceline.trainer.switch.agree import NO_BOUNDARY, VOTERS_MAX, Ballot, Decision, agreed_boundary


def float32(value: float) -> float:
    return float(struct.unpack("f", struct.pack("f", value))[0])


def test_switch_only_when_everybody_is_ready_and_cancel_when_anybody_failed() -> None:
    draw = random.Random(0)
    for _ in range(2000):
        ballot = Ballot(draw.randint(1, 64))
        ready = [draw.random() < 0.98 for _ in range(ballot.voters)]
        decision = ballot.decide(sum(ballot.vote(each) for each in ready))
        assert decision is (Decision.SWITCH if all(ready) else Decision.CANCEL)


def test_one_failure_outweighs_all_others_in_float32() -> None:
    ballot = Ballot(VOTERS_MAX)
    total = float32(ballot.vote(False) + (VOTERS_MAX - 1) * ballot.vote(True))
    assert ballot.decide(total) is Decision.CANCEL
    assert ballot.decide(float32(VOTERS_MAX)) is Decision.SWITCH


@pytest.mark.parametrize("total", [math.nan, math.inf, -math.inf, 0.5, 3.0, 5.0])
def test_a_sum_that_votes_cannot_give_never_switches(total: float) -> None:
    assert Ballot(4).decide(total) is Decision.UNREADABLE


@pytest.mark.parametrize("voters", [0, VOTERS_MAX + 1])
def test_voters_are_bounded(voters: int) -> None:
    with pytest.raises(ValueError, match="voters"):
        Ballot(voters)


def test_a_boundary_that_all_can_reach_or_none() -> None:
    draw = random.Random(1)
    for _ in range(500):
        proposals = [draw.randint(-1 if draw.random() < 0.1 else 0, 50) for _ in range(draw.randint(1, 16))]
        agreed = agreed_boundary(proposals)
        if NO_BOUNDARY in proposals:
            assert agreed == NO_BOUNDARY
        else:
            assert agreed in proposals
            assert all(agreed >= each for each in proposals)
    assert agreed_boundary([]) == NO_BOUNDARY
