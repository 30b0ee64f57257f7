"""What an open action has to pass before it is carried out, in the remediator's order, and who moves.

The remediator says one reason: the first that holds it up. What stands before it has passed, what stands
behind it was not looked at, and where the tables know better than that, they are asked.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.api.repair.schemas import CheckName, CheckRead, CheckState, PlaceRead, Preconditions
from paceline.contracts.ids import parse_ranks
from paceline.contracts.recovery import Support
from paceline.contracts.repair import ActionStatus, RepairCause, RepairKind, RepairMode
from paceline.store.models.repair import RepairAction, RepairMember, RepairPolicy

PLACES_MAX = 64  # shown one by one; `ranks` and `leavers` name all of them
OPEN = (ActionStatus.PROPOSED.value, ActionStatus.APPROVED.value)
LOOKED_AT_LATER = "looked at after what stands before it"

# Reason of the remediator -> the check that it speaks of, and whether that may still pass.
HOLDS_UP: dict[str, tuple[CheckName, CheckState]] = {
    "members_unknown": (CheckName.MEMBERS, CheckState.WAITS),
    "too_large": (CheckName.MEMBERS, CheckState.REFUSED),
    "wait_standby": (CheckName.STANDBY, CheckState.WAITS),
    "no_standby": (CheckName.STANDBY, CheckState.REFUSED),
    "observed_only": (CheckName.POLICY, CheckState.REFUSED),
    "stop_switch": (CheckName.STOP_SWITCH, CheckState.REFUSED),
    "refused_layout": (CheckName.LAYOUT, CheckState.REFUSED),
    "needs_approval": (CheckName.APPROVAL, CheckState.WAITS),
    "not_verified": (CheckName.VERIFIED, CheckState.WAITS),
    "blast_radius": (CheckName.BLAST_RADIUS, CheckState.WAITS),
    "circuit_breaker": (CheckName.CIRCUIT_BREAKER, CheckState.WAITS),
    "fleet_breaker": (CheckName.FLEET_BREAKER, CheckState.WAITS),
    "rate_limit": (CheckName.RATE_LIMIT, CheckState.WAITS),
    "not_fenced": (CheckName.FENCE, CheckState.WAITS),
    "wait_settled": (CheckName.SETTLED, CheckState.WAITS),
    "wait_evidence": (CheckName.EVIDENCE, CheckState.WAITS),
}
ALWAYS = {CheckName.POLICY, CheckName.STOP_SWITCH, CheckName.APPROVAL, CheckName.SETTLED}
GROUP = {CheckName.MEMBERS, CheckName.LAYOUT}
WITHOUT_A_PERSON = {CheckName.CIRCUIT_BREAKER, CheckName.FLEET_BREAKER, CheckName.RATE_LIMIT}
BY_KIND: dict[RepairKind, set[CheckName]] = {
    RepairKind.SWAP: ALWAYS | GROUP | {CheckName.STANDBY, CheckName.FENCE, CheckName.EVIDENCE},
    RepairKind.PLANNED_SWAP: ALWAYS | GROUP | {CheckName.STANDBY},
    RepairKind.RETRY: ALWAYS | GROUP,
    RepairKind.FALLBACK: ALWAYS,
    RepairKind.STACK_CAPTURE: set(),
}


@dataclass(frozen=True)
class Facts:
    """What the tables say now."""

    conditions: Preconditions
    members: Sequence[RepairMember]  # of the attempt, those that have left included
    policies: Sequence[RepairPolicy]  # of the job and of all jobs

    def get(self, name: str) -> RepairMember | None:
        return next((each for each in self.members if each.member == name), None)


def build_checks(row: RepairAction, facts: Facts) -> list[CheckRead]:
    """In the order in which they are asked; empty once nothing can be decided any more."""
    if row.status not in OPEN:
        return []
    order = list(CheckName)
    held, held_state = HOLDS_UP.get(row.reason, (None, CheckState.NOT_ASKED))
    reached = 0 if held is None else order.index(held)
    checks = []
    for place, name in enumerate(order):
        if name not in _asked(row):
            continue
        state, reason = CheckState.MET if place < reached else CheckState.NOT_ASKED, ""
        if name is held:
            state, reason = held_state, row.reason
        checks.append(_with_facts(CheckRead(name=name, state=state, reason=reason, detail=""), row, facts))
    return checks


def _asked(row: RepairAction) -> set[CheckName]:
    kind = RepairKind(row.kind)
    asked = set(BY_KIND[kind])
    if asked and row.mode == RepairMode.AUTO.value and row.status != ActionStatus.APPROVED.value:
        asked |= WITHOUT_A_PERSON
        if kind is not RepairKind.FALLBACK:
            asked |= {CheckName.VERIFIED, CheckName.BLAST_RADIUS}
        if row.reason not in ("needs_approval", "observed_only"):
            asked.discard(CheckName.APPROVAL)
    return asked


def _with_facts(check: CheckRead, row: RepairAction, facts: Facts) -> CheckRead:
    """The check with what the tables know of it: a detail, and a better word where nobody has asked yet."""
    found = _FACTS.get(check.name, _later)(check, row, facts)
    state, reason, detail = found
    return check.model_copy(update={"state": state, "reason": reason, "detail": detail})


Found = tuple[CheckState, str, str]


def _later(check: CheckRead, row: RepairAction, facts: Facts) -> Found:
    return check.state, check.reason, LOOKED_AT_LATER if check.state is CheckState.NOT_ASKED else ""


def _members(check: CheckRead, row: RepairAction, facts: Facts) -> Found:
    known = facts.conditions.members_known
    return check.state, check.reason, f"{known} rank{'' if known == 1 else 's'} with a supervisor"


def _standby(check: CheckRead, row: RepairAction, facts: Facts) -> Found:
    ready = facts.conditions.standbys_ready
    wanted = max(1, facts.conditions.blast_ranks)
    detail = f"{ready} ready, {wanted} needed"
    if check.state is CheckState.NOT_ASKED:
        return (CheckState.MET if ready >= wanted else CheckState.WAITS), "", detail
    return check.state, check.reason, detail


def _policy(check: CheckRead, row: RepairAction, facts: Facts) -> Found:
    if row.mode == RepairMode.OBSERVE.value:
        return CheckState.REFUSED, check.reason or "observed_only", "observe: nothing is carried out"
    if check.state is CheckState.REFUSED:
        return check.state, check.reason, "the remediator has no key to sign orders with"
    return CheckState.MET, "", row.mode


def _stop_switch(check: CheckRead, row: RepairAction, facts: Facts) -> Found:
    on = [each for each in facts.policies if each.stopped and each.cause in ("", row.cause)]
    if on:
        whose = "all jobs" if any(each.job == "" for each in on) else "this job"
        return CheckState.REFUSED, "stop_switch", f"on for {whose}, by {on[0].updated_by}"
    if check.state is CheckState.REFUSED:
        return check.state, check.reason, "on for another cause of it"
    return CheckState.MET, "", "off"


def _layout(check: CheckRead, row: RepairAction, facts: Facts) -> Found:
    support = facts.conditions.least_support
    if support is Support.REFUSED:
        return CheckState.REFUSED, "refused_layout", "the job's kind of parallelism is not repaired"
    return CheckState.MET, "", "not known" if support is None else support.value


def _approval(check: CheckRead, row: RepairAction, facts: Facts) -> Found:
    if row.status == ActionStatus.APPROVED.value:
        return CheckState.MET, "", f"by {row.decided_by}"
    return check.state, check.reason, "a person decides"


def _blast_radius(check: CheckRead, row: RepairAction, facts: Facts) -> Found:
    count = facts.conditions.blast_ranks
    return check.state, check.reason, f"{count} rank{'' if count == 1 else 's'} at once"


def _fence(check: CheckRead, row: RepairAction, facts: Facts) -> Found:
    """On a node that nobody reaches only a lease proves an end; a person who approves vouches for it."""
    leavers = [found for name in row.leavers if (found := facts.get(name)) is not None]
    if not leavers:
        return check.state, check.reason, LOOKED_AT_LATER
    running = [each for each in leavers if each.child_pid > 0]
    if not running:
        return CheckState.MET, "", "the end of its process was seen"
    if row.cause == RepairCause.PROCESS_EXIT.value and check.state is not CheckState.WAITS:
        return CheckState.MET, "", "an exit was seen; what still runs is ended first"
    if row.cause != RepairCause.NODE_LOST.value and check.state is not CheckState.WAITS:
        return CheckState.MET, "", "its supervisor ends the process first"
    bare = [each.member for each in running if each.lease_s <= 0]
    if not bare:
        return CheckState.MET, "", "its lease runs out first"
    words = f"nothing proves that {bare[0]} has stopped: make sure before you approve"
    return CheckState.WAITS, "not_fenced", words


_FACTS = {
    CheckName.MEMBERS: _members,
    CheckName.STANDBY: _standby,
    CheckName.POLICY: _policy,
    CheckName.STOP_SWITCH: _stop_switch,
    CheckName.LAYOUT: _layout,
    CheckName.APPROVAL: _approval,
    CheckName.BLAST_RADIUS: _blast_radius,
    CheckName.FENCE: _fence,
}


def build_places(row: RepairAction, facts: Facts) -> list[PlaceRead]:
    """Who leaves and who joins, rank by rank. A standby that has joined has its rank in the registry."""
    leavers = {found.rank: found for name in row.leavers if (found := facts.get(name)) is not None}
    places = []
    for place, rank in enumerate(parse_ranks(row.ranks)[:PLACES_MAX]):
        leaver = leavers.get(rank)
        joined = (name for name in row.joiners if (found := facts.get(name)) and found.rank == rank)
        planned = row.joiners[place] if place < len(row.joiners) else None
        name = next(joined, planned)
        joiner = None if name is None else facts.get(name)
        places.append(
            PlaceRead(
                rank=rank,
                leaver=None if leaver is None else leaver.member,
                leaver_node=None if leaver is None else leaver.node,
                joiner=name,
                joiner_node=None if joiner is None else joiner.node,
            )
        )
    return places
