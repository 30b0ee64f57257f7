"""Ring and tree order of an NCCL job: plugins and a log as NCCL writes it, the agent, the judge.

Nobody but the log knows of the links over NVLink: with them a stuck link can be named, without them not."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paceline.agent.app import AgentApp
from paceline.agent.orders import find_made
from paceline.analysis.adapters.prefixes import read_line
from paceline.analysis.builder import build_evidence
from paceline.analysis.facts import Origin, Speaker
from paceline.analysis.judge import judge
from paceline.analysis.order_log import OrderLog
from paceline.analysis.policy import JudgePolicy
from paceline.contracts.batch import RowKind
from paceline.contracts.registry import CommunicatorRecord, NodeRecord
from paceline.contracts.verdicts import RootKind, Verdict, VerdictClass
from tests.unit.agent.conftest import MemoryPublisher, StartAgent
from tests.unit.analysis.nccl_dumps import graphs_xml, topology_xml
from tests.unit.nccl.calls import Operation, Trace
from tests.unit.nccl.conftest import STALL_S, NcclProcess, StartNccl

RING = (0, 3, 1, 4, 2, 5)
OVER_NVLINK = {(0, 3), (2, 5)}
PAIRS = {tail: (tail, head) for tail, head in OVER_NVLINK}  # by the rank that dumps their graphs
LINKS = list(zip(RING, (*RING[1:], RING[0]), strict=True))
HASH = 0xC0FFEE
STEPS = 8
CARRIED = {(3, 1): 6, (1, 4): 5, (4, 2): 3, (5, 0): 4}  # slices of each link when the ring stood still
Eventually = Callable[..., Awaitable[Any]]


def nccl_log(rank: int, pid: int, order: Sequence[int] = RING) -> str:
    """What NCCL 2.28 writes while rank `rank` makes the communicator, and lines that are none of it."""
    at = list(order).index(rank)
    prev, following = order[at - 1], order[(at + 1) % len(order)]
    up, down = rank - 1, rank + 1 if rank + 1 < len(order) else -1
    head = f"node-{rank}:{pid}:{pid + 7} [0] NCCL INFO "
    init = f"comm 0x55aa{rank:04x} rank {rank} nranks {len(order)} cudaDev 0 nvmlDev 0 busId 9b000"
    lines = [
        f"ncclCommInitRankConfig {init} commId 0x{HASH:x} - Init START",
        *(f"Ring {channel:02d} : {prev} -> {rank} -> {following}" for channel in (0, 1)),
        f"Trees [0] {down}/-1/-1->{rank}->{up} [1] {down}/-1/-1->{rank}->{up}",
        f"Channel 00/0 : {rank}[0] -> {following}[0] via P2P/CUMEM",
        f"ncclCommInitRankConfig {init} commId 0x{HASH:x} - Init COMPLETE",
    ]
    if rank == 0:
        lines.insert(1, "Channel 00/02 :" + "".join(f" {one:3d}" for one in order))
    return "".join(f"{head}{line}\nstep {line[:3]}\n" for line in lines)


class Job:
    """Six ranks on one machine, a process each; those that share an NVLink have no proxies between them."""

    def __init__(
        self, start: StartNccl, folder: Path, dumps: Mapping[int, Mapping[str, str]] | None = None
    ) -> None:
        """`dumps`: what only that rank's environment has."""
        self.folder = folder
        self.processes: list[NcclProcess] = [
            start(
                PACELINE_AGENT_SOCKET=str(folder / "agent.sock"), PACELINE_ATTEMPT="a1", RANK=str(rank),
                WORLD_SIZE=str(len(RING)), LOCAL_RANK=str(rank), PACELINE_NCCL_TIER="2",
                PACELINE_NCCL_BUDGET_PERCENT="100", NCCL_DEBUG_FILE=str(folder / "nccl.%p.log"),
                **(dumps or {}).get(rank, {}),
            )
            for rank in range(len(RING))
        ]  # fmt: skip
        self.traces = [Trace() for _ in RING]
        self.contexts = [
            trace.init(nranks=len(RING), rank=rank, hash_=HASH) for rank, trace in enumerate(self.traces)
        ]

    def write_logs(self, order: Sequence[int] = RING, ranks: Sequence[int] = range(6)) -> None:
        for rank in ranks:
            pid = self.processes[rank].process.pid
            (self.folder / f"nccl.{pid}.log").write_text(nccl_log(rank, pid, order))

    def begin(self) -> list[Operation]:
        operations = []
        for rank, trace in enumerate(self.traces):
            operation = trace.enter(self.contexts[rank])
            trace.launch_kernels(operation)
            trace.begin_task(operation, channels=1)
            for tail, head in LINKS:
                if (tail, head) not in OVER_NVLINK and rank in (tail, head):
                    is_send = rank == tail
                    trace.append_proxy(operation, 0, head if is_send else tail, is_send, STEPS)
            trace.end_task(operation)
            trace.begin_kernels(operation, 1)
            operations.append(operation)
        return operations

    def make(self) -> None:
        for process, trace in zip(self.processes, self.traces, strict=True):
            process.make(trace)

    def run(self) -> None:
        """One whole operation, then one that stands still with the link from 4 to 2."""
        for rank, operation in enumerate(self.begin()):
            self.traces[rank].move(operation, STEPS)
            self.traces[rank].end_kernels(operation)
        for rank, operation in enumerate(self.begin()):
            for (_, peer, is_send), proxy in operation.proxies.items():
                link = (rank, peer) if is_send else (peer, rank)
                for step in range(CARRIED[link]):
                    self.traces[rank].step(proxy, step, is_send)
        self.make()


