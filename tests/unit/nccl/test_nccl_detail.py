"""Detail of plugins that a real agent speaks to: raised where an operation stands still, or by command."""

import os
import struct
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from paceline.agent.app import AgentApp
from paceline.agent.collecting import Answer
from paceline.agent.detail import Why
from paceline.agent.evidence import EvidenceApp
from paceline.contracts.codes import DetailLevel
from paceline.contracts.commands import Command, CommandKind, CommandOutcome, CommandResult, sign
from paceline.contracts.detail import KERNEL_EVENTS, STEP_EVENTS, DetailReport
from paceline.contracts.layout import CONTROL, CONTROL_BYTES
from paceline.runtime.clock import SystemClock
from paceline.runtime.settings import KafkaSettings
from tests.unit.agent.conftest import MemoryPublisher, StartAgent
from tests.unit.nccl.calls import Trace
from tests.unit.nccl.conftest import NcclProcess, StartNccl

STALL_S = 1.0  # a test that is held up for longer looks like a job that stands still
HOLD_S = 1.0
KEY = b"a key of the whole cluster"
ATTEMPT = ("job", "a1")
Eventually = Callable[..., Awaitable[Any]]


@pytest.fixture
async def agent(request: pytest.FixtureRequest, start_agent: StartAgent) -> AgentApp:
    """An agent with its own rule, or without it where the parameter says `rounds`."""
    level = getattr(request, "param", "edges")
    return await start_agent(suspect_s=STALL_S, detail_hold_s=HOLD_S, detail_level=level)


class Rank:
    """One plugin with a communicator of two."""

    def __init__(self, start: StartNccl, agent: AgentApp) -> None:
        self.process: NcclProcess = start(
            PACELINE_AGENT_SOCKET=str(agent._settings.socket), PACELINE_ATTEMPT="a1", RANK="0",
            WORLD_SIZE="2", LOCAL_RANK="0", PACELINE_NCCL_BUDGET_PERCENT="100",
        )  # fmt: skip
        self.trace = Trace()
        self.context = self.trace.init(nranks=2, rank=0)

    def run(self) -> int:
        """One more operation; the events that are asked for behind it."""
        self.trace.run(self.context, rank=0, nranks=2)
        self.process.make(self.trace)
        return self.process.mask


async def test_what_stands_still_raises_and_what_moves_again_is_seen_for_a_while(
    start_nccl: StartNccl, agent: AgentApp, eventually: Eventually
) -> None:
    rank = Rank(start_nccl, agent)
    assert not rank.run() & (STEP_EVENTS | KERNEL_EVENTS)
    detail = agent.sampler.detail
    hanging = rank.trace.enter(rank.context)
    rank.process.make(rank.trace)
    await eventually(lambda: detail.level_of(ATTEMPT)[0] == DetailLevel.EDGES)
    rank.trace.launch_kernels(hanging)
    rank.trace.begin_task(hanging, channels=1)
    rank.trace.end_task(hanging)
    rank.process.make(rank.trace)
    assert rank.run() & (STEP_EVENTS | KERNEL_EVENTS) == STEP_EVENTS  # kernels are not asked for by itself
    # The job goes on: with no end to be seen, an operation is open until the next one is called.
    await eventually(lambda: not rank.run() & STEP_EVENTS, 20)
    assert detail.level_of(ATTEMPT) == (DetailLevel.ROUNDS, Why.QUIET)
    assert detail.raised == {Why.STANDS_STILL.value: 1, "back": 1}


@pytest.fixture
def commanded(agent: AgentApp, publisher: MemoryPublisher) -> EvidenceApp:
    """What reads commands beside the agent; Kafka is not there."""
    kafka = KafkaSettings(bootstrap="127.0.0.1:1", request_timeout_s=1.0)
    return EvidenceApp(agent._settings, kafka, KEY, agent, publisher, SystemClock())


def command(name: str, level: str, seconds: float) -> Command:
    expires = SystemClock().unix_s() + seconds
    plain = Command(name, CommandKind.SET_DETAIL, "n1", *ATTEMPT, 0, expires, arguments={"level": level})
    return sign(plain, KEY)


@pytest.mark.parametrize("agent", ["rounds"], indirect=True)
async def test_a_command_raises_until_it_expires_and_its_answer_says_what_was_before(
    start_nccl: StartNccl,
    agent: AgentApp,
    commanded: EvidenceApp,
    publisher: MemoryPublisher,
    eventually: Eventually,
) -> None:
    rank = Rank(start_nccl, agent)
    rank.run()
    await eventually(lambda: agent.roster.living(ATTEMPT))
    assert commanded.take(command("c1", "full", 30)) is Answer.ACCEPT
    await eventually(lambda: rank.run() & (STEP_EVENTS | KERNEL_EVENTS) == STEP_EVENTS | KERNEL_EVENTS)
    samples = agent.sampler.samples
    await eventually(lambda: agent.sampler.samples > samples + 1)
    assert commanded.take(command("c2", "full", 0.5)) is Answer.ACCEPT
    results = await eventually(lambda: len(found := publisher.values(CommandResult)) == 2 and found)
    assert {result.outcome for result in results} == {CommandOutcome.DONE}
    first, second = (DetailReport.parse(result.message) for result in results)
    assert first is not None
    assert second is not None
    assert (first.processes, first.level, first.before) == (1, DetailLevel.FULL, DetailLevel.ROUNDS)
    assert (second.before_processes, second.before) == (1, DetailLevel.FULL)
    assert (second.plugin, second.tier, second.kernels, second.steps) == (1, 2, 1, 1)
    await eventually(lambda: not rank.run() & (STEP_EVENTS | KERNEL_EVENTS), 20)
    assert agent.sampler.detail.level_of(ATTEMPT) == (DetailLevel.ROUNDS, Why.OFF)


async def test_a_command_for_an_attempt_that_is_not_here_is_refused(
    commanded: EvidenceApp, publisher: MemoryPublisher, eventually: Eventually
) -> None:
    assert commanded.take(command("c1", "full", 30)) is Answer.NO_JOB
    (result,) = await eventually(lambda: publisher.values(CommandResult))
    assert (result.outcome, result.message) == (CommandOutcome.REFUSED, "detail was not set: no_job")


def test_detail_of_an_agent_that_died_is_taken_back(start_nccl: StartNccl) -> None:
    process, trace = start_nccl(), Trace()
    context = trace.init()
    trace.run(context)
    process.make(trace)
    process.request(DetailLevel.FULL)
    trace.run(context)
    process.make(trace)
    assert process.mask & KERNEL_EVENTS
    control = process.descriptor("paceline-control", os.O_RDWR)
    assert control is not None
    assert os.fstat(control).st_size == CONTROL_BYTES
    os.pwrite(control, struct.pack("<Q", 1), CONTROL.field("agent_beat_ns").offset)
    os.close(control)
    trace.run(context)
    process.make(trace)
    assert not process.mask & (KERNEL_EVENTS | STEP_EVENTS)
