"""Devices of a node inside a running agent: findings become health events of ranks, jobs and the node."""

import json
import os
import shutil
import sys
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from paceline.agent import devices
from paceline.agent.devices import PER_MINUTE_MAX
from paceline.agent.findings import REPEAT_S, TOLD_MAX, Found, Told
from paceline.agent.nccl_dumps import DumpLook
from paceline.contracts.registry import HealthKind

FAKE = Path(__file__).with_name("fake_nvml")
Eventually = Callable[..., Awaitable[Any]]


@pytest.fixture
def root(agent_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine of two GPUs and one port, whose kernel writes a file."""
    monkeypatch.setattr(devices, "KERNEL_POLL_S", 0.05)
    monkeypatch.setattr(devices, "PORTS_POLL_S", 0.05)
    monkeypatch.setattr(devices, "HELD_S", 0.3)
    root = agent_folder / "root"
    for name in ("0000:9b:00.0", "0000:9c:00.0"):
        (root / "sys/bus/pci/drivers/nvidia" / name).mkdir(parents=True)
    port = root / "sys/class/infiniband/mlx5_0/ports/1"
    (port / "counters").mkdir(parents=True)
    (port / "state").write_text("4: ACTIVE\n")
    (port / "rate").write_text("400 Gb/sec (4X NDR)\n")
    (port / "counters/link_downed").write_text("0\n")
    boot = root / "proc/sys/kernel/random"
    boot.mkdir(parents=True)
    (boot / "boot_id").write_text("boot-1\n")
    log = root / "var/log/kern.log"
    log.parent.mkdir(parents=True)
    log.write_text("")
    return root


def say(root: Path, text: str) -> None:
    with (root / "var/log/kern.log").open("a") as file:
        file.write(f"Nov 30 06:00:00 n1 kernel: {text}\n")


def nvml(world: Path, **content: Any) -> tuple[str, ...]:
    """The command of a reader whose NVML is `content`."""
    world.write_text(json.dumps(content))
    path = f"PYTHONPATH={FAKE}:{os.environ.get('PYTHONPATH', '')}"
    return ("env", path, f"FAKE_NVML={world}", sys.executable, "-m", "paceline.agent.gpu_reader")


def events(publisher: Any, kind: HealthKind) -> list[tuple[str, int | None, int | None]]:
    return [(event.job, event.rank, event.gpu) for event in publisher.health(kind)]


class TestAgent:
    async def test_an_xid_of_the_log_names_the_rank_on_that_gpu(
        self, root: Path, start_agent: Any, start_rank: Any, publisher: Any, eventually: Eventually
    ) -> None:
        agent = await start_agent()
        await start_rank(0)
        await eventually(lambda: publisher.job() is not None and agent.devices._position.offset == 0)
        say(root, "NVRM: Xid (PCI:0000:9b:00): 79, GPU has fallen off the bus.")
        await eventually(lambda: len(publisher.health(HealthKind.XID)) == 2)
        assert events(publisher, HealthKind.XID) == [("", None, 0), ("job", 0, 0)]
        event = publisher.health(HealthKind.XID)[1]
        assert (event.code, event.attempt, event.node) == (79, "a1", "n1")
        assert "fallen off the bus" in event.message

    async def test_nvml_and_the_log_tell_of_one_xid_once_and_the_log_says_more(
        self, root: Path, start_agent: Any, publisher: Any, eventually: Eventually, agent_folder: Path
    ) -> None:
        world = agent_folder / "world.json"
        command = nvml(world, gpus=[{}, {}])
        agent = await start_agent(gpu_command=command, watch_gpus=True, gpu_interval_s=0.05)
        await eventually(lambda: agent.devices._position.offset == 0 and agent.devices._records)
        nvml(world, gpus=[{}, {}], xids=[[1, 95]])
        say(root, "NVRM: Xid (PCI:0000:9c:00): 95, Uncontained ECC error")
        await eventually(lambda: agent.devices._told.repeats)
        (event,) = publisher.health(HealthKind.XID)
        assert (event.gpu, event.code, event.message) == (1, 95, "Uncontained ECC error")

    async def test_what_was_told_is_not_told_again_by_the_next_agent(
        self, root: Path, start_agent: Any, publisher: Any, eventually: Eventually
    ) -> None:
        port = root / "sys/class/infiniband/mlx5_0/ports/1"
        agent = await start_agent()
        await eventually(lambda: agent.devices._ports and agent.devices._position.offset == 0)
        say(root, "NVRM: Xid (PCI:0000:9b:00): 48, double bit")
        (port / "state").write_text("1: DOWN\n")
        await eventually(lambda: publisher.health(HealthKind.XID) and publisher.health(HealthKind.LINK))
        await agent.stop()
        say(root, "NVRM: Xid (PCI:0000:9c:00): 79, while nobody looked")
        agent = await start_agent()
        await eventually(lambda: len(publisher.health(HealthKind.XID)) == 2)
        (port / "state").write_text("4: ACTIVE\n")
        await eventually(lambda: publisher.health(HealthKind.LINK_BACK))
        assert [event.code for event in publisher.health(HealthKind.XID)] == [48, 79]
        assert len(publisher.health(HealthKind.LINK)) == 1

    async def test_a_gpu_that_blocks_for_ever_holds_nothing_up(
        self,
        root: Path,
        start_agent: Any,
        start_rank: Any,
        publisher: Any,
        eventually: Eventually,
        agent_folder: Path,
    ) -> None:
        hang = {"hang": 0, "hang_at": "nvmlDeviceGetUtilizationRates"}
        command = nvml(agent_folder / "world.json", gpus=[{}, {}], **hang)
        agent = await start_agent(
            gpu_command=command, watch_gpus=True, gpu_interval_s=0.05, gpu_timeout_s=1.0
        )
        await start_rank(0)
        await eventually(lambda: publisher.health(HealthKind.GPU_SILENT))
        samples = agent.sampler.samples
        await eventually(lambda: agent.sampler.samples > samples + 3)
        assert ("", None, 0) in events(publisher, HealthKind.GPU_SILENT)
        await agent.stop()  # within the time of a test, though a child hangs

    async def test_a_process_killed_for_memory(
        self, root: Path, start_agent: Any, start_rank: Any, publisher: Any, eventually: Eventually
    ) -> None:
        agent = await start_agent()
        rank = await start_rank(1)
        await eventually(lambda: publisher.job() is not None and agent.devices._position.offset == 0)
        say(root, f"Out of memory: Killed process {rank.pid} (python) total-vm:1kB")
        await eventually(lambda: len(publisher.health(HealthKind.HOST_MEMORY)) == 2)
        (event,) = [each for each in publisher.health(HealthKind.HOST_MEMORY) if each.job]
        assert (event.rank, event.pid) == (1, rank.pid)

    async def test_sysfs_that_blocks_is_said_once(
        self, root: Path, start_agent: Any, publisher: Any, eventually: Eventually,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:  # fmt: skip
        go_on = threading.Event()
        monkeypatch.setattr(devices, "read_ports", lambda root: go_on.wait(30) and {})
        agent = await start_agent(gpu_timeout_s=0.2)
        await eventually(lambda: publisher.health(HealthKind.LINK_ERRORS))
        samples = agent.sampler.samples
        await eventually(lambda: agent.sampler.samples > samples + 5)
        assert len(publisher.health(HealthKind.LINK_ERRORS)) == 1
        assert sum(thread.name == "paceline-aside" for thread in threading.enumerate()) == 1
        go_on.set()

    async def test_a_machine_without_ports_and_dumps_asks_no_thread(
        self, root: Path, start_agent: Any, start_rank: Any, publisher: Any, eventually: Eventually,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:  # fmt: skip
        shutil.rmtree(root / "sys/class/infiniband")
        asked: list[str] = []

        def ask(what: str, answer: Any) -> Any:
            asked.append(what)
            return answer

        monkeypatch.setattr(devices, "read_ports", lambda root: ask("ports", {}))
        agent = await start_agent(orders_s=0.05)
        monkeypatch.setattr(agent._nccl_dumps, "read", lambda *_: ask("dumps", DumpLook()))
        await start_rank(0)
        await eventually(lambda: publisher.batches())
        samples = agent.sampler.samples
        await eventually(lambda: agent.sampler.samples > samples + 3)
        assert asked == []
        (root / "sys/class/infiniband").mkdir()  # an adapter whose driver is loaded later
        await eventually(lambda: "ports" in asked)

    async def test_a_storm_is_bounded_and_counted(
        self, root: Path, start_agent: Any, publisher: Any, eventually: Eventually
    ) -> None:
        agent = await start_agent()
        for code in range(PER_MINUTE_MAX + 30):
            agent.devices.tell(Found(HealthKind.XID, "kernel_xid", "x", gpu=0, code=code))
        await eventually(lambda: len(publisher.health(HealthKind.XID)) == PER_MINUTE_MAX)
        assert agent.drops["device_findings"] == 30

    async def test_a_watcher_that_fails_does_not_end_the_agent(
        self, root: Path, start_agent: Any, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def broken(*_: object) -> Any:
            raise RuntimeError("broken")

        monkeypatch.setattr(devices, "judge_ports", broken)
        agent = await start_agent()
        await eventually(lambda: agent.drops["device_watch_failed"])
        assert agent.readiness().ready

    @pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"boot": "boot-1"}', b"\xff"])
    async def test_a_broken_state_file_is_begun_anew(
        self, content: bytes, root: Path, agent_folder: Path, start_agent: Any, eventually: Eventually
    ) -> None:
        (agent_folder / "devices.json").write_bytes(content)
        agent = await start_agent()
        await eventually(lambda: agent.devices._ports)


class TestTold:
    def test_the_same_again_is_no_news_until_later(self) -> None:
        told = Told()
        xid = Found(HealthKind.XID, "nvml_xid", "", gpu=1, code=79)
        other = Found(HealthKind.XID, "kernel_xid", "from the log", gpu=1, code=79)
        assert told.takes(xid, 1000.0)
        assert not told.takes(other, 999.5)  # the log dates it a little earlier
        assert told.takes(Found(HealthKind.XID, "", "", gpu=2, code=79), 1000.0)
        assert told.takes(xid, 1000.0 + REPEAT_S)
        assert told.repeats == 1

    def test_memory_is_bounded(self) -> None:
        told = Told()
        for code in range(TOLD_MAX + 10):
            told.takes(Found(HealthKind.XID, "", "", code=code), 1.0)
        assert len(told.times) == TOLD_MAX
