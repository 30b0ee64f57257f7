"""What a stage of the judgement answers, and the words for ranks and operations."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from paceline.analysis.arrays import distinct
from paceline.analysis.evidence import Ints, JobEvidence
from paceline.analysis.situation import Situation
from paceline.contracts.batch import Rows
from paceline.contracts.codes import DType, Function, ReduceOp
from paceline.contracts.ids import format_communicator
from paceline.contracts.verdicts import (
    Action,
    ActionKind,
    Evidence,
    Operation,
    Owner,
    Role,
    Root,
    RootKind,
    SubReason,
    VerdictClass,
)

NO_ACTION = Action(ActionKind.NONE)


@dataclass(frozen=True)
class Finding:
    """One stage's answer; `judge` adds victims, coverage and the rest of the sentence."""

    reason: str  # named reason of the decision, stable, for logs and tests
    verdict_class: VerdictClass
    statement: str  # what the roots did; the sentence before "; N ranks wait on it ..."
    sub_reason: SubReason = SubReason.NONE
    roots: tuple[Root, ...] = ()
    op: int = -1  # operation of the wait-for graph, -1 where none
    owner: Owner = Owner.UNKNOWN
    action: Action = NO_ACTION
    confidence: float = 1.0
    evidence: tuple[Evidence, ...] = ()
    would_decide: str = ""
    settle_s: float = 0.0  # how long a better answer may still come; the localizer waits for it
    operation: Operation | None = None  # where `op` does not say it (slow rounds)
    waiting: tuple[int, ...] | None = None  # ranks that wait, where the graph does not say it


def nothing(reason: str, statement: str) -> Finding:
    """No incident, for a named reason."""
    return Finding(reason, VerdictClass.NONE, statement)


def rank_roots(
    evidence: JobEvidence, ranks: Iterable[int], bound: int, role: Role = Role.INITIATING
) -> tuple[Root, ...]:
    """One root for each rank, at most `bound`."""
    return tuple(
        Root(RootKind.RANK, rank, evidence.node(rank), evidence.gpu_index(rank), role=role)
        for rank in [int(rank) for rank in ranks][:bound]
    )


def group_root(evidence: JobEvidence, ranks: Sequence[int], name: str) -> Root:
    """The smallest group that contains the cause."""
    members = tuple(sorted({int(rank) for rank in ranks}))
    nodes = {evidence.node(rank) for rank in members}
    return Root(RootKind.GROUP, node=nodes.pop() if len(nodes) == 1 else None, name=name, ranks=members)


def name_ranks(ranks: Sequence[int] | Ints) -> str:
    """`rank 5`, `ranks 5 and 7`, `ranks 40-47`."""
    values = np.asarray(ranks, np.int64)
    if bool((values[1:] <= values[:-1]).any()):
        values = distinct(values)
    if len(values) == 1:
        return f"rank {values[0]}"
    if len(values) == 2:
        return f"ranks {values[0]} and {values[1]}"
    return f"ranks {_format_ascending(values)}"


def _format_ascending(values: Ints) -> str:
    """As `format_ranks`, in as many steps as the text has parts: a victim may be one of 100,000."""
    changes = np.flatnonzero(np.diff(values, 2)) + 1  # places where the stride becomes another one
    parts: list[str] = []
    index = 0
    while index < len(values):
        later = int(np.searchsorted(changes, index, "right"))
        end = int(changes[later]) if later < len(changes) else len(values) - 1
        step = int(values[index + 1] - values[index]) if index < end else 1
        if end - index >= 2 or (end > index and step == 1):
            parts.append(f"{values[index]}-{values[end]}" + ("" if step == 1 else f"/{step}"))
            index = end + 1
        else:
            parts.append(str(values[index]))
            index += 1
    return ",".join(parts)


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def function_name(code: int) -> str:
    return Function(code).name.lower() if code in Function._value2member_map_ else f"function_{code}"


