"""Alternates levels on a live job through signed commands, and puts the job back however it ends."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from paceline.contracts.codes import DetailLevel
from paceline.contracts.commands import Command, CommandKind, CommandOutcome, CommandResult, sign
from paceline.contracts.detail import DetailReport
from paceline.contracts.ids import derived_id
from paceline.lab.overhead.samples import Tracks, Window, pair_times
from paceline.lab.overhead.statistics import Block, Estimate, draw_blocks, estimate
from paceline.runtime.clock import Clock

ANSWER_S_MAX = 15.0
SETTLE_S = 2.0  # a plugin looks at its level when a group of calls ends
SPARE_S = 30.0  # that a level outlives its block, should we die
MISSES_MAX = 2  # blocks in a row that a node did not answer for
BACK_S = 1.0


class NotMeasured(RuntimeError):
    """The message says why and what to do."""


@dataclass(frozen=True)
class Target:
    """One attempt of a job and the nodes where its ranks live."""

    job: str
    attempt: str
    name: str
    nodes: tuple[str, ...]
    ranks: int


@dataclass(frozen=True)
class Plan:
    base: DetailLevel
    raised: DetailLevel
    pairs: int
    block_s: float
    seed: int


class Wire(Protocol):
    """How commands go out, and answers and samples come in."""

    async def send(self, commands: Sequence[Command]) -> None: ...

    async def answers(self, ids: Sequence[str], limit_s: float) -> dict[str, CommandResult]:
        """Of those that have come within the limit, by command."""
        ...

    def collect(self, tracks: Tracks) -> None:
        """Hand over the samples since the last call."""
        ...


@dataclass
class Outcome:
    """What was measured. `reports` are (level that was asked for, what was in force, by node)."""

    target: Target
    plan: Plan
    tracks: Tracks
    estimate: Estimate | None = None
    times: list[tuple[Block, float | None]] = field(default_factory=list)
    reports: list[tuple[Block, list[DetailReport]]] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)  # node: its words

    @property
    def pairs(self) -> list[tuple[float, float]]:
        return pair_times((block.pair, block.is_base, time) for block, time in self.times)


class Overhead:
    """One measurement. `name` makes the ids of its commands its own."""

    def __init__(
        self, wire: Wire, target: Target, plan: Plan, key: bytes, clock: Clock, name: str,
        say: Callable[[str], None],
    ) -> None:  # fmt: skip
        self._wire = wire
        self._target = target
        self._plan = plan
        self._key = key
        self._clock = clock
        self._name = name
        self._say = say
        self._outcome = Outcome(target, plan, Tracks(target.job, target.attempt))
        self._generation = 0

    async def run(self) -> Outcome:
        """NotMeasured where the nodes do not answer. The job is put back in any case."""
        blocks = draw_blocks(self._plan.base, self._plan.raised, self._plan.pairs, self._plan.seed)
        began: list[tuple[Block, dict[str, float]]] = []
        misses = 0
        try:
            for number, block in enumerate(blocks):
                answers = await self._set(block.level, self._plan.block_s + SPARE_S)
                self._note(began, answers)
                began.append((block, {node: result.at_unix_s for node, result in answers.items()}))
                misses = 0 if answers else misses + 1
                if misses >= MISSES_MAX:
                    raise NotMeasured(self._silence())
                self._say(f"block {number + 1} of {len(blocks)}: {block.level.name.lower()}")
                await self._clock.sleep(self._plan.block_s)
                self._wire.collect(self._outcome.tracks)
        finally:
            answers = await self._set(DetailLevel.ROUNDS, BACK_S)
        self._note(began, answers)
        self._wire.collect(self._outcome.tracks)
        ends = [times for _, times in began[1:]]
        ends.append({node: result.at_unix_s for node, result in answers.items()})
        for (block, begins), following in zip(began, ends, strict=True):
            windows = {
                node: Window(begin + SETTLE_S, following.get(node, begin + self._plan.block_s))
                for node, begin in begins.items()
            }
            self._outcome.times.append((block, self._outcome.tracks.time_of(windows)))
        self._outcome.estimate = estimate(self._outcome.pairs, self._plan.seed)
        return self._outcome

    async def _set(self, level: DetailLevel, seconds: float) -> dict[str, CommandResult]:
        """The results of the nodes that did it, by node."""
        self._generation += 1
        expires = self._clock.unix_s() + seconds
        commands = [
            sign(
                Command(
                    derived_id("cmd", self._name, self._generation, node), CommandKind.SET_DETAIL, node,
                    self._target.job, self._target.attempt, self._generation, expires,
                    arguments={"level": level.name.lower(), "why": "overhead"},
                ),
                self._key,
            )
            for node in self._target.nodes
        ]  # fmt: skip
        await self._wire.send(commands)
        results = await self._wire.answers([command.id for command in commands], ANSWER_S_MAX)
        done: dict[str, CommandResult] = {}
        for command in commands:
            result = results.get(command.id)
            if result is not None and result.outcome is CommandOutcome.DONE:
                done[command.node] = result
            else:
                self._outcome.refused[command.node] = result.message if result else "no answer"
        return done

    def _note(self, began: Sequence[tuple[Block, object]], answers: dict[str, CommandResult]) -> None:
        """An answer tells what was in force during the block before it."""
        reports = [DetailReport.parse(result.message) for result in answers.values()]
        if began:
            self._outcome.reports.append((began[-1][0], [report for report in reports if report is not None]))

    def _silence(self) -> str:
        words = "; ".join(f"{node}: {text}" for node, text in list(self._outcome.refused.items())[:4])
        return (
            f"no node carries the commands out ({words}); agents need the command key "
            "(PACELINE_COMMAND_KEY) and the job must be running"
        )
