"""State of each rank as far as the registry and the open incidents tell it. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum

from paceline.contracts.registry import JobState
from paceline.contracts.verdicts import Role, RootKind, Verdict, VerdictClass


class RankState(IntEnum):
    """Also the byte of the rank map: append, never renumber."""

    UNKNOWN = 0  # no node has registered it
    RUNNING = 1
    WAITING = 2  # waits for a first cause
    ROOT = 3  # named as a first cause
    SLOW = 4  # named as a first cause of slowness
    DEAD = 5  # its process or node is gone while the job runs
    ENDED = 6  # the attempt has ended


@dataclass(frozen=True)
class RankRole:
    """What an open incident says about one rank."""

    state: RankState
    role: Role
    incident_id: str


@dataclass(frozen=True)
class OpenIncident:
    """The part of an open incident that the map needs; `members` of the root communicator."""

    incident_id: str
    verdict: Verdict
    members: Sequence[int] = ()


def rank_roles(incidents: Iterable[OpenIncident]) -> dict[int, RankRole]:
    """Role of each rank named by an open incident; a root outweighs a victim.

    A verdict lists at most VICTIMS_MAX victims. Where there are more, the members of the root
    communicator count as waiting, which is what the verdict says about them.
    """
    roles: dict[int, RankRole] = {}
    roots: dict[int, RankRole] = {}
    for incident in incidents:
        verdict = incident.verdict
        waiting = set(verdict.victims)
        if verdict.victims_count > len(waiting):
            waiting.update(incident.members)
        for rank in waiting:
            roles.setdefault(rank, RankRole(RankState.WAITING, Role.CASCADE, incident.incident_id))
        for root in verdict.roots:
            for rank in root_ranks(root.rank, root.peer_rank, root.ranks):
                if root.kind is not RootKind.ROTATING:
                    roots[rank] = RankRole(
                        _root_state(verdict.verdict_class), root.role, incident.incident_id
                    )
    return roles | roots


def root_ranks(rank: int | None, peer_rank: int | None, ranks: Sequence[int]) -> list[int]:
    """The ranks that a root names."""
    named = [number for number in (rank, peer_rank) if number is not None]
    return named + [number for number in ranks if number not in named]


def _root_state(verdict_class: VerdictClass) -> RankState:
    if verdict_class is VerdictClass.DEAD_PROCESS:
        return RankState.DEAD
    return RankState.SLOW if verdict_class.is_slow else RankState.ROOT


def rank_state(job_state: JobState, has_left: bool, role: RankRole | None) -> RankState:
    """State of a registered rank. An incident outweighs the registry: it is newer news."""
    if role is not None:
        return role.state
    if job_state.is_orderly_end or job_state is JobState.FAILED:
        return RankState.ENDED
    return RankState.DEAD if has_left else RankState.RUNNING


def build_plane(
    world_size: int,
    job_state: JobState,
    registered: dict[int, bool],
    roles: dict[int, RankRole],
) -> bytes:
    """One byte of RankState for each rank. `registered` maps rank to whether its node has left."""
    plane = bytearray(world_size)
    for rank, has_left in registered.items():
        if 0 <= rank < world_size:
            plane[rank] = rank_state(job_state, has_left, None)
    for rank, role in roles.items():
        if 0 <= rank < world_size:
            plane[rank] = role.state
    return bytes(plane)
