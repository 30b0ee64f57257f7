"""From a line of the kernel's log to the verdict: agent, its events as JSON, localizer; without Kafka."""

import asyncio
import os
import sys
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paceline.agent import devices
from paceline.agent.app import AgentApp
from paceline.agent.delivery import Event, Frame
from paceline.agent.settings import AgentSettings
from paceline.contracts.registry import HealthEvent
from paceline.contracts.schemas import dump_json, load_json
from paceline.contracts.verdicts import ActionKind, Owner, RootKind, SubReason, Verdict, VerdictClass
from paceline.localizer.core import LocalizerCore
from paceline.localizer.memory import Registry
from paceline.runtime.clock import SystemClock
from tests.unit.analysis.injections import inject
from tests.unit.analysis.simulated_job import ATTEMPT, JOB, Shape, SimulatedJob

RANK_PROCESS = Path(__file__).parents[2] / "unit/agent/rank_process.py"
WORLD = 8
Eventually = Callable[..., Awaitable[Any]]


class Memory:
    """A Kafka that acknowledges at once."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def publish(self, records: Sequence[Event | Frame]) -> None:
        self.events += [record for record in records if isinstance(record, Event)]

    @property
    def health(self) -> list[HealthEvent]:
        return [event.value for event in self.events if isinstance(event.value, HealthEvent)]


def lay_out(root: Path) -> None:
    for gpu in range(WORLD):
        (root / f"sys/bus/pci/drivers/nvidia/0000:{0x10 + gpu:02x}:00.0").mkdir(parents=True)
    port = root / "sys/class/infiniband/mlx5_0/ports/1"
    port.mkdir(parents=True)
    (port / "state").write_text("4: ACTIVE\n")
    (port / "rate").write_text("400 Gb/sec (4X NDR)\n")
    (root / "var/log").mkdir(parents=True)
    (root / "var/log/kern.log").write_text("")


async def judge_with(
    fault: str, do: Callable[[Path, int], None], eventually: Eventually
) -> tuple[Verdict, int]:
    """The verdict on a hang of kind `fault` after `do(root, rank)` happened on the node of its first rank."""
    injection = inject(fault, SimulatedJob(Shape(4, 2, 1), 3))
    rank = injection.ranks[0]
    record, nodes, comms = injection.job.registry()
    (node,) = [each.node for each in nodes if rank in {member.rank for member in each.ranks}]
    folder = Path(tempfile.mkdtemp(prefix="pa-"))
    lay_out(folder / "root")
    settings = AgentSettings(
        socket=folder / "agent.sock", state_dir=folder, node=node, interval_s=0.1, drain_s=0.5,
        root=folder / "root", watch_gpus=False,
    )  # fmt: skip
    kafka = Memory()
    agent = AgentApp(settings, SystemClock(), kafka)
    await agent.start()
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(RANK_PROCESS), str(settings.socket), JOB, ATTEMPT, str(rank), str(WORLD),
        str(os.getuid()), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        await eventually(lambda: agent.roster.living_count == 1 and agent.devices._ports)
        await eventually(lambda: agent.devices._position.offset == 0)
        do(folder / "root", rank)
        await eventually(lambda: any(event.job == JOB for event in kafka.health))
        found = list(kafka.health)
    finally:
        process.kill()
        await process.wait()
        await agent.stop()
    core = LocalizerCore()
    items: list[Registry] = [record, *nodes, *comms]
    for item in items:
        core.note_registry(item)
    for event in found:
        core.note_health(load_json(HealthEvent, dump_json(event)), 0.0)
    at_ns = int(SystemClock().unix_s() * 1e9)
    batches = [replace(batch, sampled_unix_ns=at_ns) for batch in injection.job.batches(2)]
    published = [out for batch in batches for out in core.apply(batch)]
    return published[-1].record.verdict, rank


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "KERNEL_POLL_S", 0.05)
    monkeypatch.setattr(devices, "PORTS_POLL_S", 0.05)


def xid(root: Path, gpu: int, code: int) -> None:
    with (root / "var/log/kern.log").open("a") as file:
        file.write(f"Nov 30 06:00:00 n kernel: NVRM: Xid (PCI:0000:{0x10 + gpu:02x}:00): {code}, pid=1, x\n")


async def test_an_xid_on_the_gpu_of_the_rank_that_is_missing(eventually: Eventually) -> None:
    verdict, rank = await judge_with("h1", lambda root, rank: xid(root, rank, 79), eventually)
    (root,) = verdict.roots
    assert (verdict.verdict_class, verdict.sub_reason) == (VerdictClass.H3, SubReason.HARDWARE_EVENT)
    assert (root.kind, root.rank, root.gpu) == (RootKind.GPU, rank, rank)
    assert (verdict.owner, verdict.action.kind) == (Owner.GPU, ActionKind.REPLACE_NODE)
    assert any("XID 79" in item.statement for item in verdict.evidence)


async def test_an_xid_on_the_gpu_of_a_victim_accuses_nobody(eventually: Eventually) -> None:
    verdict, rank = await judge_with("h1", lambda root, rank: xid(root, (rank + 1) % WORLD, 79), eventually)
    assert verdict.verdict_class is VerdictClass.H1
    assert [root.rank for root in verdict.roots] == [rank]


async def test_a_port_that_goes_down_does_not_explain_who_never_entered(eventually: Eventually) -> None:
    def down(root: Path, rank: int) -> None:
        (root / "sys/class/infiniband/mlx5_0/ports/1/state").write_text("1: DOWN\n")

    verdict, rank = await judge_with("h1", down, eventually)
    assert (verdict.verdict_class, verdict.owner) != (VerdictClass.H3, Owner.FABRIC)
    assert [root.rank for root in verdict.roots] == [rank]
    verdict, _ = await judge_with("h3", down, eventually)
    assert (verdict.sub_reason, verdict.owner) == (SubReason.HARDWARE_EVENT, Owner.FABRIC)
    assert verdict.action.kind is ActionKind.NETWORK_TICKET
