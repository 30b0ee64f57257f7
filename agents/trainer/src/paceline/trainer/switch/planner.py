"""The delta plan: what has to change when machines are replaced, and in which phase.

Only links that touch a leaver close. A joiner's local links and links between joiners open while
training goes on; links between a stayer and a joiner open in the switch, because until then the stayer
holds its link to the leaver and two would need twice the buffers (`hold_both` where a transport can
afford that). The work depends on the number of links of the leavers, not on the size of the cluster.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from paceline.trainer.switch.topology import Link, Member, Topology, digest_of


class PlanRefused(ValueError):
    """A replacement that cannot be planned; the message says what would be needed."""


class Role(Enum):
    LEAVER = "leaver"
    JOINER = "joiner"
    STAYER = "stayer"


@dataclass(frozen=True)
class Replacement:
    """`joiners[i]` takes the i-th slot of machine `leaver`, in the order of slots; all on one machine."""

    leaver: str
    joiners: tuple[Member, ...]


@dataclass(frozen=True)
class Actions:
    """One participant's part. State moves 1 to 1: to whom a leaver gives it, from whom a joiner gets it."""

    role: Role
    prepare_open: tuple[Link, ...]
    switch_close: tuple[Link, ...]
    switch_open: tuple[Link, ...]
    state_to: str = ""
    state_from: str = ""


@dataclass(frozen=True)
class SwitchPlan:
    """The whole change from `before` to `after`, sorted, the same for every participant.

    `transfers` are pairs (leaver, joiner) of member ids.
    """

    before: str  # digests of the topologies
    after: str
    generation: int
    transfers: tuple[tuple[str, str], ...]
    prepare_open: tuple[Link, ...]
    switch_close: tuple[Link, ...]
    switch_open: tuple[Link, ...]

    def digest(self) -> str:
        """Participants whose digests differ must not switch."""
        return digest_of(
            [
                self.before,
                self.after,
                self.generation,
                self.transfers,
                *self._parts(),
            ]
        )

    def _parts(self) -> Iterator[tuple[Link, ...]]:
        yield self.prepare_open
        yield self.switch_close
        yield self.switch_open

    def apply(self, links: frozenset[Link]) -> frozenset[Link]:
        """The links after both phases. ValueError where one to close is not there or one to open is."""
        closed, opened = set(self.switch_close), {*self.prepare_open, *self.switch_open}
        if not closed <= links or opened & links:
            raise ValueError("the plan was made for other links")
        return (links - closed) | opened

    def wires_closed(self) -> int:
        """Links between machines that close in the switch."""
        return sum(link.wire for link in self.switch_close)

    def actions_of(self, member: str) -> Actions:
        """What `member` does. A stayer without a link to a leaver has nothing to do."""
        to, came_from = dict(self.transfers), {joiner: leaver for leaver, joiner in self.transfers}
        role = Role.LEAVER if member in to else Role.JOINER if member in came_from else Role.STAYER
        prepare, close, opening = (
            tuple(link for link in part if member in (link.source, link.target)) for part in self._parts()
        )
        return Actions(role, prepare, close, opening, to.get(member, ""), came_from.get(member, ""))


def plan_switch(
    topology: Topology, replacements: Sequence[Replacement], *, hold_both: bool = False
) -> tuple[SwitchPlan, Topology]:
    """The plan, and the topology after it. Pure: equal input gives an equal plan, in whatever order the
    replacements are listed. PlanRefused where they do not fit the topology."""
    replacements = sorted(replacements, key=lambda each: each.leaver)
    new_of = _fill_slots(topology, replacements)
    members = tuple(new_of.get(slot, member) for slot, member in enumerate(topology.members))
    after = replace(topology, generation=topology.generation + 1, members=members)
    close: set[Link] = set()
    local: set[Link] = set()
    across: set[Link] = set()
    for number, channel in enumerate(topology.channels):
        for slot in new_of:
            for source, target in channel.edges_of(slot):
                close.add(topology.link(number, source, target))
                opened = after.link(number, source, target)
                (local if source in new_of and target in new_of else across).add(opened)
    plan = SwitchPlan(
        before=topology.digest(),
        after=after.digest(),
        generation=after.generation,
        transfers=tuple((topology.members[slot].id, new_of[slot].id) for slot in sorted(new_of)),
        prepare_open=tuple(sorted(local | across if hold_both else local)),
        switch_close=tuple(sorted(close)),
        switch_open=() if hold_both else tuple(sorted(across)),
    )
    return plan, after


def _fill_slots(topology: Topology, replacements: Sequence[Replacement]) -> dict[int, Member]:
    """Slot -> joiner. PlanRefused where somebody is missing, known already, or named twice."""
    known = {member.id for member in topology.members}
    machines = {member.machine for member in topology.members}
    leavers = {each.leaver for each in replacements}
    filled: dict[int, Member] = {}
    if len(leavers) != len(replacements):
        raise PlanRefused("a machine is replaced twice in one plan")
    for each in replacements:
        slots = topology.slots_on(each.leaver)
        if not slots:
            raise PlanRefused(f"machine {each.leaver!r} is not in the topology")
        if len(slots) != len(each.joiners):
            raise PlanRefused(
                f"machine {each.leaver!r} fills {len(slots)} slots, {len(each.joiners)} joiners are named"
            )
        hosts = {joiner.machine for joiner in each.joiners}
        if len(hosts) != 1:
            raise PlanRefused(f"the joiners for {each.leaver!r} run on {len(hosts)} machines, expected one")
        if hosts & machines:
            raise PlanRefused(f"machine {hosts.pop()!r} is in the topology or already joins it")
        machines |= hosts
        for slot, joiner in zip(slots, each.joiners, strict=True):
            if joiner.id in known:
                raise PlanRefused(f"member {joiner.id!r} is in the topology or already joins it")
            known.add(joiner.id)
            filled[slot] = joiner
    if not filled:
        raise PlanRefused("no machine is replaced")
    if len(filled) == len(topology.members):
        raise PlanRefused("every machine would leave: nobody stays to switch with")
    return filled
