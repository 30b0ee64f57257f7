"""Processes that ended or failed by themselves before the others complained.

An error that a peer, a timeout or an abort brings about is a consequence: gloo's and NCCL's errors,
torchelastic's child failures, SIGABRT after a watchdog, "out of memory" out of an aborted broadcast.
"""

import re
from collections.abc import Sequence
from dataclasses import replace

from paceline.analysis.diagnosis.answer import Blame, Ground
from paceline.analysis.diagnosis.case import Case, is_before, seconds_after
from paceline.analysis.diagnosis.rules.finding import (
    Finding,
    main_operation,
    operation_text,
    origins_of,
    rank_roots,
    ranks_text,
)
from paceline.analysis.facts import (
    BarrierReport,
    DeviceEvent,
    Fact,
    FlightDump,
    GlooFailure,
    GlooKind,
    HostKill,
    NetworkFailure,
    NetworkKind,
    ProcessEnd,
    ProcessFault,
    ProcessFaultKind,
    ProgressSeen,
    WorkTimeout,
)
from paceline.contracts.verdicts import Action, ActionKind, Owner, RootKind, SubReason, VerdictClass

_BY_PEER = re.compile(
    r"gloo|NCCL|ProcessGroup|[Cc]onnection (?:closed|reset|refused|aborted)|[Bb]roken pipe|"
    r"DistBackendError|DistStoreError|"
    r"DistNetworkError|ChildFailedError|[Ww]atchdog|[Tt]imed ?out|TimeoutError|Application timeout|"
    r"KeyboardInterrupt|SystemExit|"
    r"SignalException|RayActorError|ActorDiedError|collective|more than 1EB|[Bb]arrier|"
    r"Broken process pool|EOFError"
)
_OWN = (
    ProcessFaultKind.EXCEPTION,
    ProcessFaultKind.CUDA_MEMORY,
    ProcessFaultKind.HOST_MEMORY,
    ProcessFaultKind.SEGFAULT,
)
_KILLS = {9: "SIGKILL", 7: "SIGBUS", 11: "SIGSEGV", 4: "SIGILL", 8: "SIGFPE"}
_ASKED = (2, 15)  # interrupt, terminate
_ASKED_CODES = (130, 143)
_UNHEARD_SHARE = 3  # complaining ranks for each one of which there is not even a log
_MOST = 0.5  # of the ranks that speak: they raised the same, the others were ended or cut off
_DIGITS = re.compile(r"\d+(?:\.\d+)?")
_GOES_ON_S = 120.0  # of steps after a kill: a job that lost a process has stopped by then
_ALONE = 0.6  # confidence of an error beside which nobody waits
_DIED_FIRST_MAX = 0.5  # more deaths than this share of the known ranks: the launcher has ended the job


def own_failure(case: Case) -> Finding | None:
    """A process raised an error of its own while the others waited."""
    if _somebody_waits(case) or any(map(case.of, (ProcessEnd, DeviceEvent, FlightDump))):
        return _own_failure(case)
    return None


def raised_alone(case: Case) -> Finding | None:
    """The same where no other rank says that it waits: an error that went through to the log, and no step
    after it. One log of many is the usual input, so it is said with less confidence."""
    found = _own_failure(case)
    if found is None or any(is_before(case.of(ProcessFault)[0], step) for step in case.of(ProgressSeen)):
        return None
    if found.verdict_class is not VerdictClass.H1:
        return found
    return replace(
        found,
        reason="raised_alone",
        confidence=_ALONE,
        summary=f"{found.grounds[0].statement}; no other rank says here that it waits",
        would_decide=("the logs of all ranks, not of one",),
    )


