"""Real faults between network namespaces: what the counters show, whatever the verdict says of it."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from multiprocessing.context import ForkServerContext

import pytest

from paceline.contracts.codes import Algorithm
from paceline.lab.sockets.faults import Fault
from paceline.lab.sockets.network import NETNS_FOLDER, Network, delete_namespaces, make_network
from paceline.lab.sockets.run import RunOptions, RunResult, run_once
from paceline.lab.sockets.signature import RankSignature
from paceline.lab.sockets.team import start_method

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root"),
    pytest.mark.skipif(not (shutil.which("ip") and shutil.which("tc")), reason="iproute2 is not installed"),
]
SIZE = 6
RING = RunOptions(size=SIZE, shuffle=True)
TREE = RunOptions(size=SIZE, algorithm=Algorithm.TREE)


@pytest.fixture(scope="module")
def context() -> ForkServerContext:
    return start_method()


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    with make_network(SIZE, 40.0) as made:
        yield made


def by_rank(result: RunResult) -> dict[int, RankSignature]:
    return {signature.rank: signature for signature in result.signatures}


def least(values: dict[int, float]) -> int:
    return min(values, key=values.__getitem__)


def test_slow_link_is_the_largest_step_of_receive_waits(context: ForkServerContext, network: Network) -> None:
    result = run_once(context, network, Fault.S2, RING, seed=5)
    assert result.injection.link is not None
    waits = {rank: signature.recv_wait_ms for rank, signature in by_rank(result).items()}
    order = result.topology.order
    steps = {rank: waits[rank] - waits[order[at - 1]] for at, rank in enumerate(order)}
    sender, receiver = result.injection.link
    assert max(steps, key=steps.__getitem__) == receiver
    assert least(waits) == sender
    assert by_rank(result)[sender].duration_ms > 3 * result.base_ms


def test_cut_link_holds_a_window_that_its_sender_cannot_deliver(
    context: ForkServerContext, network: Network
) -> None:
    result = run_once(context, network, Fault.LINK, RING, seed=6)
    assert result.injection.link is not None
    sender, receiver = result.injection.link
    signatures = by_rank(result)
    assert signatures[sender].undelivered == RING.window
    assert all(s.undelivered == 0 for rank, s in signatures.items() if rank != sender)
    assert least({rank: s.sends for rank, s in signatures.items()}) == sender
    assert least({rank: s.receives for rank, s in signatures.items()}) == receiver


def test_rank_that_stands_still_has_sent_least_although_a_window_was_delivered_to_it(
    context: ForkServerContext, network: Network
) -> None:
    result = run_once(context, network, Fault.STUCK, RING, seed=7)
    assert result.injection.rank is not None
    stuck = result.injection.rank
    signatures = by_rank(result)
    order = result.topology.order
    before = order[order.index(stuck) - 1]
    assert least({rank: s.sends for rank, s in signatures.items()}) == stuck
    assert signatures[before].undelivered == 0
    assert signatures[before].sends > signatures[stuck].receives
    # It waits for nobody; others may have begun to wait before the pipeline was full, which only edges show.
    total = {rank: sum(edge.wait_ms for edge in s.edges) for rank, s in signatures.items()}
    assert total[stuck] < 0.1 * max(total.values())


def test_late_rank_is_argmin_t_in_a_tree(context: ForkServerContext, network: Network) -> None:
    result = run_once(context, network, Fault.S1, TREE, seed=8)
    assert result.injection.rank is not None
    durations = {rank: signature.duration_ms for rank, signature in by_rank(result).items()}
    assert least(durations) == result.injection.rank
    assert max(durations.values()) > 3 * result.base_ms


def test_shaping_is_one_direction_of_one_pair_and_heals(network: Network) -> None:
    def rates(rank: int) -> list[str]:
        command = ["tc", "-n", network.namespace(rank), "class", "show", "dev", "eth0"]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        return sorted(line.split("rate ")[1].split()[0] for line in text.splitlines())

    healthy = rates(0)
    assert healthy == sorted(["1Gbit", *["40Mbit", "100Mbit"] * (SIZE - 1)])
    network.slow(0, 3, 5.0)
    assert rates(0).count("5Mbit") == 1
    assert rates(3) == healthy
    network.cut(0, 2)
    assert rates(0).count("8bit") == 2  # data and acknowledgements
    network.heal()
    assert rates(0) == healthy


def test_namespaces_are_gone_afterwards_also_after_an_error() -> None:
    def exists() -> bool:
        return any(path.name.startswith("plsktest-") for path in NETNS_FOLDER.iterdir())

    other = Network("plsktest", 2, 40.0)
    try:
        other.create()
        assert exists()
    finally:
        other.delete()
    assert not exists()
    delete_namespaces("plsktest")  # nothing left: no error
