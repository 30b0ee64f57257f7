"""The invariants of per-step protection, over random courses of many ranks on the pure parts.

The papers' numbering: I1 every shard has a copy outside its host or the status says so, I2 older
generations are refused, I3 all resume at one step, I4 at most one step is replayed.
"""

import random
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import event, given, settings
from hypothesis import strategies as st

from paceline.trainer.protection import ring
from paceline.trainer.protection.budget import OVERHEAD_AIM, BudgetReason, Costs, budget
from paceline.trainer.protection.commit import CommitTracker
from paceline.trainer.protection.decide import (
    Fallback,
    FallbackReason,
    Refused,
    RestorePlan,
    decide_restore,
    is_current,
)
from paceline.trainer.protection.identity import Holding, Member, Part, Place, ShardIdentity
from paceline.trainer.protection.slots import NEVER, Record, overwritable


def who(rank: int) -> ShardIdentity:
    return ShardIdentity("job", rank)


OWN = [who(rank).shard(Part.OWN) for rank in range(64)]
SHARED = who(0).shard(Part.SHARED)


@dataclass
class Model:
    """The protocol without tensors and sockets; `strict`: our rule and gate, else the papers'."""

    size: int
    strict: bool = True
    held: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        members = [Member(rank, f"h{rank}:1", f"h{rank}") for rank in range(self.size)]
        self.held = ring.holders(members)
        self.own: list[list[Record | None]] = [[None, None] for _ in members]
        self.kept: list[list[Record | None]] = [[None, None] for _ in members]
        self.finished = [NEVER] * self.size
        self.copying: list[int | None] = [None] * self.size
        self.unsent: list[list[int]] = [[] for _ in members]
        self.trackers = [CommitTracker(range(self.size), rank, NEVER) for rank in range(self.size)]
        self.wires: dict[tuple[int, int, str], list[int]] = {}
        self.acknowledged = [NEVER] * self.size
        self.skipped = 0
        self.floor = NEVER

    def train(self, rank: int) -> None:
        """Finish the next step, where the collectives of the others and the gate let it."""
        step = self.finished[rank] + 1
        if self.copying[rank] is not None or min(self.finished) < step - 1:
            return
        if self.strict and self.trackers[rank].committed < self.finished[rank]:
            return
        self.finished[rank] = step
        index = self._choose(rank)
        if index is None:
            self.skipped += 1
            return
        self.own[rank][index] = Record(1, step, OWN[rank], sealed=False)
        self.copying[rank] = index

    def _choose(self, rank: int) -> int | None:
        slots, committed = self.own[rank], self.trackers[rank].committed
        if self.strict:
            free = overwritable(slots, OWN[rank], committed)
            return free[0] if free else None
        for index, record in enumerate(slots):
            other = slots[1 - index]
            if record is None:
                return index
            if other is not None and other.sealed and other.step >= committed and record.step < other.step:
                return index
        return None

    def seal(self, rank: int) -> None:
        index = self.copying[rank]
        record = self.own[rank][index] if index is not None else None
        if index is not None and record is not None:
            self.own[rank][index] = Record(1, record.step, record.shard, sealed=True)
            self.unsent[rank].append(record.step)
            self.copying[rank] = None

    def send(self, rank: int) -> None:
        if not self.unsent[rank]:
            return
        step, keeper = self.unsent[rank].pop(0), self.held[rank]
        committed = max(self.trackers[keeper].committed, self.trackers[rank].committed, self.floor)
        if any(each and (each.shard, each.step) == (OWN[rank], step) for each in self.kept[keeper]):
            self._up(rank, self.trackers[rank].acknowledge(step))  # the keeper is asked first
            return
        free = overwritable(self.kept[keeper], OWN[rank], committed)
        assert free or not self.strict, "the keeper has room for what a gated rank sends"
        if free:
            self.kept[keeper][free[0]] = Record(1, step, OWN[rank], sealed=True)
            self.acknowledged[rank] = max(self.acknowledged[rank], step)
            self._up(rank, self.trackers[rank].acknowledge(step))

    def _up(self, rank: int, step: int | None) -> None:
        if step is None:
            return
        above = self.trackers[rank].parent
        if above is None:
            self._down(rank, self.trackers[rank].commit(step))
        else:
            self.wires.setdefault((rank, above, "up"), []).append(step)

    def _down(self, rank: int, step: int | None) -> None:
        for child in self.trackers[rank].children if step is not None else ():
            self.wires.setdefault((rank, child, "down"), []).append(step or 0)

    def deliver(self, which: int) -> None:
        waiting = sorted(wire for wire, steps in self.wires.items() if steps)
        if not waiting:
            return
        source, target, way = wire = waiting[which % len(waiting)]
        step = self.wires[wire].pop(0)
        if way == "up":
            self._up(target, self.trackers[target].from_child(source, step))
        else:
            self._down(target, self.trackers[target].commit(step))

    def restore(self, plan: RestorePlan, lost: set[int]) -> None:
        """Standbys took the places of the lost; everybody loaded the plan's step and met again."""
        for rank in range(self.size):
            if rank in lost:
                self.own[rank] = [Record(2, plan.step, OWN[rank], sealed=True), None]
                self.kept[rank] = [None, None]
            for slots in (self.own[rank], self.kept[rank]):
                slots[:] = [
                    each if each and each.sealed and each.step <= plan.step else None for each in slots
                ]
            self.unsent[rank] = [plan.step]
            self.copying[rank] = None
        self.trackers = [CommitTracker(range(self.size), rank, NEVER) for rank in range(self.size)]
        self.finished = [plan.step] * self.size
        self.wires, self.floor = {}, plan.step - 1

    def rest(self) -> None:
        """All that is on its way arrives."""
        for rank in range(self.size):
            self.seal(rank)
            while self.unsent[rank]:
                self.send(rank)
        while any(self.wires.values()):
            self.deliver(0)

    def after_the_loss_of(self, lost: set[int]) -> RestorePlan | Fallback:
        """Survivors' copies come to their end, standbys have none."""
        holdings: dict[int, list[Holding]] = {rank: [] for rank in range(self.size)}
        for rank in set(range(self.size)) - lost:
            self.seal(rank)
            for record in filter(None, self.own[rank]):
                holdings[rank].append(holding(OWN[rank], record.step))
                holdings[rank].append(holding(SHARED, record.step))
            for record in filter(None, self.kept[rank]):
                holdings[rank].append(holding(record.shard, record.step, place=Place.REPLICA))
        newest = max((self.finished[rank] for rank in range(self.size) if rank not in lost), default=NEVER)
        return decide_restore(holdings, [who(rank) for rank in range(self.size)], finished=newest)