def _own_failure(case: Case) -> Finding | None:
    own = [
        fault for fault in case.of(ProcessFault) if is_own_error(fault) and not _is_consequence(case, fault)
    ]
    if not own:
        return None
    timed = [fault for fault in own if fault.time_s is not None]
    first = min(timed, key=lambda fault: fault.time_s or 0.0) if len(timed) == len(own) else own[0]
    rank = case.rank_of(first)
    complain = set(_waiting_ranks(case))
    if rank is None:
        return None
    ranks = {r for f in own if (r := case.rank_of(f)) is not None and _alike(f.text) == _alike(first.text)}
    if _is_everybodys(case, ranks, complain):
        return _raised_alike(case, first, own)
    roots = ranks if not ranks & complain and len(ranks) <= max(1, len(complain)) else {rank}
    memory = first.kind in (ProcessFaultKind.CUDA_MEMORY, ProcessFaultKind.HOST_MEMORY)
    communicator, operation = main_operation(case)
    return Finding(
        reason="own_failure",
        verdict_class=VerdictClass.H1,
        sub_reason=SubReason.PROCESS_EXITED,
        roots=rank_roots(roots, first.exception or first.kind.value),
        communicator=communicator,
        operation=operation,
        phase=_phase(case),
        owner=Owner.USER_CODE,
        action=Action(ActionKind.FIX_CODE, f"rank {rank}", _advice(first, memory)),
        confidence=0.9,
        grounds=(
            Ground("own_failure", f"rank {rank}: {_clean(first.text)}{_frame(first)}", (first.origin,)),
            *_complaints(case),
        ),
        summary=f"{ranks_text(list(roots))} failed first ({_clean(first.text)}) and never entered "
        f"{operation_text(operation)}; "
        "errors elsewhere are consequences",
    )


def _is_everybodys(case: Case, ranks: set[int], complain: set[int]) -> bool:
    """Three ranks or more raised the same, they are most of those that speak, and nobody waits."""
    return len(ranks) > 2 and not complain - ranks and len(ranks) > _MOST * len(case.ranks_named)


def _alike(text: str) -> str:
    """Without numbers: each rank puts its own rank, device and sizes into the same message."""
    return _DIGITS.sub("#", text)


def _raised_alike(case: Case, first: ProcessFault, own: Sequence[ProcessFault]) -> Finding:
    return Finding(
        reason="raised_alike",
        verdict_class=VerdictClass.INCONCLUSIVE,
        roots=(Blame(RootKind.NONE, name="no rank differs", why="every rank raised the same error"),),
        victims=(),
        phase=_phase(case),
        owner=Owner.USER_CODE,
        action=Action(ActionKind.FIX_CODE, "", _advice(first, False)),
        confidence=0.8,
        grounds=(Ground("own_failure", f"every rank: {_clean(first.text)}{_frame(first)}", origins_of(own)),),
        summary=f"Every rank raised the same error ({_clean(first.text)}): a fault of the program or of what "
        "it is given; nobody waited, and no rank is to blame",
    )


def killed(case: Case) -> Finding | None:
    """A process was killed or ended before the others complained: host memory, signal, lost actor."""
    kills = case.of(HostKill)
    ends = [end for end in case.of(ProcessEnd) if _is_death(case, end)]
    if not kills and not ends:
        return None
    dead = {rank for fact in [*kills, *ends] if (rank := case.rank_of(fact)) is not None}
    dead = dead or _only_silent(case)
    known = len(case.ranks_named) or 1
    if not dead and not ends and _goes_on(case, kills):
        return None
    if not kills and len(dead) > max(1, _DIED_FIRST_MAX * known):
        return None
    roots = rank_roots(dead, "killed") if dead else (_unnamed(kills, ends),)
    communicator, operation = main_operation(case)
    memory = bool(kills)
    who = ranks_text(list(dead)) if dead else roots[0].name
    return Finding(
        reason="killed",
        verdict_class=VerdictClass.H1,
        sub_reason=SubReason.PROCESS_KILLED,
        roots=roots,
        communicator=communicator,
        operation=operation,
        phase=_phase(case),
        owner=Owner.HOST if memory else Owner.UNKNOWN,
        action=Action(
            ActionKind.FIX_CONFIGURATION if memory else ActionKind.RESTART_PROCESS,
            who,
            "host memory ran out: lower its use or raise the limit"
            if memory
            else "find out who ended it, restart",
        ),
        confidence=0.85 if dead else 0.7,
        grounds=(
            *(Ground("host_kill", kill.text[:160], (kill.origin,)) for kill in kills[:4]),
            *(Ground("process_end", end.text[:160], (end.origin,)) for end in ends[:4]),
            *_complaints(case),
        ),
        summary=f"{who} was {'killed for host memory' if memory else 'killed or died'}; "
        f"its peers wait in {operation_text(operation)}",
        would_decide=() if dead else ("which rank the process was: launcher log with pids",),
    )


