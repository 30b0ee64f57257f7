"""In whatever order: one recovery at a time, generations only grow, nobody who only waits is killed."""

from dataclasses import replace

from hypothesis import example, given, settings
from hypothesis import strategies as st

from paceline.contracts.commands import CommandKind
from paceline.contracts.recovery import OrderOutcome, RecoveryPhase, parse_members
from paceline.contracts.repair import RepairCause, RepairState
from paceline.remediator.model import (
    Event,
    JobOver,
    Judged,
    MemberError,
    NodeLost,
    OrderAnswer,
    PhaseDone,
    ProcessExit,
    ProcessStopped,
    SendOrder,
    Tick,
)
from tests.unit.remediator.conftest import Rig

NAMES = ("m0", "m1", "m2", "m3", "s0", "s1")
OPENING = (CommandKind.REBUILD, CommandKind.RETRY, CommandKind.PREPARE)
names = st.sampled_from(NAMES)
moves = st.one_of(
    st.tuples(st.just("kill"), names, st.sampled_from([-9, -15, 1, 0, None])),
    st.tuples(st.just("stop"), names, st.booleans()),
    st.tuples(st.just("error"), names, st.integers(0, 4)),
    st.tuples(st.just("lost"), st.sampled_from(["n0", "n1", "n2"]), st.booleans()),
    st.tuples(st.just("judged"), st.sampled_from(list(RepairCause)), st.integers(0, 3)),
    st.tuples(st.just("answer"), names, st.sampled_from(list(OrderOutcome))),
    st.tuples(st.just("phase"), names, st.sampled_from(list(RecoveryPhase))),
    st.tuples(st.just("tick"), st.sampled_from([0.1, 1.0, 5.0, 30.0, 400.0]), st.none()),
    st.tuples(st.just("over"), st.none(), st.none()),
)


def event_of(rig: Rig, move: tuple[str, object, object]) -> Event:
    kind, first, second = move
    key = rig.new_id()
    if kind == "kill":
        member = rig.members[str(first)]
        rig.change(str(first), child_pid=0, child_pid_start=0)
        code = second if isinstance(second, int) else None
        return ProcessExit(key, rig.now_s, member.rank, member.member, member.child_pid, None, code)
    if kind == "stop":
        member = rig.members[str(first)]
        return ProcessStopped(key, rig.now_s, member.rank, member.child_pid, bool(second))
    if kind == "error":
        generation = int(str(second))
        message = "RuntimeError: Connection closed by peer" if len(rig.steps) % 2 else "CUDA error"
        return MemberError(key, rig.now_s, str(first), generation, message)
    if kind == "lost":
        return NodeLost(key, rig.now_s, str(first), bool(second))
    if kind == "judged":
        cause = RepairCause(str(first.value if isinstance(first, RepairCause) else first))
        ranks = (int(str(second)),)
        planned = cause is RepairCause.SLOW
        return Judged(key, rig.now_s, f"inc_{key}", cause, planned, ranks, (), "v", rig.now_s)
    action = rig.job.action
    generation = 0 if action is None else action.generation
    if kind == "answer":
        assert isinstance(second, OrderOutcome)
        command = "" if action is None else f"cmd-{generation}-{action.attempt_no}"
        return OrderAnswer(key, rig.now_s, str(first), generation, command, second, "")
    if kind == "phase":
        assert isinstance(second, RecoveryPhase)
        return PhaseDone(key, rig.now_s, str(first), generation, second, 41, 1)
    if kind == "over":
        return JobOver(key, rig.now_s, False, "finished")
    rig.now_s += float(str(first))
    return Tick()


@settings(max_examples=300, deadline=None)
@given(st.lists(moves, max_size=40))
def test_invariants(script: list[tuple[str, object, object]]) -> None:
    rig = Rig()
    opened: set[tuple[int, int]] = set()
    newest = 0
    for move in script:
        before = rig.job
        leavers_before = set() if before.action is None else set(before.action.leaver_names)
        step = rig.feed(event_of(rig, move))
        for order in (each for each in step.effects if isinstance(each, SendOrder)):
            if order.kind in OPENING:
                assert (order.generation, order.attempt_no) not in opened, "a generation is opened once"
                opened.add((order.generation, order.attempt_no))
                assert order.generation >= newest
                newest = order.generation
                rows = parse_members(order.arguments["members"])
                assert [row.rank for row in rows] == list(range(4))
            if order.kind is CommandKind.FENCE:
                action = rig.job.action
                assert action is not None
                assert set(order.members) <= set(action.leaver_names) | leavers_before
                assert all(rig.members[name].child_pid for name in order.members)
        assert rig.job.generation >= before.generation
        action = rig.job.action
        under_way = action is not None and action.status.is_under_way
        assert under_way == (
            rig.job.state in (RepairState.FENCING, RepairState.REBUILDING, RepairState.RESTORING)
            or (
                under_way
                and rig.job.state in (RepairState.PREPARING, RepairState.READY, RepairState.FALLBACK)
            )
        )
        if action is not None and action.status.is_over:
            raise AssertionError("an action that is over is not current")


@settings(max_examples=100, deadline=None)
@example([("kill", "m1", -9), ("stop", "m2", False), ("answer", "m0", OrderOutcome.REFUSED)])
@example(
    [("kill", "m1", -9), ("kill", "m0", 0), ("stop", "m1", False), ("answer", "m0", OrderOutcome.REFUSED)]
)
@given(st.lists(moves, max_size=25))
def test_a_record_that_comes_again_changes_nothing(script: list[tuple[str, object, object]]) -> None:
    rig = Rig()
    for move in script:
        event = event_of(rig, move)
        rig.feed(event)
        if isinstance(event, Tick):
            continue
        job, sent = rig.job, len(rig.sent)
        again = rig.feed(replace(event))  # its try is over where it has started another one
        assert (again.job, len(rig.sent)) == (job, sent)
