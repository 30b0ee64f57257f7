"""As which ranks a standby warms up, and what happens where it cannot be one of them."""

from typing import Any, cast

import pytest

from paceline.trainer.groups import OtherGroups, RebuildFailed
from paceline.trainer.repair.placing import Placing
from paceline.trainer.repair.protecting import Protection
from paceline.trainer.repair.wiring import Wiring


class Wired:
    """Among groups in which only ranks 2 and 3 are members of the same kinds."""

    rank, size = 3, 4

    def __init__(self) -> None:
        self.groups = self
        self.given: list[int] = []

    def rehearse(self, backend: object, rank: int) -> None:
        if rank < 2:
            raise OtherGroups(f"rank {rank} is a member of 3 groups")

    def give_rank(self, rank: int) -> None:
        self.given.append(rank)

    def track(self, objects: object) -> None: ...

    def hold(self, objects: object) -> None: ...


def nothing(rank: int) -> dict[str, Any]:
    return {}


@pytest.fixture
def placing() -> Placing:
    wired = Wired()
    return Placing(cast(Wiring, wired), cast(Protection, wired), {})


def test_it_warms_up_as_those_ranks_that_it_can_be(placing: Placing) -> None:
    placing.offer(nothing, [0, 2, 3])
    assert list(placing.rehearsals()) == [2, 3]
    assert placing.fits


def test_where_it_can_be_none_of_those_asked_for_it_does_not_fit(placing: Placing) -> None:
    placing.offer(nothing, [0, 1])
    assert list(placing.rehearsals()) == [3]
    assert not placing.fits


@pytest.mark.parametrize("offered", [True, False])
def test_where_none_is_asked_for_it_fits_as_it_is(placing: Placing, offered: bool) -> None:
    if offered:
        placing.offer(nothing, [])
    assert list(placing.rehearsals()) == [3]
    assert placing.fits


def test_a_place_that_it_cannot_take_is_a_rebuild_that_failed(placing: Placing) -> None:
    placing.offer(nothing, [2])
    with pytest.raises(RebuildFailed, match="3 groups"):
        placing.become(0)


def test_what_the_script_raises_is_the_scripts(placing: Placing) -> None:
    def place(rank: int) -> dict[str, Any]:
        raise ValueError("no such stage")

    placing.offer(place, [2])
    with pytest.raises(ValueError, match="no such stage"):
        list(placing.rehearsals())