def _only_silent(case: Case) -> set[int]:
    """The one rank that neither waits nor says anything, where all others wait: the process that was lost."""
    waiting = {rank for fact in case.of(WorkTimeout) if (rank := case.rank_of(fact)) is not None}
    everybody = set(range(max([case.world_size, *(rank + 1 for rank in case.ranks_named)])))
    silent = everybody - waiting - set(case.ranks_named)
    return silent if len(silent) == 1 and len(waiting) >= 2 and waiting | silent == everybody else set()


def _goes_on(case: Case, kills: Sequence[HostKill]) -> bool:
    """Nobody waits and steps follow long after: the process that was killed was none of the job's."""
    if _somebody_waits(case) or case.of(ProcessFault):
        return False
    gaps = [gap for step in case.of(ProgressSeen) if (gap := seconds_after(kills[-1], step)) is not None]
    return max(gaps, default=0.0) >= _GOES_ON_S


def connection_closed(case: Case) -> Finding | None:
    """Everybody else lost one peer's connection: the process that says nothing is gone."""
    closed = [f for f in case.of(NetworkFailure) if f.kind is NetworkKind.CLOSED]
    closed_gloo = [f for f in case.of(GlooFailure) if f.kind in (GlooKind.CLOSED, GlooKind.RESET)]
    facts: list[Fact] = [*closed, *closed_gloo]
    if not facts or case.of(WorkTimeout):
        return None
    lost: list[Fact] = [*facts, *(f for f in case.of(GlooFailure) if f.kind is GlooKind.CASCADE)]
    complain = {rank for fact in lost if (rank := case.rank_of(fact)) is not None}
    timeouts = {
        r for f in case.of(GlooFailure) if f.kind is GlooKind.TIMEOUT and (r := case.rank_of(f)) is not None
    }
    if timeouts:
        return None  # who timed out closed the pair; its waiting is judged elsewhere
    highest = max(case.ranks_named, default=-1)
    gone = set(range(case.world_size or highest + 1)) - complain
    unheard = 1 if gone <= set(case.ranks_named) or case.world_size else _UNHEARD_SHARE
    if not complain or not gone or len(gone) * unheard > len(complain):
        gone = set()
    gone = _rank_of_peer(case, closed_gloo, complain) or gone
    roots = (
        rank_roots(gone, "its connections closed")
        if gone
        else (Blame(RootKind.NONE, name="the peer of the closed connection"),)
    )
    return Finding(
        reason="connection_closed",
        verdict_class=VerdictClass.H1,
        sub_reason=SubReason.PROCESS_EXITED,
        roots=roots,
        victims=tuple(sorted(complain)),
        phase="collective",
        owner=Owner.UNKNOWN,
        action=Action(ActionKind.COLLECT, "", "log and exit code of the process that is gone"),
        confidence=0.6 if gone else 0.4,
        grounds=(Ground("closed", "end of file from a peer: its process ended", origins_of(facts)),),
        summary=f"{ranks_text(list(gone)) if gone else 'A peer'} ended: "
        f"{ranks_text(list(complain)) if complain else 'others'} lost the connection",
        would_decide=("exit code of the missing process (launcher, dmesg)",),
    )


def _rank_of_peer(case: Case, lost: Sequence[GlooFailure], complain: set[int]) -> set[int]:
    """The only rank at the one address to which all connections closed, where a line says who is there."""
    addresses = {fact.peer.rpartition(":")[0] for fact in lost if fact.peer}
    there = {rank for rank, place in case.places.items() if place.host and place.host in addresses}
    return there if len(addresses) == 1 and len(there) == 1 and not there & complain else set()


