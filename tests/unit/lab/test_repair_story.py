"""One account of a recovery from what the topics say."""

import datetime
from dataclasses import dataclass, replace

from paceline.contracts.commands import Command, CommandKind
from paceline.contracts.recovery import OrderOutcome, RecoveryPhase
from paceline.contracts.registry import HealthEvent, HealthKind
from paceline.contracts.repair import RecoveryReport, ReportKind
from paceline.lab.repair.registry import overlapping
from paceline.lab.repair.story import PHASES, PhaseTime, Seen, tell

FAULT_S = 1_000.0
RANKS = 3


def health(kind: HealthKind, at_s: float) -> Seen:
    event = HealthEvent(
        "hlt", kind, "n", "job", "a1", rank=2, pid=7, at_unix_s=FAULT_S + at_s, message="gone"
    )
    return Seen(FAULT_S + at_s, event)


def command(kind: CommandKind, at_s: float, generation: int = 1, **arguments: str) -> Seen:
    told = Command(f"cmd-{kind.value}", kind, "n", "job", "a1", generation, 0.0, arguments=arguments)
    return Seen(FAULT_S + at_s, told)


def said(at_s: float, rank: int, phase: RecoveryPhase | None = None, generation: int = 1) -> RecoveryReport:
    return RecoveryReport(
        "rep", ReportKind.PHASE, "n", "job", "a1", f"m{rank}", rank, generation, FAULT_S + at_s, phase=phase,
        duration_ms=10.0 * (rank + 1), step=40, replayed=1,
    )  # fmt: skip


def report(at_s: float, rank: int, phase: RecoveryPhase, generation: int = 1) -> Seen:
    return Seen(FAULT_S + at_s, said(at_s, rank, phase, generation))


def told_by_all(begin_s: float, generation: int = 1) -> list[Seen]:
    return [
        report(begin_s + 0.1 * number + 0.01 * rank, rank, phase, generation)
        for number, phase in enumerate(PHASES)
        for rank in range(RANKS)
    ]


def test_a_kill_is_detected_ordered_and_resumed_with_the_last_first_step() -> None:
    seen = [
        health(HealthKind.PROCESS_EXIT, 0.02),
        command(CommandKind.REBUILD, 0.1, joiner="s0", attempt_no="0"),
        *told_by_all(0.2),
    ]

    story = tell(reversed(seen), FAULT_S, RANKS)

    assert (story.cause, story.message) == ("process_exit", "rank 2: gone")
    assert round(story.detected_s or 0, 6) == round(story.fenced_s or 0, 6) == 0.02
    assert story.fence_ordered_s is None  # the exit that was seen is the fence
    assert round(story.ordered_s or 0, 6) == 0.1
    assert (story.joiner, story.orders, story.generation, story.replayed, story.step) == ("s0", 1, 1, 1, 40)
    assert round(story.resumed_s or 0, 6) == 0.62
    assert story.phases is not None
    met = story.phases[RecoveryPhase.RENDEZVOUS]
    assert PhaseTime(round(met.done_s, 6), met.took_s) == PhaseTime(0.22, 0.03)
    assert story.is_over


def test_an_order_that_came_after_the_first_full_step_did_not_bring_it() -> None:
    seen = [
        command(CommandKind.REBUILD, 0.1, attempt_no="0"),
        *told_by_all(0.2),
        command(CommandKind.REBUILD, 16.0, attempt_no="1"),
        command(CommandKind.REBUILD, 31.0, generation=2, attempt_no="0"),
    ]

    story = tell(seen, FAULT_S, RANKS)

    assert round(story.ordered_s or 0, 6) == 0.1
    assert (story.generation, round(story.resumed_s or 0, 6)) == (1, 0.62)
    assert story.orders == 3  # and yet they are told


def test_it_is_not_resumed_while_one_member_has_not_told_of_its_first_step() -> None:
    seen = [command(CommandKind.REBUILD, 0.1), *told_by_all(0.2)[:-1]]

    story = tell(seen, FAULT_S, RANKS)

    assert story.resumed_s is None
    assert not story.is_over
    assert story.phases is not None
    assert RecoveryPhase.RESUME in story.phases


def test_phases_of_a_generation_that_failed_do_not_count_for_the_next_one() -> None:
    seen = [
        command(CommandKind.REBUILD, 0.1),
        *told_by_all(0.2),
        command(CommandKind.REBUILD, 1.0, generation=2),
        *told_by_all(1.1, generation=2),
    ]

    story = tell(seen, FAULT_S, RANKS)

    assert (story.generation, story.orders) == (2, 2)
    assert round(story.resumed_s or 0, 6) == 1.52


def test_a_stop_is_fenced_by_the_answer_to_its_order_and_an_earlier_record_is_no_part_of_it() -> None:
    answer = replace(said(4.3, 2), kind=ReportKind.RESULT, command="cmd-fence", outcome=OrderOutcome.DONE)
    seen = [
        health(HealthKind.PROCESS_EXIT, -5.0),
        health(HealthKind.PROCESS_FROZEN, 0.5),
        command(CommandKind.FENCE, 4.2, generation=0),
        Seen(FAULT_S + 4.3, answer),
        command(CommandKind.REBUILD, 4.4),
    ]

    story = tell(seen, FAULT_S, RANKS)

    assert story.cause == "process_frozen"
    assert round(story.fence_ordered_s or 0, 6) == 4.2
    assert round(story.fenced_s or 0, 6) == 4.3


def test_a_fallback_is_its_end() -> None:
    story = tell([command(CommandKind.FALLBACK, 0.3, reason="no_standby")], FAULT_S, RANKS)

    assert (story.fell_back, story.is_over, story.resumed_s) == ("no_standby", True, None)


@dataclass
class Spell:
    started_at: datetime.datetime
    ended_at: datetime.datetime | None


def test_two_recoveries_at_once_are_counted() -> None:
    def at(second: int) -> datetime.datetime:
        return datetime.datetime(2026, 1, 1, 0, 0, second, tzinfo=datetime.timezone.utc)

    apart = [Spell(at(3), None), Spell(at(1), at(2))]
    assert overlapping(apart) == 0
    assert overlapping([*apart, Spell(at(4), at(5))]) == 1  # the second one has not ended
    assert overlapping([Spell(at(1), at(4)), Spell(at(3), at(5))]) == 1
