"""Files into which NCCL dumps its graphs: read once, bounded, and given to the one that wrote them."""

import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from paceline.agent import nccl_dumps
from paceline.agent.graph_orders import GraphOrders
from paceline.agent.nccl_dumps import Announced, Dump, DumpLook, NcclDumps
from paceline.agent.pages import PageView
from paceline.agent.processes import Process
from paceline.analysis.adapters.nccl_graph import read_graphs
from paceline.analysis.orders import EVERY, Known
from paceline.contracts.agent_socket import Hello
from paceline.contracts.codes import Source
from paceline.contracts.dtypes import PROCESS_DTYPE
from paceline.probe.snapshot import BLOCK_DTYPE
from tests.unit.analysis.nccl_dumps import graphs_xml, topology_xml

BOOT_S, START_S, WRITTEN_S = 1_700_000_000, 1_700_000_100, 1_700_000_130
UID = os.getuid()
XML = graphs_xml([[0, 1, 2, 3]])


@dataclass
class Machine:
    """Process 5 with a root of its own below a folder."""

    proc: Path
    logs: Path

    def write(self, name: str, text: str, at_s: float = WRITTEN_S) -> None:
        path = self.logs / name
        path.write_text(text)
        os.utime(path, (at_s, at_s))

    def mount(self, kind: str) -> None:
        device = self.logs.stat().st_dev
        numbers = f"{os.major(device)}:{os.minor(device)}"
        root = f"22 1 {numbers} / / rw,noatime shared:1 - {kind} /dev/x rw"
        lines = f"21 1 0:99 / /proc rw - proc proc rw\n{root}\n"
        (self.proc / "5" / "mountinfo").write_text(lines)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    proc = tmp_path / "proc"
    logs = proc / "5" / "root" / "log"
    logs.mkdir(parents=True)
    (proc / "stat").write_text(f"cpu 1 2 3\nbtime {BOOT_S}\nprocesses 7\n")
    (proc / "5" / "maps").write_text("7f00 r-xp /usr/lib/libnccl.so.2\n")
    made = Machine(proc, logs)
    made.mount("xfs")
    return made


def announced(pid: int = 5, topology: str = "", started_s: int = START_S) -> Announced:
    return Announced(pid, (started_s - BOOT_S) * 100, UID, "/log/graph.xml", topology)


def read(
    machine: Machine, *wanted: Announced, reader: NcclDumps | None = None, at_s: float = 15.0
) -> DumpLook:
    reader = reader or NcclDumps(machine.proc, ticks_per_s=100)
    return reader.read(wanted or [announced()], WRITTEN_S + at_s)


def test_a_file_is_read_once_and_only_when_it_has_settled(machine: Machine) -> None:
    reader = NcclDumps(machine.proc, ticks_per_s=100)
    assert read(machine, reader=reader).dumps == []
    machine.write("graph.xml", XML)
    assert read(machine, reader=reader, at_s=9.0).dumps == []
    (dump,) = read(machine, announced(), announced(0), announced(), reader=reader).dumps
    assert (dump.places, dump.first_s, dump.last_s) == ((0, 2), WRITTEN_S, WRITTEN_S)
    assert [gpu.rank for gpu in dump.graphs.ring.channels[0]] == [0, 1, 2, 3]
    assert read(machine, reader=reader).dumps == []
    machine.write("graph.xml", graphs_xml([[1, 0]]), WRITTEN_S + 30)
    (again,) = read(machine, reader=reader, at_s=60.0).dumps
    assert again.last_s == WRITTEN_S + 30


