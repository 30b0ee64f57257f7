"""Ranks that were late for a reason they say themselves, and ranks whose stacks show them elsewhere."""

import re
from collections import Counter

from paceline.analysis.adapters.functions import function_of
from paceline.analysis.diagnosis.answer import Blame, Ground
from paceline.analysis.diagnosis.case import Case
from paceline.analysis.diagnosis.rules.finding import (
    Finding,
    main_operation,
    origins_of,
    rank_roots,
    ranks_text,
)
from paceline.analysis.facts import PhaseSeen, ProcessFault, SampleRow, StackSeen, WorkTimeout
from paceline.contracts.verdicts import (
    Action,
    ActionKind,
    Operation,
    Owner,
    RootKind,
    SubReason,
    VerdictClass,
)

_CALLS = re.compile(
    r"^(?:_?all_reduce|allreduce|broadcast|reduce|all_gather|_?all_gather_base|all_gather_into_tensor|"
    r"reduce_scatter|"
    r"_?reduce_scatter_base|reduce_scatter_tensor|all_to_all|all_to_all_single|barrier|"
    r"monitored_barrier|send|recv|isend|irecv|"
    r"batch_isend_irecv|gather|scatter|broadcast_object_list|all_gather_object|nccl\w+)\b"
)
_INSIDE = re.compile(
    r"distributed_c10d|ProcessGroup|nccl(?:Group|All|Reduce|Broadcast|Send|Recv)|cudaStreamSynchronize"
)
_HOST_SYNC = re.compile(
    r"^(?:synchronize|tolist|item|_local_scalar_dense|cudaStreamSynchronize|cpu)\b|memcpy_and_sync"
)
_WHOLE_GROUP = frozenset(
    {"all_reduce", "broadcast", "all_gather", "reduce_scatter", "barrier", "all_to_all", "reduce"}
)
_BACKWARD = re.compile(r"^(?:_engine_run_backward|run_backward|backward) \(.{0,120}autograd|Engine::execute")
_BACKWARD_MIN = 3  # ranks whose waiting in backward says something of another one
_FRAMES_SEEN = 6
_GPU_THREAD = "gpu kernel"
_MINORITY = 0.34  # more ranks outside than this and their stacks decide nothing


def long_phase(case: Case) -> Finding | None:
    """Phases that ended, and took longer than the timeout of those who waited."""
    timeouts = [fact for fact in case.of(WorkTimeout) if fact.timeout_ms]
    if not timeouts:
        return None
    limit = min(fact.timeout_ms or 0 for fact in timeouts) / 1000
    long = [f for f in case.of(PhaseSeen) if f.ended and (f.duration_s or 0.0) >= limit]
    ranks = sorted({rank for fact in long if (rank := case.rank_of(fact)) is not None})
    waiting = {rank for fact in timeouts if (rank := case.rank_of(fact)) is not None}
    ranks = [rank for rank in ranks if rank not in waiting]
    if not ranks:
        return None
    communicator, operation = main_operation(case)
    longest = max(fact.duration_s or 0.0 for fact in long)
    kind = long[0].kind.value
    return Finding(
        reason="long_phase",
        verdict_class=VerdictClass.S1,
        sub_reason=SubReason.LATE_RANK,
        roots=rank_roots(ranks, f"{kind} took up to {longest:.0f} s"),
        victims=tuple(sorted(waiting)),
        communicator=communicator,
        operation=operation,
        phase=kind,
        owner=Owner.HOST,
        action=Action(
            ActionKind.FIX_CODE, ranks_text(ranks), f"what makes {kind} slow; meanwhile a longer timeout"
        ),
        confidence=0.85,
        grounds=(
            Ground(
                "phase",
                f"{ranks_text(ranks)}: {kind} took up to {longest:.0f} s, the timeout is {limit:.0f} s",
                origins_of(long),
            ),
            Ground(
                "waiting",
                f"{ranks_text(sorted(waiting)) if waiting else 'others'} only waited",
                origins_of(timeouts),
            ),
        ),
        summary=f"{ranks_text(ranks)} needed up to {longest:.0f} s for {kind}, longer than the timeout "
        f"of {limit:.0f} s; "
        "slow became a hang, and the ranks that timed out are healthy",
    )