def holding(shard: str, step: int, generation: int = 1, place: Place = Place.OWN, check: str = "") -> Holding:
    return Holding(shard, step, generation, check or f"{shard}:{step}", place, 8)


KINDS = ("train", "train", "seal", "send", "deliver")


@st.composite
def courses(draw: Any) -> list[tuple[str, int]]:
    """Hundreds of events from a seed: drawn one by one they take more time than the test."""
    source = random.Random(draw(st.integers(0, 1 << 32)))
    return [(source.choice(KINDS), source.randrange(64)) for _ in range(draw(st.integers(0, 600)))]


def run(model: Model, events: list[tuple[str, int]]) -> None:
    for kind, number in events:
        if kind == "deliver":
            model.deliver(number)
        else:
            getattr(model, kind)(number % model.size)


@settings(max_examples=150, deadline=None)
@given(size=st.integers(2, 6), events=courses(), data=st.data())
def test_one_loss_at_any_moment_is_restored_at_one_step_and_replays_at_most_one(
    size: int, events: list[tuple[str, int]], data: Any
) -> None:
    model = Model(size)
    run(model, events)
    lost = data.draw(st.integers(0, size - 1))
    everywhere = min(model.acknowledged)
    plan = model.after_the_loss_of({lost})
    assert model.skipped == 0, "the gate leaves a slot free at the end of every step"
    event("committed everywhere" if everywhere >= 0 else "nothing committed yet")
    event(f"replayed {plan.replayed}" if isinstance(plan, RestorePlan) else plan.reason.value)
    if everywhere >= 0:
        assert isinstance(plan, RestorePlan), plan
        assert plan.step >= everywhere
        assert plan.replayed <= 1
    if isinstance(plan, RestorePlan):
        assert plan.replayed <= 1
        needed = {(rank, part) for rank in range(size) for part in (Part.OWN, Part.SHARED)}
        assert {(each.target, each.part) for each in plan.transfers} == needed
        assert all(each.source != lost for each in plan.transfers)