def head_row(situation: Situation, op: int) -> Rows | None:
    """One STATE row (length 1) of a member inside collective `op`, None for other operations.

    Where members disagree, the row of the most frequent signature.
    """
    if not 0 <= op < situation.graph.pair_base:
        return None
    evidence = situation.evidence
    part = slice(int(evidence.offsets[op]), int(evidence.offsets[op + 1]))
    inside = np.flatnonzero(situation.graph.collectives.inside[part])
    if len(inside) == 0:
        return None
    signature = evidence.column("head_signature")[part][inside]
    best = part.start + int(inside[0])
    if bool((signature != signature[0]).any()):
        _, first, counts = np.unique(signature, return_index=True, return_counts=True)
        best = part.start + int(inside[first[np.argmax(counts)]])
    return evidence.state[best : best + 1]


def describe(situation: Situation, op: int) -> Operation | None:
    """The operation `op` as the verdict shows it."""
    described = situation.described
    if op not in described:
        described[op] = _describe(situation, op)
    return described[op]


def _describe(situation: Situation, op: int) -> Operation | None:
    comm = situation.comm_of_op(op)
    if comm < 0:
        return None
    evidence, graph = situation.evidence, situation.graph
    if op >= graph.pair_base:
        at = op - graph.pair_base
        function = "send" if bool(graph.pairs.sends[at]) else "recv"
        number, detail = 0, f"{plain_pair(situation, op)}, number {int(graph.pairs.sequence[at])} of the pair"
    else:
        row = head_row(situation, op)
        function = function_name(int(row["function"][0])) if row is not None else "unknown"
        number = int(graph.collectives.round[op])
        detail = _detail(situation, comm, number, row) if row is not None else ""
    return Operation(
        communicator=format_communicator(int(evidence.comm_ids[comm])),
        communicator_name=evidence.comm_name(comm),
        function=function,
        round=number,
        size=len(evidence.members(comm)),
        detail=detail,
    )


def phrase(situation: Situation, op: int) -> str:
    """`all_reduce round 412 of tp_1`, `the send from rank 3 to rank 5 in pp_0`."""
    operation = describe(situation, op)
    if operation is None:
        return "a host wait"
    if operation.round == 0:
        return f"the {plain_pair(situation, op)} in {operation.communicator_name}"
    return f"{operation.function} round {operation.round} of {operation.communicator_name}"


def plain_pair(situation: Situation, op: int) -> str:
    """`send from rank 3 to rank 5`, whoever of the two is waiting."""
    at = op - situation.graph.pair_base
    pairs = situation.graph.pairs
    rank, peer = int(pairs.rank[at]), int(pairs.peer[at])
    if peer < 0:
        return f"receive of rank {rank} from any rank"
    source, target = (rank, peer) if bool(pairs.sends[at]) else (peer, rank)
    return f"send from rank {source} to rank {target}"


def _detail(situation: Situation, comm: int, number: int, row: Rows) -> str:
    parts = []
    dtype, reduce_op = int(row["dtype"][0]), int(row["reduce_op"][0])
    rounds = situation.evidence.rounds_of(comm)
    counts = rounds["count"][rounds["round"] == number]
    if dtype in DType._value2member_map_ and dtype:
        count = f" x {int(np.median(counts))}" if len(counts) else ""
        parts.append(f"{DType(dtype).name.lower()}{count}")
    if reduce_op in ReduceOp._value2member_map_ and reduce_op:
        parts.append(ReduceOp(reduce_op).name.lower())
    if int(row["peer"][0]) >= 0:
        parts.append(f"root {int(row['peer'][0])}")
    return ", ".join(parts)


def seconds(milliseconds: int) -> str:
    return f"{milliseconds / 1000:.1f} s"


def note(rule: str, statement: str, threshold: str = "", supports: bool = True, **inputs: object) -> Evidence:
    """One line of evidence."""
    return Evidence(rule, statement, {key: str(value) for key, value in inputs.items()}, threshold, supports)
