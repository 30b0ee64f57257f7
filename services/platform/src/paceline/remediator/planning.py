"""Who sits where in the next generation: pure, and the same for the same input."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from paceline.contracts.commands import CommandKind
from paceline.contracts.ids import derived_id
from paceline.contracts.recovery import MEMBERS_MAX, Role, Support, format_members
from paceline.contracts.recovery import Member as OrderMember
from paceline.contracts.repair import RepairCause, RepairKind, RepairMode
from paceline.remediator.model import Action, Ground, JobRepair, Member, NodeLost, Reason, Seat, World


def command_id(
    action: str, kind: CommandKind, node: str, names: Sequence[str], generation: int, attempt_no: int
) -> str:
    """The same decision is written once: a fence of a later action has another action id."""
    return f"{derived_id('cmd', action, kind.value, node, *names)}-{generation}-{attempt_no}"


def current_seats(job: JobRepair, members: Sequence[Member]) -> tuple[Seat, ...]:
    """Seats of the running generation: those of the last recovery, else the registry's own word; also where a
    supervisor that has not left is of a newer generation than that recovery was.

    Of several supervisors that claim a rank one that has not left has it, of these the one of the newest
    generation, and of these one whose process lives.
    """
    seated = job.seated or job.generation
    if job.seats and not any(_is_newer(each, seated) for each in members):
        return job.seats
    ours = {seat.rank: seat for seat in job.seats}
    best: dict[int, Member] = {}
    for member in members:
        if member.role is not Role.MEMBER:
            continue
        other = best.get(member.rank)
        if other is None or _claim(member) > _claim(other):
            best[member.rank] = member
    found = {
        rank: _seat(rank, member)
        for rank, member in best.items()
        if rank not in ours or _is_newer(member, seated)
    }
    return tuple((ours | found)[rank] for rank in sorted(ours | found))


def _is_newer(member: Member, seated: int) -> bool:
    return member.role is Role.MEMBER and not member.left and member.generation > seated


def _claim(member: Member) -> tuple[bool, int, bool, float, str]:
    return (not member.left, member.generation, member.lives, member.registered_s, member.member)


def _seat(rank: int, member: Member) -> Seat:
    return Seat(rank, member.member, member.child_pid, member.child_pid_start)


def is_complete(seats: Sequence[Seat]) -> bool:
    """Whether every rank from 0 on has somebody."""
    return bool(seats) and [seat.rank for seat in seats] == list(range(len(seats)))


def standbys(world: World, seated: Sequence[Seat], leavers: frozenset[str]) -> tuple[list[Member], bool]:
    """Those that could be promoted now, best first, and whether another one is still getting ready, or is
    started again by a supervisor that has lost its process and no seat.

    Best is another node than those that leave, then a failure domain in which few members of the job are.
    """
    taken = {seat.member for seat in seated}
    spare = [
        member
        for member in world.members
        if member.role is Role.STANDBY and member.lives and member.member not in taken | leavers
    ]
    others = [member for member in world.members if member.member not in taken | leavers]
    comes_again = any(not member.left and member.child_pid == 0 for member in others)
    left_nodes = {found.node for name in leavers if (found := world.get(name)) is not None}
    crowd = [found.failure_domain for name in taken if (found := world.get(name)) is not None]

    def cost(member: Member) -> tuple[bool, int, str]:
        return (member.node in left_nodes, crowd.count(member.failure_domain), member.member)

    return sorted((m for m in spare if m.ready), key=cost), comes_again or any(not m.ready for m in spare)


@dataclass(frozen=True)
class Plan:
    """The seats of a new generation, and where its members meet."""

    seats: tuple[Seat, ...]
    leavers: tuple[Seat, ...]
    joiners: tuple[str, ...]
    store: str


def open_seats(job: JobRepair, world: World) -> tuple[Seat, ...]:
    """Of the generation that is being built, else of the running one."""
    if job.action is not None and job.action.seats:
        return job.action.seats
    return current_seats(job, world.members)


def plan_seats(job: JobRepair, world: World, named: frozenset[str], *, same: bool = False) -> Plan | Reason:
    """The next generation without those `named` and without whoever else has no living process, else why
    there is none. `same`: nobody leaves, nobody joins."""
    old = open_seats(job, world)
    if not is_complete(old):
        return Reason.MEMBERS_UNKNOWN
    if len(old) > MEMBERS_MAX:
        return Reason.TOO_LARGE
    gone = {member.member for member in world.members if not member.lives}
    leavers = frozenset() if same else named | {seat.member for seat in old if seat.member in gone}
    free, warming = standbys(world, old, leavers)
    seats: list[Seat] = []
    joiners: list[str] = []
    for seat in old:
        if seat.member not in leavers:
            found = world.get(seat.member)
            if found is None:
                return Reason.MEMBERS_UNKNOWN
            seats.append(_seat(seat.rank, found))
        elif free:
            joiner = free.pop(0)
            joiners.append(joiner.member)
            seats.append(_seat(seat.rank, joiner))
        else:
            return Reason.WAIT_STANDBY if warming else Reason.NO_STANDBY
    store = _store(seats, frozenset(joiners), world)
    if not store:
        return Reason.MEMBERS_UNKNOWN
    leaving = tuple(seat for seat in old if seat.member in leavers)
    return Plan(tuple(seats), leaving, tuple(joiners), store)


def _store(seats: Sequence[Seat], joiners: frozenset[str], world: World) -> str:
    """Of the lowest rank that survives, so that nobody waits for a store that has just died."""
    for survivors in (True, False):
        for seat in seats:
            found = world.get(seat.member)
            if (seat.member not in joiners) is survivors and found is not None and found.store:
                return found.store
    return ""


def members_text(seats: Sequence[Seat], world: World) -> str:
    """The `members` argument of an order."""
    rows = []
    for seat in seats:
        found = world.get(seat.member)
        replica, domain = (found.replica, found.failure_domain) if found is not None else ("", "")
        rows.append(OrderMember(seat.rank, seat.member, replica, domain))
    return format_members(rows)


def newest(job: JobRepair, world: World) -> int:
    """The newest generation that anybody has opened, also whoever led the job before us."""
    opened = job.action.generation if job.action is not None else 0
    return max([job.generation, opened, *(member.generation for member in world.members)])


def next_generation(job: JobRepair, world: World) -> int:
    return newest(job, world) + 1


def least_support(seats: Sequence[Seat], joiners: Sequence[str], world: World) -> Support:
    """The word of the most careful member."""
    order = (Support.REFUSED, Support.EXPERIMENTAL, Support.VERIFIED)
    names = {seat.member for seat in seats} - set(joiners)
    found = [member.support for member in world.members if member.member in names]
    return min(found, key=order.index, default=Support.EXPERIMENTAL)


def lost_seats(seats: Sequence[Seat], world: World) -> list[Seat]:
    """Seats whose process is gone by the registry's word."""
    lost = []
    for seat in seats:
        found = world.get(seat.member)
        if found is not None and (found.left or found.child_pid_start != seat.child_pid_start):
            lost.append(seat)
    return lost