@settings(max_examples=100, deadline=None)
@given(size=st.integers(2, 6), first=courses(), second=courses(), data=st.data())
def test_after_a_restore_everything_becomes_safe_again_and_a_second_loss_is_restored(
    size: int, first: list[tuple[str, int]], second: list[tuple[str, int]], data: Any
) -> None:
    model = Model(size)
    run(model, first)
    lost = data.draw(st.integers(0, size - 1))
    plan = model.after_the_loss_of({lost})
    if isinstance(plan, Fallback):
        return
    model.restore(plan, {lost})
    model.rest()
    assert {tracker.committed for tracker in model.trackers} == {plan.step}, "no slot is in the way for ever"
    run(model, second)
    again = model.after_the_loss_of({data.draw(st.integers(0, size - 1))})
    assert isinstance(again, RestorePlan), again
    assert again.step >= plan.step
    assert again.replayed <= 1
    assert model.skipped == 0


@settings(max_examples=80, deadline=None)
@given(size=st.integers(3, 6), events=courses(), data=st.data())
def test_a_rank_and_its_keeper_lost_is_never_silent(
    size: int, events: list[tuple[str, int]], data: Any
) -> None:
    model = Model(size)
    run(model, events)
    lost = data.draw(st.integers(0, size - 1))
    plan = model.after_the_loss_of({lost, model.held[lost]})
    assert isinstance(plan, Fallback)
    assert plan.reason in (FallbackReason.SHARD_LOST, FallbackReason.NOTHING_PROTECTED)


def test_the_papers_slot_rule_loses_the_common_step() -> None:
    """One peer's copy on its way for long enough is all it takes; with our rule the step stays."""
    course = [("train", 0), ("train", 1), ("seal", 0), ("seal", 1), ("send", 0), ("send", 1), ("deliver", 0)]
    course += [("deliver", 0), ("train", 0), ("train", 1), ("seal", 0), ("seal", 1)]
    course += [("send", 0)]  # rank 1 never sends its copy of step 1
    course += [("train", 0), ("seal", 0), ("train", 1), ("seal", 1), ("train", 0), ("seal", 0)]
    theirs = Model(2, strict=False)
    run(theirs, course)
    assert isinstance(theirs.after_the_loss_of({1}), Fallback)
    ours = Model(2)
    run(ours, course)
    assert isinstance(ours.after_the_loss_of({1}), RestorePlan)


RECORDS = st.lists(
    st.none()
    | st.builds(
        Record,
        st.integers(1, 3),
        st.integers(0, 5),
        st.sampled_from(["rank/0", "rank/1"]),
        sealed=st.booleans(),
    ),
    min_size=2,
    max_size=4,
)


@settings(deadline=None)
@given(records=RECORDS, committed=st.integers(-1, 6))
def test_the_newest_committed_copy_is_never_let_go(records: list[Record | None], committed: int) -> None:
    free = overwritable(records, "rank/0", committed)
    mine = [each for each in records if each and each.sealed and each.shard == "rank/0"]
    safe = max((each.step for each in mine if each.step <= committed), default=None)
    left = [each for index, each in enumerate(records) if index not in free and each is not None]
    if safe is not None:
        assert safe in {each.step for each in left if each.shard == "rank/0"}
    assert {each.step for each in mine if each.step > committed} <= {each.step for each in left}
    foreign = [each for each in records if each and each.sealed and each.shard == "rank/1"]
    newest = max((each.step for each in foreign), default=None)
    if newest is not None and newest > committed:
        assert newest in {each.step for each in left if each.shard == "rank/1"}
    assert all(index in free for index, each in enumerate(records) if each is None or not each.sealed)


@settings(deadline=None)
@given(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=9))
def test_keepers_are_in_other_domains_wherever_sizes_allow(sizes: list[int]) -> None:
    domains = [f"d{index}" for index, size in enumerate(sizes) for _ in range(size)]
    members = [Member(rank, f"{rank}:1", domain) for rank, domain in enumerate(domains)]
    held = ring.holders(members)
    if len(members) < 2:
        assert held == {}
        return
    assert Counter(held.values()) == Counter(range(len(members))), "everybody keeps exactly one"
    assert all(rank != keeper for rank, keeper in held.items())
    if len(sizes) > 1 and len(members) > 2:
        assert len(ring.unprotected(members)) == max(0, 2 * max(sizes) - len(members))


