"""Benchmarks run on each node alone: one node far from the others is slow by itself."""

import re
from collections import defaultdict

import numpy as np

from paceline.analysis.diagnosis.answer import Blame, Ground
from paceline.analysis.diagnosis.case import Case
from paceline.analysis.diagnosis.rules.finding import Finding, complaining, origins_of
from paceline.analysis.facts import Membership, SampleRow
from paceline.contracts.verdicts import Action, ActionKind, Owner, RootKind, SubReason, VerdictClass

NODES_MIN = 4
OFF = 0.05  # from the median of all nodes; benchmarks of healthy nodes agree within 1 or 2 %
NOISE = 6.0  # deviations of the nodes among themselves
TESTS_MIN = 3
TESTS_OFF = 0.15
LARGE_BYTES = 1 << 20
_MORE = re.compile(r"flops|bandwidth|(?:^|_)bw(?:_|$)|busbw|algbw|per_s|throughput|rate|samples|tokens")
_LESS = re.compile(
    r"^(?:own|forward|backward|data)_s$|(?:gemm|bench|matmul|latency|stream|burn).*(?:_s|_ms|_us|time)$|latency"
)
_TRANSFER = re.compile(r"busbw|algbw|net|ib_|nccl|allreduce|all_reduce|p2p|nvlink|link")
_NOT = re.compile(r"rank|step|size|count|index|temp|power|clock|util|memory_used|pid")


def odd_node(case: Case) -> Finding | None:
    """One row for each node; the one whose value stands apart from all others."""
    if complaining(case):
        return None
    values: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    rows = [row for row in case.of(SampleRow) if row.kind in ("other", "bandwidth") and row.speaker.host]
    rows = [row for row in rows if case.rank_of(row) is None and "step" not in row.numbers]
    for row in rows:
        for name, value in row.numbers.items():
            if (_MORE.search(name) or _LESS.search(name)) and not _NOT.search(name):
                values[name][row.speaker.host].append(value)
    for name, nodes in values.items():
        sign = 1.0 if _MORE.search(name) else -1.0
        found = _odd({node: sign * float(np.median(v)) for node, v in nodes.items()}, NODES_MIN, OFF)
        if found is not None:
            return _finding(found[0], name, found[1], rows)
    return None


def odd_test(case: Case) -> Finding | None:
    """Bandwidth tests of single nodes, one file each: the node whose rates are low at most sizes."""
    hosts: dict[str, set[str]] = defaultdict(set)
    for fact in case.of(Membership):
        if fact.speaker.host:
            hosts[fact.origin.file].add(fact.speaker.host)
    rates: dict[str, list[float]] = defaultdict(list)
    rows = [
        row for row in case.of(SampleRow) if row.kind == "nccl_tests" and len(hosts[row.origin.file]) == 1
    ]
    for row in rows:
        if row.numbers.get("bytes", 0.0) >= LARGE_BYTES and "busbw_gbps" in row.numbers:
            rates[next(iter(hosts[row.origin.file]))].append(row.numbers["busbw_gbps"])
    found = _odd({host: float(np.median(v)) for host, v in rates.items()}, TESTS_MIN, TESTS_OFF)
    return (
        None if found is None else _finding(found[0], "nccl busbw of one node (all_reduce)", found[1], rows)
    )


def _odd(levels: dict[str, float], nodes_min: int, off: float) -> tuple[str, float] | None:
    """The lowest value (more is better, signs as given) and its ratio, where it alone stands apart."""
    if len(levels) < nodes_min:
        return None
    worst = min(levels, key=lambda node: levels[node])
    rest = np.array([value for node, value in levels.items() if node != worst])
    usual = float(np.median(rest))
    noise = float(np.median(np.abs(rest - usual))) * 1.4826
    gap = usual - levels[worst]
    if usual == 0 or gap < off * abs(usual) or gap < NOISE * noise or levels[worst] >= rest.min() - gap / 2:
        return None
    return worst, abs(levels[worst]) / abs(usual)


def _finding(node: str, name: str, ratio: float, rows: list[SampleRow]) -> Finding:
    transfer = bool(_TRANSFER.search(name))
    return Finding(
        reason="odd_node",
        verdict_class=VerdictClass.S2 if transfer else VerdictClass.S1,
        sub_reason=SubReason.SLOW_LINK if transfer else SubReason.LATE_RANK,
        roots=(Blame(RootKind.NODE, node=node, why=f"{name} is {ratio:.2f} of the others"),),
        victims=(),
        phase=f"bench of nodes ({name}): {'bandwidth' if transfer else 'compute'}",
        owner=Owner.FABRIC if transfer else Owner.GPU,
        action=Action(
            ActionKind.COLLECT, node, "links, clocks and power of its GPUs; replace it if it stays"
        ),
        confidence=0.75,
        grounds=(
            Ground("bench", f"{node}: {name} {ratio:.2f} of the median of the others", origins_of(rows)),
        ),
        summary=f"{node} is slow by itself: {name} is {ratio:.2f} of what the other nodes reach",
    )
