"""What one node of several knows of the order of a communicator, from frames, logs and edges."""

from collections import Counter

import numpy as np
import pytest

from paceline.agent.nccl_logs import Look
from paceline.agent.orders import Orders
from paceline.agent.pages import PageView
from paceline.agent.processes import Process
from paceline.agent.registry import LocalJob, node_record, open_communicator
from paceline.analysis.adapters.prefixes import read_line
from paceline.analysis.facts import Line, Origin, Speaker
from paceline.contracts.agent_socket import CommunicatorOpened, Hello
from paceline.contracts.codes import Algorithm, OpKind, Source
from paceline.contracts.dtypes import PROCESS_DTYPE
from paceline.contracts.registry import CommunicatorRecord, OrderPart
from paceline.probe.snapshot import BLOCK_DTYPE

KEY, NAME = ("j", "a"), "00000000000000ab"


def view_of(rank: int, edges: list[tuple[int, int, int]], algorithm: Algorithm, p2p: int = 0) -> PageView:
    """One frame of four members with one round; `edges`: peer, group, direction."""
    table = np.zeros(1, BLOCK_DTYPE)
    frame, entry, rows = table["frame"][0], table["rounds"][0, 0], table["edges"][0]
    values = {"comm": 0xAB, "nranks": 4, "comm_rank": rank, "context": 0xC0, "p2p_started": p2p}
    for name, value in {**values, "sources": Source.NCCL_PROFILER}.items():
        frame[name] = value
    entry["entered_ns"], entry["kind"], entry["algorithm"] = 1, OpKind.COLLECTIVE, algorithm
    rows["peer"] = -1
    for row, (peer, group, direction) in zip(rows, edges, strict=False):
        row["peer"], row["group"], row["direction"] = peer, group, direction
    return PageView(np.zeros(1, PROCESS_DTYPE)[0], bytearray(table.tobytes()))


def process_of(rank: int, view: PageView) -> Process:
    hello = Hello("j", "declared", "a", "declared", rank, 4, rank, 100 + rank, 1, nccl_log="/log")
    process = Process(KEY, hello, 0, 200 + rank, None, None, None)
    process.view = view
    return process


def job_of(*processes: Process) -> LocalJob:
    job = LocalJob(KEY, 0, processes[0].hello, 0, 0.0)
    job.hellos = {process.rank: process.hello for process in processes}
    job.pids = {process.rank: process.pid for process in processes}
    job.communicators[NAME] = CommunicatorRecord("j", "a", NAME, "world", "0-3", 0, 0, "nccl")
    return job


def lines_of(rank: int, *texts: str) -> list[Line]:
    init = f"ncclCommInitRank comm 0x5 rank {rank} nranks 4 cudaDev 0 nvmlDev 0 busId 1b000 commId 0xc0"
    return [
        read_line(f"n1:{100 + rank}:7 [0] NCCL INFO {text}", Origin("log"), Speaker(), 1970)
        for text in (f"{init} - Init START", *texts, f"{init} - Init COMPLETE")
    ]


def refreshed(processes: list[Process], lines: list[tuple[int, Line]]) -> tuple[LocalJob, Counter[str]]:
    drops: Counter[str] = Counter()
    orders, job = Orders(drops), job_of(*processes)
    assert [process for process, _ in orders.wanted(processes)] == processes
    orders.take(processes, Look(lines=lines))
    orders.refresh(job, processes)
    orders.refresh(job, processes)
    return job, drops


def test_node_tells_the_links_of_its_own_ranks() -> None:
    quiet = [process_of(rank, view_of(rank, [], Algorithm.RING)) for rank in (0, 1)]
    first = lines_of(0, "Ring 00 : 3 -> 0 -> 1", "Trees [0] 1/-1/-1->0->-1")
    second = lines_of(1, "Ring 00 : 0 -> 1 -> 2", "Trees [0] 2/-1/-1->1->0")
    shared = [(place, line) for place in (0, 1) for line in (*first, *second)]  # one file of both
    job, drops = refreshed(quiet, shared)
    part = OrderPart(NAME, 4, {"0": "3,0,1,2"}, {"0": "0>-1,1>0,2>1"}, sources=("nccl_log",))
    assert node_record(job, "n1", "g").orders == (part,)
    assert job.communicators[NAME].ring == ""
    assert not drops


@pytest.mark.parametrize(
    ("edges", "algorithm", "p2p", "links"),
    [
        ([(1, 0, 0), (3, 0, 1)], Algorithm.RING, 0, "3,0,1"),
        ([(1, 0, 0), (2, 0, 0), (3, 0, 1)], Algorithm.RING, 0, "3,0"),  # two peers: not one ring
        ([(1, 1, 0), (3, 2, 1)], Algorithm.RING, 0, ""),  # of trees
        ([(1, 0, 0), (3, 0, 1)], Algorithm.PAT, 0, ""),
        ([(1, 0, 0), (3, 0, 1)], Algorithm.RING, 1, ""),  # may be of messages
    ],
)
def test_proxies_are_believed_of_rings_alone(
    edges: list[tuple[int, int, int]], algorithm: Algorithm, p2p: int, links: str
) -> None:
    job, _ = refreshed([process_of(0, view_of(0, edges, algorithm, p2p))], [])
    assert [part.links for part in job.orders.values()] == [links] * bool(links)


def test_rank_that_the_log_numbers_otherwise_refuses_the_order() -> None:
    process = process_of(0, view_of(1, [], Algorithm.RING))
    job, drops = refreshed([process], [(0, line) for line in lines_of(0, "Ring 00 : 3 -> 0 -> 1")])
    assert job.orders[NAME].refused == "order_contradicted"
    assert drops == {"order_contradicted": 1}


def test_order_is_kept_where_the_communicator_is_announced_again() -> None:
    process = process_of(0, view_of(0, [(1, 0, 0), (3, 0, 1)], Algorithm.RING))
    others = [
        process_of(rank, view_of(rank, [((rank + 1) % 4, 0, 0), (rank - 1, 0, 1)], Algorithm.RING))
        for rank in (1, 2, 3)
    ]
    job, _ = refreshed([process, *others], [])
    assert job.communicators[NAME].ring == "0-3"
    assert job.orders == {}
    again = CommunicatorOpened(NAME, "world", "0-3", 0, "nccl", 0, kind="world")
    assert open_communicator(job, 0, again) is None
    assert (job.communicators[NAME].kind, job.communicators[NAME].ring) == ("world", "0-3")
