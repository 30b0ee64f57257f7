"""Every participant computes the same plan; only links to the leaver change, whatever the cluster's size."""

import random
from collections.abc import Iterator

import pytest

from paceline.trainer.switch import (
    Channel,
    Member,
    PlanRefused,
    Replacement,
    SwitchPlan,
    Topology,
    derive_topology,
    plan_switch,
)
from paceline.trainer.switch.planner import Role

TOPOLOGIES = 1000


def make_members(machines: int, gpus: int, prefix: str = "m") -> list[Member]:
    return [Member(f"{prefix}{at}.{gpu}", f"{prefix}{at}") for at in range(machines) for gpu in range(gpus)]


def random_case(seed: int) -> tuple[random.Random, Topology, list[Replacement]]:
    """Derived shapes, or rings and trees over any slots in any order, members scattered over slots."""
    draw = random.Random(seed)
    machines, gpus = draw.randint(2, 6), draw.randint(1, 2)
    members = make_members(machines, gpus)
    if draw.random() < 0.5:
        draw.shuffle(members)  # local ranks of a machine need not be neighbours
    if draw.random() < 0.5:
        topology = derive_topology(
            members, rings=draw.randint(1, 3), trees=draw.randint(0, 2), generation=seed
        )
    else:
        channels = tuple(random_channel(draw, len(members)) for _ in range(draw.randint(1, 4)))
        topology = Topology(seed, tuple(members), channels)
    leavers = draw.sample(range(machines), draw.randint(1, machines - 1) if draw.random() < 0.3 else 1)
    replacements = [Replacement(f"m{at}", tuple(make_members(1, gpus, f"j{at}-"))) for at in leavers]
    return draw, topology, replacements


def random_channel(draw: random.Random, slots: int) -> Channel:
    order = list(range(slots))
    draw.shuffle(order)
    if draw.random() < 0.5:
        return Channel(order=tuple(order))
    parents = [-1] * slots
    for at in range(1, slots):
        parents[order[at]] = order[draw.randrange(at)]
    return Channel(parents=tuple(parents))


def rebuilt(topology: Topology, replacements: list[Replacement]) -> Topology:
    """What a full rebuild makes, computed without the planner."""
    queues = {each.leaver: iter(each.joiners) for each in replacements}
    members = tuple(
        next(queues[member.machine]) if member.machine in queues else member for member in topology.members
    )
    return Topology(topology.generation + 1, members, topology.channels)


def as_seen_by(draw: random.Random, topology: Topology, replacements: list[Replacement]) -> SwitchPlan:
    """The plan of one participant, which heard of the members and replacements in its own order."""
    heard = list(enumerate(topology.members))
    draw.shuffle(heard)
    named = draw.sample(replacements, len(replacements))
    view = Topology(topology.generation, tuple(m for _, m in sorted(heard)), topology.channels)
    return plan_switch(view, named)[0]


def test_1000_random_topologies_identical_plans_minimal_change_and_the_rebuilt_result() -> None:
    for seed in range(TOPOLOGIES):
        draw, topology, replacements = random_case(seed)
        topology.check()
        plan, after = plan_switch(topology, replacements)
        for _ in (*topology.members, *(joiner for each in replacements for joiner in each.joiners)):
            assert as_seen_by(draw, topology, replacements) == plan
        leaving = {member.id for member in topology.members} - {member.id for member in after.members}
        before, full = topology.links(), rebuilt(topology, replacements).links()
        assert after.links() == full
        assert plan.apply(before) == full
        assert {link for link in before if {link.source, link.target} & leaving} == set(plan.switch_close)
        assert before - full == set(plan.switch_close)
        assert full - before == {*plan.prepare_open, *plan.switch_open}
        check_parts(plan, topology, after)


def check_parts(plan: SwitchPlan, topology: Topology, after: Topology) -> None:
    """The parts of the participants make the plan, and each part is its own member's."""
    everybody = {member.id for member in (*topology.members, *after.members)}
    parts = {member: plan.actions_of(member) for member in everybody}
    for name in ("prepare_open", "switch_close", "switch_open"):
        seen = [link for part in parts.values() for link in getattr(part, name)]
        assert set(seen) == set(getattr(plan, name))
        assert len(seen) == 2 * len(getattr(plan, name))  # both ends know it
    for member, part in parts.items():
        if part.role is Role.LEAVER:
            assert not part.prepare_open
            assert not part.switch_open
            assert parts[part.state_to].state_from == member
        elif part.role is Role.JOINER:
            assert not part.switch_close
        else:
            assert not part.prepare_open  # nothing of a stayer's memory is touched before the switch
            assert len(part.switch_close) == len(part.switch_open)
            assert (part.state_to, part.state_from) == ("", "")