def dump_variables(folder: Path, writer: int) -> dict[str, str]:
    """Of the rank that dumps, into files of its own."""
    return {
        "NCCL_GRAPH_DUMP_FILE": f"{folder}/graph.{writer}.xml", "NCCL_GRAPH_DUMP_FILE_RANK": str(writer),
        "NCCL_TOPO_DUMP_FILE": f"{folder}/machine.{writer}.xml", "NCCL_TOPO_DUMP_FILE_RANK": str(writer),
    }  # fmt: skip


def write_dumps(folder: Path, writer: int, chain: Sequence[int]) -> None:
    """As NCCL 2.28 does before the plugin hears of the communicator: no ranks beside the GPUs, so the dump of
    the machine says who they are."""
    (folder / f"machine.{writer}.xml").write_text(topology_xml(chain))
    (folder / f"graph.{writer}.xml").write_text(graphs_xml([chain] * 2, ranked=False, beyond=True))


@pytest.fixture
async def agent(start_agent: StartAgent) -> AgentApp:
    """Logs and dumps are found through /proc."""
    return await start_agent(orders_s=0.1, suspect_s=STALL_S, root=Path("/"), nccl_dump_settle_s=0.2)


def world_of(publisher: MemoryPublisher) -> CommunicatorRecord | None:
    found: list[CommunicatorRecord] = publisher.values(CommunicatorRecord)
    return found[-1] if found else None


def verdict_of(publisher: MemoryPublisher, world: CommunicatorRecord) -> Verdict | None:
    if len(publisher.newest(RowKind.STATE)) < len(RING) or publisher.job() is None:
        return None
    evidence = build_evidence(
        publisher.batches(), publisher.job(), publisher.values(NodeRecord)[-1:], [world]
    )
    verdict = judge(evidence, JudgePolicy(stall_age_s=STALL_S))
    return verdict if verdict.verdict_class is VerdictClass.H3 else None


