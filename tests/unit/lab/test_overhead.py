"""`paceline overhead`: its statistics, what it reads from samples, and nodes that do not answer."""

import asyncio
import random
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest

from paceline.contracts.batch import PROCESS_ROW, STATE_ROW, Batch, BatchKind, RowKind
from paceline.contracts.codes import DetailLevel
from paceline.contracts.commands import Command, CommandOutcome, CommandResult, is_signed
from paceline.contracts.detail import DetailReport
from paceline.lab.overhead import commands
from paceline.lab.overhead.report import as_object, lines, not_alternated
from paceline.lab.overhead.run import NotMeasured, Outcome, Overhead, Plan, Target
from paceline.lab.overhead.samples import Tracks, Unit, Window, pair_times
from paceline.lab.overhead.statistics import Finding, draw_blocks, estimate

KEY = b"a key of the whole cluster"
TARGET = Target("job", "a1", "llama", ("n1", "n2"), 4)
ROUNDS, FULL = DetailLevel.ROUNDS, DetailLevel.FULL


class TestStatistics:
    def test_the_interval_covers_the_truth_about_as_often_as_it_says(self) -> None:
        draw = random.Random(1)
        covered = 0
        for seed in range(200):
            pairs = [(1.0, 1.02 * (1 + draw.gauss(0, 0.01))) for _ in range(10)]
            found = estimate(pairs, seed)
            assert found is not None
            covered += found.low <= 1.02 <= found.high
        assert 176 <= covered <= 200

    def test_what_is_slower_is_found_and_what_is_alike_is_not(self) -> None:
        draw = random.Random(2)
        alike = [(1 + draw.gauss(0, 0.01), 1 + draw.gauss(0, 0.01)) for _ in range(12)]
        slower = [(base, raised * 1.05) for base, raised in alike]
        assert [estimate(pairs, 0).finding for pairs in (alike, slower)] == [  # type: ignore[union-attr]
            Finding.NO_DIFFERENCE_SEEN, Finding.SLOWER,
        ]  # fmt: skip

    def test_one_wild_pair_of_ten_moves_nothing(self) -> None:
        found = estimate([(1.0, 1.0)] * 9 + [(1.0, 50.0)], 0)
        assert found is not None
        assert (found.ratio, found.low, found.high) == (1.0, 1.0, 1.0)

    def test_same_seed_same_interval(self) -> None:
        pairs = [(1.0, 1 + place / 100) for place in range(9)]
        assert estimate(pairs, 3) == estimate(pairs, 3)

    def test_few_pairs_are_said_to_be_few(self) -> None:
        found = estimate([(1.0, 1.1)] * 5, 0)
        assert found is not None
        assert found.finding is Finding.TOO_FEW
        assert estimate([], 0) is estimate([(0.0, 1.0)], 0) is None

    def test_blocks_come_in_pairs_in_drawn_balanced_order(self) -> None:
        blocks = draw_blocks(ROUNDS, FULL, 11, 5)
        assert [block.pair for block in blocks] == [pair for pair in range(11) for _ in range(2)]
        firsts = Counter(block.level for block in blocks[::2])
        assert abs(firsts[ROUNDS] - firsts[FULL]) == 1
        assert draw_blocks(ROUNDS, FULL, 11, 5) == blocks != draw_blocks(ROUNDS, FULL, 11, 6)
        assert all({blocks[at].level, blocks[at + 1].level} == {ROUNDS, FULL} for at in range(0, 22, 2))


def batch(node: str, unix_s: float, step: int, age_ms: int, entered: int = 0, rank: int = 0) -> Batch:
    """One sample of one process; its own clock is 1000 s behind its node's."""
    process, state = np.zeros(1, PROCESS_ROW), np.zeros(1, STATE_ROW)
    process["rank"], process["step"], process["step_age_ms"] = rank, step, age_ms
    state["rank"], state["comm"], state["entered"] = rank, 7, entered
    return Batch(
        BatchKind.FRAMES, "job", "a1", node, 0, 1, 1, int((unix_s - 1000) * 1e9), int(unix_s * 1e9),
        {RowKind.PROCESS: process, RowKind.STATE: state},
    )  # fmt: skip


class TestSamples:
    def test_steps_are_timed_between_their_ends(self) -> None:
        tracks = Tracks("job", "a1")
        for second in range(2000, 2020):  # a step of 0.4 s; the age is that of the last one
            done = int((second - 2000) / 0.4)
            tracks.add(batch("n1", second, done + 1, int(1000 * (second - 2000 - done * 0.4)) + 1))
        time = tracks.time_of({"n1": Window(2002, 2018)})
        assert tracks.unit is Unit.STEP
        assert time == pytest.approx(0.4, rel=0.01)
        assert tracks.time_of({"n1": Window(2002, 2002.5)}) is None
        assert tracks.time_of({"n2": Window(2002, 2018)}) is None  # no answer of its node, no window

    def test_without_steps_rounds_are_timed(self) -> None:
        tracks = Tracks("job", "a1")
        for second in range(2000, 2020):
            tracks.add(batch("n1", second, 0, 0, entered=50 * second))
        assert tracks.unit is Unit.ROUND
        assert tracks.time_of({"n1": Window(2000, 2020)}) == pytest.approx(0.02)

    def test_the_median_process_speaks_for_the_block(self) -> None:
        tracks = Tracks("job", "a1")
        for rank, per_s in enumerate((50, 50, 1000)):
            for second in range(2000, 2010):
                tracks.add(batch("n1", second, 0, 0, entered=per_s * second, rank=rank))
        assert tracks.time_of({"n1": Window(2000, 2010)}) == pytest.approx(0.02)

    def test_other_attempts_are_no_news(self) -> None:
        tracks = Tracks("job", "a2")
        tracks.add(batch("n1", 2000, 5, 1))
        assert not tracks.steps

    def test_a_pair_needs_both_of_its_blocks(self) -> None:
        times = [
            (0, True, 1.0),
            (0, False, 2.0),
            (1, True, None),
            (1, False, 2.0),
            (2, False, 4.0),
            (2, True, 3.0),
        ]
        assert pair_times(times) == [(1.0, 2.0), (3.0, 4.0)]