def links_per_ring(machines: int, gpus: int, rings: int) -> tuple[int, int]:
    topology = derive_topology(make_members(machines, gpus), rings=rings)
    joiners = tuple(make_members(1, gpus, "j"))
    plan, _ = plan_switch(topology, [Replacement(f"m{machines // 2}", joiners)])
    assert plan.wires_closed() == sum(link.wire for link in plan.switch_open)
    return plan.wires_closed(), len(plan.switch_close) + len(plan.prepare_open) + len(plan.switch_open)


@pytest.mark.parametrize("gpus", [1, 8])
def test_a_ring_changes_two_links_per_channel_for_4_to_1024_machines(gpus: int) -> None:
    counts = {machines: links_per_ring(machines, gpus, rings=2) for machines in (4, 16, 64, 256, 1024)}
    assert {wires for wires, _ in counts.values()} == {2 * 2}
    assert len(set(counts.values())) == 1  # local links as well: nothing depends on the size


def test_a_tree_changes_at_most_three_neighbours_for_4_to_1024_machines() -> None:
    for machines in (4, 16, 64, 256, 1024):
        topology = derive_topology(make_members(machines, 2), rings=0, trees=2)
        for leaver in {0, 1, machines // 2, machines - 1}:
            plan, _ = plan_switch(topology, [Replacement(f"m{leaver}", tuple(make_members(1, 2, "j")))])
            assert 2 * 2 <= plan.wires_closed() <= 2 * 3 * 2  # both directions, two trees


def test_links_between_joiners_open_while_training_goes_on() -> None:
    topology = derive_topology(make_members(6, 1), rings=1)
    plan, _ = plan_switch(
        topology, [Replacement("m2", (Member("a", "x"),)), Replacement("m3", (Member("b", "y"),))]
    )
    assert [(link.source, link.target, link.wire) for link in plan.prepare_open] == [("a", "b", True)]
    assert len(plan.switch_close) == 3
    assert {(link.source, link.target) for link in plan.switch_open} == {("m1.0", "a"), ("b", "m4.0")}


def test_a_transport_that_can_hold_both_only_closes_in_the_switch() -> None:
    topology = derive_topology(make_members(4, 2), rings=2)
    replacement = Replacement("m1", tuple(make_members(1, 2, "j")))
    plan, after = plan_switch(topology, [replacement], hold_both=True)
    assert not plan.switch_open
    assert plan.apply(topology.links()) == after.links()
    assert plan.digest() != plan_switch(topology, [replacement])[0].digest()


def test_a_plan_for_other_links_is_not_applied() -> None:
    topology = derive_topology(make_members(4, 1), rings=1)
    plan, after = plan_switch(topology, [Replacement("m1", (Member("a", "x"),))])
    with pytest.raises(ValueError, match="other links"):
        plan.apply(after.links())


def refused() -> Iterator[tuple[list[Replacement], str]]:
    joiners = tuple(make_members(1, 2, "j"))
    yield [], "no machine"
    yield [Replacement("m9", joiners)], "not in the topology"
    yield [Replacement("m1", joiners[:1])], "fills 2 slots, 1 joiners"
    yield [Replacement("m1", (joiners[0], Member("k", "k")))], "2 machines"
    yield [Replacement("m1", tuple(make_members(1, 2, "m")))], "already joins"
    yield [Replacement("m1", (Member("m0.0", "x"), Member("k", "x")))], "already joins"
    yield [Replacement("m1", joiners), Replacement("m2", joiners)], "already joins"
    yield [Replacement("m1", joiners)] * 2, "twice"
    yield [Replacement(f"m{at}", tuple(make_members(1, 2, f"j{at}"))) for at in range(3)], "nobody stays"


@pytest.mark.parametrize(("replacements", "why"), list(refused()))
def test_what_does_not_fit_is_refused(replacements: list[Replacement], why: str) -> None:
    topology = derive_topology(make_members(3, 2), rings=1)
    with pytest.raises(PlanRefused, match=why):
        plan_switch(topology, replacements)


@pytest.mark.parametrize(
    ("channel", "why"),
    [
        (Channel(), "either"),
        (Channel(order=(0, 1, 1)), "each of 3 slots once"),
        (Channel(parents=(-1, 0)), "for each of 3 slots"),
        (Channel(parents=(-1, -1, 0)), "one root"),
        (Channel(parents=(-1, 2, 1)), "reaches every slot"),
    ],
)
def test_a_channel_that_spans_not_all_is_refused(channel: Channel, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Topology(0, tuple(make_members(3, 1)), (channel,)).check()