async def test_stuck_link_is_named_by_the_order_of_the_log(
    start_nccl: StartNccl,
    agent: AgentApp,
    agent_folder: Path,
    publisher: MemoryPublisher,
    eventually: Eventually,
) -> None:
    job = Job(start_nccl, agent_folder)
    job.write_logs()
    job.run()
    world = await eventually(lambda: (world := world_of(publisher)) and world.ring and world)
    assert world.ring == "0,3,1,4,2,5"
    assert world.tree == "-1,0,1,2,3,4"
    verdict = await eventually(lambda: verdict_of(publisher, world))
    (root,) = verdict.roots
    assert (root.kind, root.rank, root.peer_rank) == (RootKind.LINK, 4, 2)
    blind = verdict_of(publisher, replace(world, ring="", tree=""))
    assert blind is not None
    assert blind.roots[0].kind is RootKind.GROUP
    assert len(blind.roots[0].ranks) == len(RING)
    assert not {reason for reason in agent.drops if reason.startswith("order")}
    assert world.order_sources == ("nccl_log", "proxies")


async def test_stuck_link_is_named_by_dumped_graphs_and_proxies(
    start_nccl: StartNccl,
    agent: AgentApp,
    agent_folder: Path,
    publisher: MemoryPublisher,
    eventually: Eventually,
) -> None:
    """Four machines; those with two GPUs dump their part of the ring."""
    job = Job(start_nccl, agent_folder, {writer: dump_variables(agent_folder, writer) for writer in PAIRS})
    for writer, chain in PAIRS.items():
        write_dumps(agent_folder, writer, chain)
    job.run()
    world = await eventually(lambda: (world := world_of(publisher)) and world.ring and world)
    assert (world.ring, world.tree) == ("0,3,1,4,2,5", "")
    assert world.order_sources == ("graph_dump", "proxies")
    verdict = await eventually(lambda: verdict_of(publisher, world))
    (root,) = verdict.roots
    assert (root.kind, root.rank, root.peer_rank) == (RootKind.LINK, 4, 2)


async def test_logs_that_contradict_each_other_give_no_order(
    start_nccl: StartNccl,
    agent: AgentApp,
    agent_folder: Path,
    publisher: MemoryPublisher,
    eventually: Eventually,
) -> None:
    job = Job(start_nccl, agent_folder)
    job.write_logs(ranks=range(5))
    job.write_logs((0, 1, 2, 3, 4, 5), ranks=[5])
    job.make()
    await eventually(lambda: agent.drops["order_contradicted"] == 1)

    # Five of six logs name all links: until the sixth is read there may be an order, then it is withdrawn.
    def is_withdrawn() -> bool:
        world, nodes = world_of(publisher), publisher.values(NodeRecord)
        return world is not None and (world.ring, world.tree, nodes[-1].orders) == ("", "", ())

    await eventually(is_withdrawn)


def test_plugin_says_in_the_log_of_nccl_which_communicator_it_is(
    start_nccl: StartNccl, tmp_path: Path
) -> None:
    """A split has no hash in NCCL's log: there the plugin's own line joins it."""
    process = start_nccl(HARNESS_LOG=str(tmp_path / "log"), RANK="1", WORLD_SIZE="4")
    trace = Trace()
    trace.init(nranks=4, rank=1, hash_=0xABC)
    process.make(trace)
    frame = process.frame()
    (said,) = (tmp_path / "log").read_text().splitlines()
    assert said.endswith(f"Paceline communicator {int(frame['comm']):016x} rank 1 of 4")
    head = said.partition("[0] NCCL INFO ")[0]
    init = (
        "ncclCommSplit comm 0x77 rank 1 nranks 4 cudaDev 1 nvmlDev 1 busId 1 parent 0x5 childCount 1 color 0"
    )
    log = OrderLog()
    for line in (
        f"{init} color 0 key 1- Init START",
        "Ring 00 : 0 -> 1 -> 3",
        said,
        f"{init} color 0 key 1 - Init COMPLETE",
    ):
        text = line if line == said else f"{head}[1] NCCL INFO {line}"
        log.feed(read_line(text, Origin("log"), Speaker(), 1970))
    found = find_made(log.made, f"{int(frame['comm']):016x}", 0xABC, 4, 0)
    assert found is not None
    assert found.known.rings == {0: {0: 1, 1: 3}}
    assert find_made(log.made, f"{1:016x}", 0xABC, 4, 0) is None