class FakeClock:
    """Jumps over sleeps."""

    def __init__(self) -> None:
        self.now_s = 5000.0

    def monotonic_ns(self) -> int:
        return int(self.now_s * 1e9)

    def unix_s(self) -> float:
        return self.now_s

    async def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        await asyncio.sleep(0)


class FakeWire:
    """Two nodes whose job does 100 rounds a second, `slower` times as long with more detail."""

    def __init__(self, clock: FakeClock, slower: float = 1.0, silent: Sequence[str] = ()) -> None:
        self.clock = clock
        self.sent: list[Command] = []
        self._slower = slower
        self._silent = silent
        self._level, self._since, self._done = "rounds", clock.now_s, 0.0
        self._batches: list[Batch] = []

    async def send(self, commands: Sequence[Command]) -> None:
        self._advance()
        self.sent += commands
        self._level = commands[0].arguments["level"]

    def _advance(self) -> None:
        """Samples once a second since the last change."""
        at = self._since
        per_s = 100 / (self._slower if self._level == "full" else 1.0)
        while at + 1 <= self.clock.now_s:
            at, self._done = at + 1, self._done + per_s
            self._batches += [batch(node, at, 0, 0, entered=int(self._done)) for node in TARGET.nodes]
        self._since = at

    async def answers(self, ids: Sequence[str], limit_s: float) -> dict[str, CommandResult]:
        level = DetailLevel[self._level.upper()]
        before = ROUNDS if level is FULL else FULL
        report = DetailReport(2, level, 2, before, 2, 2, 0, 2 if before is FULL else 0, 0, 5)
        return {
            each.id: CommandResult(
                each.id, each.node, each.job, each.attempt, each.generation, CommandOutcome.DONE,
                report.text(), self.clock.now_s,
            )
            for each in self.sent if each.id in ids and each.node not in self._silent
        }  # fmt: skip

    def collect(self, tracks: Tracks) -> None:
        self._advance()
        for one in self._batches:
            tracks.add(one)
        self._batches.clear()


async def measure(wire: FakeWire, clock: FakeClock, pairs: int = 8) -> Outcome:
    plan = Plan(ROUNDS, FULL, pairs, 15.0, 1)
    return await Overhead(wire, TARGET, plan, KEY, clock, "test", lambda text: None).run()


class TestRun:
    async def test_a_slower_level_is_measured_and_the_job_put_back(self) -> None:
        clock = FakeClock()
        wire = FakeWire(clock, slower=1.1)
        outcome = await measure(wire, clock)
        assert outcome.estimate is not None
        assert outcome.estimate.finding is Finding.SLOWER
        assert outcome.estimate.ratio == pytest.approx(1.1, rel=0.01)
        assert all(is_signed(command, KEY) for command in wire.sent)
        assert {command.node for command in wire.sent} == set(TARGET.nodes)
        assert len({command.id for command in wire.sent}) == len(wire.sent) == 2 * 17
        assert [command.arguments["level"] for command in wire.sent[-2:]] == ["rounds", "rounds"]
        assert f"ratio {outcome.estimate.ratio:.4f}" in lines(outcome)[1]
        assert as_object(outcome)["finding"] == "slower"
        said = not_alternated(outcome)
        assert any(text.startswith("kernel events were off in up to 4 of 4") for text in said)

    async def test_levels_end_by_themselves_soon_after_their_block(self) -> None:
        clock = FakeClock()
        wire = FakeWire(clock)
        began = clock.now_s
        await measure(wire, clock, pairs=1)
        assert [round(command.expires_unix_s - began) for command in wire.sent[::2]] == [45, 60, 31]

    async def test_nodes_that_do_not_answer_end_it_and_it_is_put_back_all_the_same(self) -> None:
        clock = FakeClock()
        wire = FakeWire(clock, silent=TARGET.nodes)
        with pytest.raises(NotMeasured, match="n1: no answer"):
            await measure(wire, clock)
        assert wire.sent[-1].arguments["level"] == "rounds"

    async def test_one_that_does_not_answer_is_left_out_and_named(self) -> None:
        clock = FakeClock()
        outcome = await measure(FakeWire(clock, slower=1.1, silent=["n2"]), clock)
        assert outcome.estimate is not None
        assert any(text.startswith("node n2: no answer") for text in not_alternated(outcome))

    async def test_it_is_put_back_when_it_is_interrupted(self) -> None:
        clock = FakeClock()
        wire = FakeWire(clock)

        async def interrupted(seconds: float) -> None:
            raise asyncio.CancelledError

        clock.sleep = interrupted  # type: ignore[method-assign]
        with pytest.raises(asyncio.CancelledError):
            await measure(wire, clock)
        assert wire.sent[-1].arguments["level"] == "rounds"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--pairs", "0"], "expected 1 to 100"),
        (["--block", "nan"], "expected 4 to 300 seconds"),
        (["--level", "edges", "--base", "edges"], "nothing to compare"),
    ],
)
def test_wrong_words(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    import argparse

    parser = argparse.ArgumentParser()
    commands.add(parser.add_subparsers())
    assert commands.run(parser.parse_args(["overhead", "job", *words])) == 2
    assert said in capsys.readouterr().err