def ended_alone(case: Case) -> Finding | None:
    """A launcher saw one process end with an error code and asked all others to end; nobody complains.

    Not of torchelastic's "first observed failure": that one has often waited before.
    """
    ends = [end for end in case.of(ProcessEnd) if not end.clean]
    own = [end for end in ends if (end.exit_code or 0) > 0 and end.exit_code not in _ASKED_CODES]
    asked = [end for end in ends if end.signal in _ASKED or end.exit_code in _ASKED_CODES]
    ranks = {case.rank_of(end) for end in own}
    rank = case.rank_of(own[0]) if len(ranks) == 1 else None
    if rank is None or not asked or len(own) + len(asked) < len(ends) or any(e.called_first for e in own):
        return None
    if _somebody_waits(case):
        return None
    return Finding(
        reason="ended_alone",
        verdict_class=VerdictClass.H1,
        sub_reason=SubReason.PROCESS_EXITED,
        roots=rank_roots([rank], f"exit code {own[0].exit_code}"),
        victims=tuple(sorted({r for end in asked if (r := case.rank_of(end)) is not None} - {rank})),
        phase="process ended",
        owner=Owner.USER_CODE,
        action=Action(ActionKind.COLLECT, f"rank {rank}", "its standard error: what it raised"),
        confidence=0.6,
        grounds=(Ground("process_end", own[0].text[:160], (own[0].origin,)),),
        summary=f"rank {rank} ended first (exit code {own[0].exit_code}); its launcher then ended the others",
        would_decide=("the standard error of that rank",),
    )


def is_own_error(fault: ProcessFault) -> bool:
    return fault.kind in _OWN and not _BY_PEER.search(fault.text) and not _BY_PEER.search(fault.exception)


def _is_consequence(case: Case, fault: ProcessFault) -> bool:
    """The rank's own watchdog or transport had already given up."""
    rank = case.rank_of(fault)
    own: list[Fact] = [*case.of(WorkTimeout), *case.of(GlooFailure)]
    network = case.of(NetworkFailure)  # of processes whose rank no line says: the peers, seldom this one
    return any((rank is None or case.rank_of(f) in (rank, None)) and is_before(f, fault) for f in own) or any(
        (rank is None or case.rank_of(f) == rank) and is_before(f, fault) for f in network
    )


def _is_death(case: Case, end: ProcessEnd) -> bool:
    """An end that is a cause: not clean, not an abort after an own timeout, not before others' own words."""
    if end.clean:
        return False
    signal = (
        end.signal
        if end.signal is not None
        else ((end.exit_code or 0) - 128 if (end.exit_code or 0) > 128 else None)
    )
    unknown = end.exit_code is None and end.signal is None
    rank = case.rank_of(end)
    if rank is not None and rank in _waiting_ranks(case):
        return False
    return signal in _KILLS or (unknown and not end.called_first)


def _somebody_waits(case: Case) -> bool:
    kinds = (BarrierReport, WorkTimeout, NetworkFailure)
    return bool(_waiting_ranks(case)) or any(case.of(kind) for kind in kinds)


def _waiting_ranks(case: Case) -> list[int]:
    kinds = (WorkTimeout, GlooFailure, NetworkFailure)
    return sorted(
        {rank for kind in kinds for fact in case.of(kind) if (rank := case.rank_of(fact)) is not None}
    )


def _unnamed(kills: Sequence[HostKill], ends: Sequence[ProcessEnd]) -> Blame:
    if kills:
        kill = kills[0]
        name = f"process {kill.speaker.pid} ({kill.name})" if kill.name else f"process {kill.speaker.pid}"
        return Blame(RootKind.NONE, node=kill.speaker.host, name=name, why="killed for host memory")
    end = ends[0]
    name = (
        f"pod {end.name}"
        if end.name
        else f"process {end.speaker.pid}"
        if end.speaker.pid is not None
        else "the process that its launcher reports as dead"
    )
    return Blame(RootKind.NONE, node=end.speaker.host, name=name, why="died")


def _complaints(case: Case) -> tuple[Ground, ...]:
    facts: list[Fact] = [*case.of(WorkTimeout), *case.of(GlooFailure), *case.of(NetworkFailure)]
    ranks = sorted({rank for fact in facts if (rank := case.rank_of(fact)) is not None})
    if not ranks:
        return ()
    return (Ground("waiting", f"{ranks_text(ranks)} only waited or lost the connection", origins_of(facts)),)


def _phase(case: Case) -> str:
    if case.of(WorkTimeout):
        return ""
    if case.of(GlooFailure):
        return "gloo collective"
    return "barrier" if case.of(BarrierReport) else ""


def _frame(fault: ProcessFault) -> str:
    return f" at {fault.frames[-1]}" if fault.frames else ""


def _clean(text: str) -> str:
    return text.strip().removeprefix("what():").strip()[:140]


def _advice(fault: ProcessFault, memory: bool) -> str:
    return (
        "lower the memory it needs"
        if memory
        else f"fix what raised {fault.exception or 'the error'}{_frame(fault)}"
    )