def test_ranks_come_from_the_machine_that_was_dumped_before(machine: Machine) -> None:
    machine.write("graph.xml", graphs_xml([[0, 1, 2, 3]], ranked=False))
    machine.write("machine.xml", topology_xml([0, 1, 2, 3]), WRITTEN_S - 2)
    (dump,) = read(machine, announced(topology="/log/machine.xml")).dumps
    assert (dump.ranks, dump.first_s) == ({0: 0, 1: 1, 2: 2, 3: 3}, WRITTEN_S - 2)
    machine.write("machine.xml", topology_xml([3, 2, 1, 0]), WRITTEN_S + 2)  # of the next communicator
    assert read(machine, announced(topology="/log/machine.xml"), at_s=11.0).dumps == []  # which is being made
    (later,) = read(machine, announced(topology="/log/machine.xml")).dumps
    assert later.ranks == {}


def test_only_files_of_this_machine_and_of_this_process_are_read(machine: Machine) -> None:
    machine.write("graph.xml", XML)
    assert len(read(machine).dumps) == 1
    assert (
        read(machine, announced(started_s=WRITTEN_S + 20)).dumps == []
    )  # the file is older than the process
    other = Announced(5, 10_000, UID + 1, "/log/graph.xml", "")
    assert read(machine, other).dumps == []
    os.mkfifo(machine.logs / "pipe")
    assert read(machine, Announced(5, 10_000, UID, "/log/pipe", "")).dumps == []
    for kind in ("nfs4", "lustre", "fuse.sshfs", "9p"):
        machine.mount(kind)
        reader = NcclDumps(machine.proc, ticks_per_s=100)
        looks = [read(machine, reader=reader) for _ in range(3)]
        assert [look.dumps for look in looks] == [[]] * 3
        assert [look.dropped for look in looks] == [{"order_dump_shared": 1}, {}, {}]
    machine.mount("xfs")
    (machine.proc / "5" / "maps").write_text("7f00 r-xp /opt/rocm/lib/librccl.so.1\n")
    assert read(machine).dropped == {"order_dump_rccl": 1}


@pytest.mark.parametrize("text", [XML[:-30], "", "<!DOCTYPE graphs><graphs/>", " " * 3000])
def test_what_is_no_dump_is_counted_once(
    machine: Machine, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nccl_dumps, "FILE_BYTES_MAX", 2500)
    reader = NcclDumps(machine.proc, ticks_per_s=100)
    machine.write("graph.xml", text)
    looks = [read(machine, reader=reader) for _ in range(2)]
    assert [look.dumps for look in looks] == [[], []]
    assert [look.dropped for look in looks] == [{"order_dump_unreadable": 1}, {}]


def view_of(*comms: tuple[int, int, int], age_s: float = 1.0, dropped: int = 0, nodes: int = 0) -> PageView:
    """Frames of (communicator, rank, size)."""
    table = np.zeros(len(comms), BLOCK_DTYPE)
    table["edges"]["peer"], frames = -1, table["frame"]
    for at, (comm, rank, size) in enumerate(comms):
        frames[at]["comm"], frames[at]["comm_rank"], frames[at]["nranks"] = comm, rank, size
        frames[at]["nnodes"], frames[at]["sources"] = nodes, Source.NCCL_PROFILER
    process = np.zeros(1, PROCESS_DTYPE)
    process["created_ns"], process["native_beat_ns"] = 1e9, 1e9 + age_s * 1e9
    process["communicators_dropped"] = dropped
    return PageView(process[0], bytearray(table.tobytes()))


def process_of(view: PageView, writer: int = 0) -> Process:
    hello = Hello(
        "j", "declared", "a", "declared", 0, 8, 0, 100, 1, nccl_graph="/log/graph.xml", nccl_dump_rank=writer
    )
    process = Process(("j", "a"), hello, UID, 5, None, None, None)
    process.view = view
    return process


def dump_of(xml: str = XML, at_s: float = 100.0, places: tuple[int, ...] = (0,)) -> DumpLook:
    return DumpLook([Dump(places, at_s, at_s, read_graphs(xml.encode()), {})])


A, B, C = "000000000000000a", "000000000000000b", "000000000000000c"