@given(size=st.integers(1, 400))
def test_the_tree_of_commits_spans_everybody(size: int) -> None:
    ranks = range(size)
    below = [child for rank in ranks for child in ring.children(ranks, rank)]
    assert sorted([*below, 0]) == list(ranks)
    assert all(ring.parent(ranks, child) == rank for rank in ranks for child in ring.children(ranks, rank))


HOLDINGS = st.dictionaries(
    st.integers(0, 3),
    st.lists(
        st.builds(
            holding,
            st.sampled_from([*OWN[:4], SHARED]),
            st.integers(0, 4),
            st.integers(1, 2),
            st.sampled_from(Place),
        ),
        max_size=8,
    ),
    max_size=4,
)
REFUSED = st.lists(
    st.builds(
        Refused,
        st.integers(0, 3),
        st.sampled_from([*OWN[:4], SHARED]),
        st.integers(0, 4),
        st.sampled_from(Place),
    ),
    max_size=6,
)


@settings(max_examples=200, deadline=None)
@given(holdings=HOLDINGS, refused=REFUSED, restored=st.none() | st.integers(0, 4))
def test_a_plan_uses_only_good_copies_of_this_course_and_the_newest_complete_step(
    holdings: dict[int, list[Holding]], refused: list[Refused], restored: int | None
) -> None:
    history = [] if restored is None else [(2, restored)]
    members = [who(rank) for rank in range(4)]
    plan = decide_restore(holdings, members, history, 5, refused)
    good = {
        (each.shard, each.step, rank, each.place)
        for rank, items in holdings.items()
        for each in items
        if is_current(each.generation, each.step, history)
        and Refused(rank, each.shard, each.step, each.place) not in refused
    }
    wanted = {*OWN[:4], *({SHARED} & {shard for shard, *_ in good})}
    complete = [step for step in range(5) if wanted <= {shard for shard, at, *_ in good if at == step}]
    if isinstance(plan, Fallback):
        assert not complete
        return
    assert plan.step == max(complete)
    assert plan.replayed == 5 - plan.step
    for each in plan.transfers:
        assert (each.shard, plan.step, each.source, each.place) in good


def test_copies_that_should_be_equal_and_are_not_stop_everything() -> None:
    holdings = {
        0: [holding(OWN[0], 3), holding(SHARED, 3)],
        1: [holding(OWN[1], 3), holding(SHARED, 3, check="another")],
    }
    plan = decide_restore(holdings, [who(0), who(1)])
    assert isinstance(plan, Fallback)
    assert plan.reason is FallbackReason.REPLICAS_DIFFER


SECONDS = st.floats(1e-5, 2.0)


@settings(deadline=None)
@given(st.builds(Costs, SECONDS, SECONDS, SECONDS, st.floats(0, 1e-3), SECONDS, SECONDS, st.floats(0, 1)))
def test_a_budget_that_holds_stays_within_the_limit(costs: Costs) -> None:
    found = budget(costs)
    if found.reason is not BudgetReason.TOO_SLOW and found.interval_steps > 1:
        assert found.overhead <= OVERHEAD_AIM * 1.0001
    if found.fits:
        assert found.interval_steps == 1
        assert found.overhead <= OVERHEAD_AIM * 1.0001
        assert found.replayed_steps_max == 1
    doubled = {name: 2 * getattr(costs, name) for name in ("copy_s", "seal_s", "send_s")}
    slower = budget(replace(costs, **doubled))
    assert slower.interval_steps >= found.interval_steps


def test_a_budget_names_what_is_too_slow() -> None:
    assert budget(Costs(0.01, 0.01, 0.02, 0.0, 0.1, 0.01)).reason is BudgetReason.FITS
    assert budget(Costs(0.2, 0.0, 0.0, 0.0, 0.1, 0.01)).reason is BudgetReason.COPY_SLOW
    assert budget(Costs(0.01, 0.0, 0.3, 0.0, 0.1, 0.01)).reason is BudgetReason.COMMIT_SLOW
    assert budget(Costs(0.01, 0.01, 0.01, 0.0, 0.1, 0.01, free_share=0.0)).reason is BudgetReason.CPU_BUSY
    assert budget(Costs(0.01, 0.01, 0.01, 0.0, 0.1, 0.01, free_share=0.0)).interval_steps == 40
    assert budget(Costs(0.01, 0.01, 0.01, 0.001, 0.1, 0.01, list_s=0.002)).interval_steps == 10
