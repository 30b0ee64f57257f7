"""The rank map: registry and open incidents as one byte a rank."""

from paceline.contracts.registry import JobState
from paceline.contracts.verdicts import (
    Action,
    ActionKind,
    Coverage,
    Owner,
    Role,
    Root,
    RootKind,
    SubReason,
    Verdict,
    VerdictClass,
)
from paceline.store.rank_states import OpenIncident, RankState, build_plane, rank_roles, rank_state


def verdict(
    verdict_class: VerdictClass, roots: tuple[Root, ...], victims: tuple[int, ...], count: int
) -> Verdict:
    return Verdict(
        verdict_class, SubReason.NONE, roots, victims, count, None, Owner.HOST, Action(ActionKind.NONE), 1.0,
        Coverage(8, 8, 1, 1), (), "s",
    )  # fmt: skip


ROOT_5 = Root(RootKind.RANK, rank=5)


def test_a_root_outweighs_a_victim_of_another_incident() -> None:
    first = OpenIncident("inc_1", verdict(VerdictClass.H1, (ROOT_5,), (0, 1), 2))
    second = OpenIncident("inc_2", verdict(VerdictClass.S1, (Root(RootKind.RANK, rank=1),), (5,), 1))
    roles = rank_roles([first, second])
    assert {rank: role.state for rank, role in roles.items()} == {
        0: RankState.WAITING,
        1: RankState.SLOW,
        5: RankState.ROOT,
    }
    assert (roles[5].incident_id, roles[5].role) == ("inc_1", Role.INITIATING)


def test_unlisted_victims_are_the_members_of_the_root_communicator() -> None:
    incident = OpenIncident("inc_1", verdict(VerdictClass.H1, (ROOT_5,), (0,), 3), members=(0, 1, 2, 5))
    states = {rank: role.state for rank, role in rank_roles([incident]).items()}
    assert states == {0: 2, 1: 2, 2: 2, 5: RankState.ROOT}


def test_a_rotating_cause_names_no_rank() -> None:
    incident = OpenIncident("inc_1", verdict(VerdictClass.S1, (Root(RootKind.ROTATING, rank=3),), (), 0))
    assert rank_roles([incident]) == {}


def test_a_plane_has_one_byte_for_each_rank() -> None:
    roles = rank_roles([OpenIncident("inc_1", verdict(VerdictClass.DEAD_PROCESS, (ROOT_5,), (9,), 1))])
    plane = build_plane(7, JobState.RUNNING, {0: False, 1: True, 99: False}, roles)
    assert list(plane) == [1, RankState.DEAD, 0, 0, 0, RankState.DEAD, 0]


def test_after_the_end_everything_has_ended() -> None:
    for state in (JobState.FINISHED, JobState.ENDED, JobState.CANCELLED, JobState.FAILED):
        assert rank_state(state, False, None) is RankState.ENDED
    assert rank_state(JobState.CANCELLED, True, None) is RankState.ENDED