def outside(case: Case) -> Finding | None:
    """Stacks: all stand in a collective but a few; these are where the chain begins."""
    stacks = _main_stacks(case)
    inside = {rank: call for rank, stack in stacks.items() if (call := _call(stack))}
    if not inside:  # collectives that backward issues are seen in no Python stack
        inside = {rank: call for rank, stack in stacks.items() if (call := _on_device(stack))}
        inside = inside if len(inside) >= _BACKWARD_MIN else {}
    away = {rank: stack for rank, stack in stacks.items() if rank not in inside and not _in_host_sync(stack)}
    if not inside or not away or len(away) > max(1, _MINORITY * len(stacks)):
        return None
    ranks = sorted(away)
    calls = Counter(inside.values())
    call = calls.most_common(1)[0][0]
    frame = away[ranks[0]].frames[0]
    communicator, operation = main_operation(case)
    operation = operation or Operation("", "", call, 0)
    words = ", ".join(f"{count} in {name}" for name, count in calls.most_common(6))
    return Finding(
        reason="outside",
        verdict_class=VerdictClass.H1,
        sub_reason=SubReason.HOST_WAIT,
        roots=rank_roots(ranks, f"in {frame}"),
        victims=tuple(sorted(inside)),
        communicator=communicator,
        operation=operation,
        phase=f"in {frame}",
        owner=Owner.USER_CODE,
        action=Action(ActionKind.FIX_CODE, ranks_text(ranks), f"what blocks it in {frame}"),
        confidence=0.85,
        grounds=(
            Ground(
                "outside",
                f"{ranks_text(ranks)}: {' < '.join(away[ranks[0]].frames[:3])}",
                origins_of(away.values()),
            ),
            Ground("inside", f"the others: {words}", origins_of(stacks[rank] for rank in list(inside)[:16])),
        ),
        summary=f"{ranks_text(ranks)} is in no collective ({frame}); all others wait in calls that "
        f"follow from it ({words})",
    )


def other_call(case: Case) -> Finding | None:
    """Stacks: all stand in collectives of two kinds, a small part in the one and most in the other."""
    stacks = _main_stacks(case)
    calls = {rank: _call(stack) for rank, stack in stacks.items()}
    count = Counter(calls.values())
    if len(count) != 2 or not set(count) <= _WHOLE_GROUP or len(calls) < 4:
        return None
    (usual, many), (other, few) = count.most_common()
    if few > _MINORITY * many:
        return None
    ranks = sorted(rank for rank, call in calls.items() if call == other)
    return Finding(
        reason="other_call",
        verdict_class=VerdictClass.H2,
        sub_reason=SubReason.OPERATION_MISMATCH,
        roots=rank_roots(ranks, f"in {other}, the others in {usual}"),
        victims=tuple(sorted(set(calls) - set(ranks))),
        operation=Operation("", "", usual, 0),
        phase=f"{other} against {usual}",
        owner=Owner.USER_CODE,
        action=Action(ActionKind.FIX_CODE, ranks_text(ranks), "make all ranks issue the same calls"),
        confidence=0.6,
        grounds=(
            Ground(
                "stacks",
                f"{ranks_text(ranks)}: {' < '.join(stacks[ranks[0]].frames[:4])}",
                origins_of(stacks[rank] for rank in ranks),
            ),
            Ground(
                "others", f"{many} in {usual}", origins_of(s for r, s in stacks.items() if r not in ranks)
            ),
        ),
        summary=f"{ranks_text(ranks)} stand in {other} while {many} others stand in {usual}: calls differ",
        would_decide=("flight recorder dumps: which group each call belongs to",),
    )


