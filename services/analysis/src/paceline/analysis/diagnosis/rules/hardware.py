"""Machines first: the first event of the kernel that is a cause, and CUDA errors of a GPU itself."""

from collections.abc import Sequence

from paceline.analysis.diagnosis.answer import Blame, Ground
from paceline.analysis.diagnosis.case import Case, is_before
from paceline.analysis.diagnosis.rules.devices import (
    causes,
    event_action,
    event_grounds,
    event_name,
    event_text,
    independent,
    is_application,
    own_error_first,
)
from paceline.analysis.diagnosis.rules.finding import Finding, main_operation, origins_of, ranks_text
from paceline.analysis.facts import DeviceEvent, ProcessFault, ProcessFaultKind, WorkTimeout
from paceline.contracts.verdicts import Action, ActionKind, Owner, RootKind, SubReason, VerdictClass

_AT_ONCE_S = 1.0
_OFF_THE_BUS = 79
_TOGETHER_S = 60.0
_FEW = 2
_NEARLY_ALL = 0.75


def first_event(case: Case) -> Finding | None:
    """The first Xid or SXid that is a cause; those it explains are listed and not blamed."""
    events, found = case.of(DeviceEvent), causes(case)
    if not found or (is_application(found[0]) and own_error_first(case, found[0])):
        return None
    first, roots = found[0], _lost_node(found) or tuple(_blame(case, event) for event in independent(found))
    others = {(event.speaker.host, event.speaker.gpu) for event in events} - {
        (root.node, root.gpu) for root in roots
    }
    communicator, operation = main_operation(case)
    kind, reason = event_action(first)
    where = f"{roots[0].node} " if roots[0].node else ""
    what = "NVSwitch" if first.is_switch else "GPU" if roots[0].gpu else "with its GPUs"
    number = event_name(first) if not first.implied else "fell off the bus"
    follow = f"; {len(others)} other devices only report what follows" if others else ""
    return Finding(
        reason="hardware_event",
        verdict_class=VerdictClass.H3,
        sub_reason=SubReason.HARDWARE_EVENT,
        roots=roots,
        communicator=communicator,
        operation=operation,
        phase="device event",
        owner=Owner.USER_CODE if is_application(first) else Owner.GPU,
        action=Action(kind, f"{where}{what} {roots[0].gpu}".strip(), reason),
        confidence=0.9 if not is_application(first) else 0.7,
        grounds=event_grounds(events, found),
        summary=f"{where}{what} {roots[0].gpu}".rstrip()
        + f" failed first ({number}: {event_text(first)}){follow}",
    )


def device_fault(case: Case) -> Finding | None:
    """A CUDA error that no peer can cause, said first by one process."""
    kinds = {
        ProcessFaultKind.CUDA_ECC, ProcessFaultKind.CUDA_CONTAINED, ProcessFaultKind.CUDA_ILLEGAL,
        ProcessFaultKind.CUDA_OTHER,
    }  # fmt: skip
    faults = [f for f in case.of(ProcessFault) if f.kind in kinds and not _is_late(case, f)]
    if not faults:
        return None
    if alike := _at_once(case, faults):
        return _unordered(case, alike, ActionKind.FIX_CODE)
    first = _first_fault(case, faults)
    if first is None:
        return _unordered(case, faults)
    rank = case.rank_of(first)
    blame = _blame_fault(case, first, rank)
    followers = sorted({r for f in faults if (r := case.rank_of(f)) is not None and r != rank})
    communicator, operation = main_operation(case)
    software = first.kind is ProcessFaultKind.CUDA_ILLEGAL
    action = {
        ProcessFaultKind.CUDA_ECC: Action(ActionKind.RESET_GPU, _target(blame), "drain, reset or remap rows"),
        ProcessFaultKind.CUDA_CONTAINED: Action(
            ActionKind.REPLACE_NODE, _target(blame), "inspect the whole NVLink domain, not one GPU"
        ),
        ProcessFaultKind.CUDA_ILLEGAL: Action(
            ActionKind.RESTART_PROCESS,
            _target(blame),
            "a kernel of the program failed; no machine is to blame",
        ),
    }.get(first.kind, Action(ActionKind.COLLECT, _target(blame), "kernel log and GPU state of that node"))
    wave = f"; {len(followers)} ranks report it later" if followers else ""
    return Finding(
        reason="device_fault",
        verdict_class=VerdictClass.H3,
        sub_reason=SubReason.HARDWARE_EVENT,
        roots=(blame,),
        victims=tuple(followers) if followers else None,
        communicator=communicator,
        operation=operation,
        phase="device work outside a collective",
        owner=Owner.USER_CODE if software else Owner.GPU,
        action=action,
        confidence=0.85 if rank is not None else 0.6,
        grounds=(
            Ground("first_device_error", f"first device error: {first.text[:160]}", (first.origin,)),
            *(
                (Ground("wave", f"the same error later on {len(followers)} ranks", origins_of(faults)),)
                if followers
                else ()
            ),
        ),
        summary=f"{_who(blame)} failed first: {_words(first)}{wave}",
        would_decide=() if blame.node else ("the kernel log (dmesg) of the node",),
    )