def may_come_back(seat: Seat, world: World) -> bool:
    """Its supervisor's connection has ended, and nobody has seen the end of its process."""
    found = world.get(seat.member)
    return found is not None and found.left and found.child_pid != 0


def is_proven_gone(seat: Seat, world: World) -> bool:
    """A supervisor that is there has one child at a time: another one, or none, is the end of this one."""
    found = world.get(seat.member)
    if found is None:
        return False
    return found.child_pid == 0 or (not found.left and found.child_pid_start != seat.child_pid_start)


def on_cut_off_nodes(job: JobRepair, action: Action, world: World) -> dict[str, Ground]:
    """Members of a recovery whose node has fallen silent meanwhile, where a lease ends them and nobody has to
    agree."""
    cause = RepairCause.NODE_LOST
    if world.policies.of(cause).mode is not RepairMode.AUTO:
        return {}
    nodes = {event.node for event in job.later if isinstance(event, NodeLost)}
    found = (world.get(seat.member) for seat in action.seats)
    return {
        one.member: Ground(one.member, cause, RepairKind.SWAP, 0.0, f"node {one.node} is silent", one.node)
        for one in found
        if one is not None and one.node in nodes and one.lease_s > 0
    }


def as_proposed(action: Action) -> Action:
    """A fallback that something else was turned into, as it was proposed: a standby may have come."""
    if action.instead_of is None:
        return action
    return replace(
        action, kind=action.instead_of, message=action.plain, instead_of=None, plain="",
        requeue=action.cause is not RepairCause.SOFTWARE,
    )  # fmt: skip


def best_step(world: World) -> int:
    return max((member.step for member in world.members if member.role is Role.MEMBER), default=-1)