def crossed_messages(case: Case) -> Finding | None:
    """Two ranks that are each other's neighbour on both sides: messages carry no tag and pair by order."""
    calls: dict[tuple[int, int, str], list[SampleRow]] = {}
    for row in case.of(SampleRow):
        rank, peer = case.rank_of(row), row.numbers.get("peer")
        function = function_of(row.words.get("op", ""))
        if row.kind == "calls" and rank is not None and peer is not None and function in ("send", "recv"):
            calls.setdefault((rank, int(peer), function), []).append(row)
    for (rank, peer, function), sends in calls.items():
        receives = calls.get((peer, rank, "recv"), [])
        if function != "send" or len(sends) < 2 or len(receives) < 2 or rank > peer:
            continue
        pairs = list(zip(sends, receives, strict=False))
        crossed = [
            pair for pair in pairs if _same_side(pair[0].words.get("role", ""), pair[1].words.get("role", ""))
        ]
        error = [
            fault for fault in case.of(ProcessFault) if "ismatch" in fault.text and "shape" in fault.text
        ]
        if not crossed and not (error and len({send.words.get("shape") for send in sends}) > 1):
            continue
        return _crossed(rank, peer, sends + receives, error)
    return None


def _crossed(rank: int, peer: int, rows: list[SampleRow], errors: list[ProcessFault]) -> Finding:
    return Finding(
        reason="crossed_messages",
        verdict_class=VerdictClass.H2,
        sub_reason=SubReason.PEER_MISMATCH,
        roots=(
            Blame(RootKind.GROUP, ranks=(rank, peer), why="previous and next neighbour are the same rank"),
        ),
        victims=(),
        operation=Operation("", "", "send", 0, size=2, detail="send and recv pair in the order of issue"),
        phase="point-to-point exchange (send/recv)",
        owner=Owner.USER_CODE,
        action=Action(
            ActionKind.FIX_CODE,
            f"ranks {rank} and {peer}",
            "order the calls so that they pair, or one group for each direction",
        ),
        confidence=0.8,
        grounds=(
            Ground(
                "order",
                f"ranks {rank} and {peer} issue several messages to each other in the same order of sides",
                origins_of(rows),
            ),
            *(Ground("symptom", error.text[:160], (error.origin,)) for error in errors[:2]),
        ),
        summary=f"Messages between ranks {rank} and {peer} pair by order and are crossed: both issue "
        "theirs to the "
        "previous side first, and previous and next are the same rank; no network fault",
    )


def _same_side(sent: str, received: str) -> bool:
    """`send_prev` must meet `recv_next`; two of the same side are crossed."""
    sides = [
        next((side for side in ("prev", "next", "left", "right", "up", "down") if side in role), "")
        for role in (sent, received)
    ]
    return bool(sides[0]) and sides[0] == sides[1]


def _main_stacks(case: Case) -> dict[int, StackSeen]:
    """One stack for each rank: the main thread's, else the first active one."""
    found: dict[int, StackSeen] = {}
    for stack in case.of(StackSeen):
        rank = case.rank_of(stack)
        if rank is None or not stack.frames or stack.thread == _GPU_THREAD:
            continue
        if rank not in found or (stack.thread == "MainThread" and found[rank].thread != "MainThread"):
            found[rank] = stack
    return found


def _call(stack: StackSeen) -> str:
    """The collective a stack stands in, empty where none."""
    for frame in stack.frames[:_FRAMES_SEEN]:
        if found := _CALLS.match(frame):
            return function_of(found[0])
    return "collective" if any(_INSIDE.search(frame) for frame in stack.frames[:_FRAMES_SEEN]) else ""


def _on_device(stack: StackSeen) -> str:
    """Waits for its device, as far as the stack says; what runs there is not seen."""
    if any(_BACKWARD.search(frame) for frame in stack.frames[:_FRAMES_SEEN]):
        return "backward"
    return "synchronize (device)" if _in_host_sync(stack) else ""


def _in_host_sync(stack: StackSeen) -> bool:
    return any(_HOST_SYNC.search(frame) for frame in stack.frames[:2])