def _lost_node(found: Sequence[DeviceEvent]) -> tuple[Blame, ...]:
    """A host that lost several GPUs at one time: its power or bus, not the GPU whose line is the first."""
    first = found[0]
    gone = {
        event.speaker.gpu
        for event in found
        if event.code == _OFF_THE_BUS
        and event.speaker.host == first.speaker.host
        and abs((event.time_s or 0.0) - (first.time_s or 0.0)) <= _TOGETHER_S
    }
    if first.code != _OFF_THE_BUS or len(gone) <= _FEW or not first.speaker.host:
        return ()
    return (Blame(RootKind.NODE, node=first.speaker.host, why=f"{len(gone)} GPUs fell off the bus together"),)


def _first_fault(case: Case, faults: Sequence[ProcessFault]) -> ProcessFault | None:
    """The fault that came first: by time, by line of one file, or the only one that a memory cell gives.

    None where several ranks say it in files that no clock orders: then nobody is named.
    """
    timed = [fault for fault in faults if fault.time_s is not None]
    if timed:
        begin = min(fault.time_s or 0.0 for fault in timed)
        same = [fault for fault in timed if fault.time_s == begin]
        tied = len({f.origin.file for f in same}) > 1 and len({case.rank_of(f) for f in same}) > 1
        return None if tied else same[0]
    speakers = {(case.rank_of(f), f.speaker.host, f.speaker.pid, f.speaker.local_rank) for f in faults}
    if len({fault.origin.file for fault in faults}) == 1 or len(speakers) == 1:
        return faults[0]
    broken = [fault for fault in faults if fault.kind is ProcessFaultKind.CUDA_ECC]
    return broken[0] if len(broken) == 1 else None


def _at_once(case: Case, faults: Sequence[ProcessFault]) -> list[ProcessFault]:
    """Illegal accesses that nearly all ranks report within a second: the program, and nobody first."""
    illegal = [f for f in faults if f.kind is ProcessFaultKind.CUDA_ILLEGAL and f.time_s is not None]
    if len(illegal) < len(faults) or not illegal or case.of(DeviceEvent):
        return []
    begin = min(fault.time_s or 0.0 for fault in illegal)
    soon = {case.rank_of(f) for f in illegal if (f.time_s or 0.0) - begin <= _AT_ONCE_S} - {None}
    everybody = {case.rank_of(f) for f in illegal} - {None}
    return illegal if len(soon) > _FEW and len(soon) >= _NEARLY_ALL * len(everybody) else []


def _unordered(case: Case, faults: Sequence[ProcessFault], kind: ActionKind = ActionKind.COLLECT) -> Finding:
    ranks = sorted({rank for fault in faults if (rank := case.rank_of(fault)) is not None})
    who = ranks_text(ranks) if ranks else f"{len(faults)} processes"
    return Finding(
        reason="device_faults_unordered",
        verdict_class=VerdictClass.H3,
        sub_reason=SubReason.HARDWARE_EVENT,
        roots=(Blame(RootKind.NONE, name=f"one of {who}", why="their logs have no times that order them"),),
        victims=(),
        phase="device work outside a collective",
        owner=Owner.GPU,
        action=Action(kind, who, "what they run at that point; kernel logs of their nodes"),
        confidence=0.5,
        grounds=(Ground("device_errors", f"{who}: {faults[0].text[:160]}", origins_of(faults)),),
        summary=f"{who} report device errors ({_words(faults[0])}); which came first is not in these files",
        would_decide=("the kernel log (dmesg) of these nodes", "logs with times"),
    )


def _blame(case: Case, event: DeviceEvent) -> Blame:
    gpu = event.process if event.is_switch else event.speaker.gpu
    link = f"link {event.link}" if event.link is not None else ""
    return Blame(
        RootKind.DOMAIN if event.is_switch else RootKind.GPU,
        rank=None if event.is_switch else case.rank_on(event.speaker.host, event.speaker.gpu),
        node=event.speaker.host,
        gpu=gpu or event.speaker.gpu,
        name=link,
        why=event_name(event),
    )


def _blame_fault(case: Case, fault: ProcessFault, rank: int | None) -> Blame:
    speaker = fault.speaker
    place = case.places.get(rank) if rank is not None else None
    node = speaker.host or (place.host if place else "")
    gpu = place.gpu if place else ""
    if rank is not None:
        return Blame(RootKind.RANK, rank=rank, node=node, gpu=gpu, why=fault.kind.value)
    local = f"local rank {speaker.local_rank}" if speaker.local_rank is not None else "a process"
    index = str(speaker.local_rank) if speaker.local_rank is not None else ""
    return Blame(
        RootKind.GPU,
        node=node,
        gpu=index,
        name=f"{local} of {node or 'an unnamed node'}",
        why=fault.kind.value,
    )


def _is_late(case: Case, fault: ProcessFault) -> bool:
    """After the watchdog of the same rank gave up, errors of its device are consequences."""
    rank = case.rank_of(fault)
    return any(is_before(t, fault) for t in case.of(WorkTimeout) if rank is None or case.rank_of(t) == rank)


def _words(fault: ProcessFault) -> str:
    return fault.text.removeprefix("what():").strip()[:120]


def _who(blame: Blame) -> str:
    if blame.rank is None:
        return blame.name
    return f"rank {blame.rank}" + (f" on {blame.node}" if blame.node else "")


def _target(blame: Blame) -> str:
    return " ".join(part for part in (blame.node, blame.gpu) if part) or _who(blame)