class Node:
    """One process whose communicators come and go between looks."""

    def __init__(self, *views: tuple[float, PageView], writer: int = 0) -> None:
        self.drops: Counter[str] = Counter()
        self.graphs = GraphOrders(self.drops)
        self.process = process_of(views[0][1], writer)
        for at_s, view in views:
            self.process.view = view
            self.graphs.look([self.process], at_s)

    def take(self, look: DumpLook, now_s: float = 120.0) -> None:
        self.graphs.take([self.process], look, now_s)

    def known(self, *names: str) -> list[Known | None]:
        return [self.graphs.known(self.process, name) for name in names]


def test_a_dump_goes_to_the_only_communicator_that_it_fits() -> None:
    """By size, by the rank that writes, and by who had a frame before."""
    before = view_of((0xC, 0, 4))
    node = Node((90, before), (105, view_of((0xC, 0, 4), (0xA, 0, 4), (0xB, 0, 2), (0xD, 1, 4))))
    assert [process for process, _ in node.graphs.wanted([node.process])] == [node.process]
    node.take(dump_of())
    mine, other, earlier, not_writer = node.known(A, B, C, "000000000000000d")
    assert mine is not None
    assert mine.rings == {EVERY: {0: 1, 1: 2, 2: 3, 3: 0}}
    assert (other, earlier, not_writer) == (None, None, None)
    assert not node.drops


@pytest.mark.parametrize(
    ("views", "reason"),
    [
        ([(105, view_of((0xA, 0, 4), (0xB, 0, 4)))], "order_dump_ambiguous"),  # both since the last look
        (
            [(105, view_of((0xB, 0, 4))), (110, view_of((0xA, 0, 4)))],
            "order_dump_ambiguous",
        ),  # one is gone again
        ([(105, view_of((0xA, 0, 4), dropped=6))], "order_dump_ambiguous"),  # there are some without a frame
        ([(99, view_of((0xA, 0, 4)))], "order_dump_nobody"),  # it was there before
        ([(105, view_of((0xA, 0, 8)))], "order_dump_nobody"),
        ([(105, view_of((0xA, 1, 4)))], "order_dump_nobody"),
        ([(105, view_of((0xA, 0, 4), nodes=2))], "order_dump_nobody"),  # NCCL saw networks between them
        ([(105, view_of((0xA, 0, 4), age_s=300.0))], "order_dump_nobody"),  # this agent came late
        ([(200, view_of()), (205, view_of((0xA, 0, 4)))], "order_dump_nobody"),  # written long before
    ],
)
def test_where_it_is_not_sure_whose_it_is_nobody_gets_it(
    views: list[tuple[float, PageView]], reason: str
) -> None:
    node = Node(*views)
    node.take(dump_of(), now_s=230.0)
    assert node.known(A, B) == [None, None]
    assert node.drops == {reason: 1}


def test_a_dump_waits_for_its_communicator() -> None:
    """Its ranks meet once more before the plugin hears of it."""
    node = Node((105, view_of()))
    node.take(dump_of())
    assert not node.drops
    node.process.view = view_of((0xA, 0, 4))
    node.graphs.look([node.process], 125)
    node.take(DumpLook(), now_s=125)
    assert node.known(A) != [None]
    node.take(DumpLook(), now_s=500)
    assert not node.drops


def test_two_processes_of_one_file_are_told_apart_by_their_ranks() -> None:
    node = Node((105, view_of((0xA, 0, 4))))
    other = process_of(view_of((0xA, 1, 4), (0xB, 0, 2)))
    node.graphs.look([other], 105)
    node.graphs.take([node.process, other], dump_of(places=(0, 1)), 120.0)
    assert node.known(A) != [None]
    assert node.graphs.known(other, A) is None


def test_what_waits_is_bounded() -> None:
    node = Node((105, view_of()))
    for _ in range(70):
        node.take(dump_of())
    assert node.drops == {"order_dump_waiting": 6}
