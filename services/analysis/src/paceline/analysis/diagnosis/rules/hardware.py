"""Machines first: the first event of the kernel that is a cause, and CUDA errors that a GPU gives by itself.

What follows an event is not one: 43, 45 and 63 say that something has happened before, 145 on other GPUs
follows a link that went down, and the process in the line is only the one that used the GPU.
Actions after NVIDIA's Xid catalog.
"""

import re
from collections.abc import Sequence
from dataclasses import replace

from paceline.analysis.diagnosis.answer import Blame, Ground
from paceline.analysis.diagnosis.case import Case, is_before, seconds_after
from paceline.analysis.diagnosis.rules.ends import is_own_error
from paceline.analysis.diagnosis.rules.finding import Finding, main_operation, origins_of
from paceline.analysis.facts import DeviceEvent, ProcessFault, ProcessFaultKind, WorkTimeout
from paceline.contracts.verdicts import Action, ActionKind, Owner, RootKind, SubReason, VerdictClass

_CONSEQUENCES = frozenset({43, 45, 63, 92, 154, 162, 163, 164})
_OF_APPLICATION = frozenset({8, 13, 31, 32, 38, 68, 69, 109})  # a program's fault unless hardware fails too
_LINKS = frozenset(range(144, 151))  # NVLink 5
_LINK_CODES = _LINKS | {74}
_OF_LINK = _LINK_CODES | {
    13,
    31,
    94,
    137,
}  # what other GPUs of a domain report after one link or switch failed
_CAUSED_BY = re.compile(r"caused by previous Xid (\d{1,4})")
_REPLACE = frozenset({61, 62, 79, 110, 143})
_TEARDOWN_S = 10.0  # an application's Xid that much after the job's own complaint is its end
_SHOWN = 64
_ACTIONS = {
    13: "restart the application", 31: "restart the application", 43: "ignore", 45: "ignore", 63: "ignore",
    48: "reset the GPU, then its memory workflow", 64: "reset the GPU", 74: "NVLink workflow",
    79: "restart the machine", 94: "restart the application, reset the GPU at the next pause",
    95: "reset the GPU", 119: "reset the GPU", 120: "reset the GPU",
}  # fmt: skip


def first_event(case: Case) -> Finding | None:
    """The first Xid or SXid that is a cause; those it explains are listed and not blamed."""
    events = case.of(DeviceEvent)
    causes = _causes(case, events)
    if not causes:
        return None
    if _is_application(causes[0]) and _own_error_first(case, causes[0]):
        return None
    first, roots = causes[0], tuple(_blame(case, event) for event in _independent(causes))
    others = {(event.speaker.host, event.speaker.gpu) for event in events} - {
        (root.node, root.gpu) for root in roots
    }
    communicator, operation = main_operation(case)
    kind, reason = _action(first)
    where = f"{roots[0].node} " if roots[0].node else ""
    what = "NVSwitch" if first.is_switch else "GPU"
    number = (
        f"{'SXid' if first.is_switch else 'Xid'} {first.code}" if not first.implied else "fell off the bus"
    )
    follow = f"; {len(others)} other devices only report what follows" if others else ""
    return Finding(
        reason="hardware_event",
        verdict_class=VerdictClass.H3,
        sub_reason=SubReason.HARDWARE_EVENT,
        roots=roots,
        communicator=communicator,
        operation=operation,
        phase="device event",
        owner=Owner.USER_CODE if _is_application(first) else Owner.GPU,
        action=Action(kind, f"{where}{what} {roots[0].gpu}".strip(), reason),
        confidence=0.9 if not _is_application(first) else 0.7,
        grounds=_grounds(events, causes),
        summary=f"{where}{what} {roots[0].gpu} failed first ({number}: {_short(first)}){follow}",
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
    timed = [fault for fault in faults if fault.time_s is not None]
    first = min(timed, key=lambda fault: fault.time_s or 0.0) if timed else faults[0]
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


def _causes(case: Case, events: Sequence[DeviceEvent]) -> list[DeviceEvent]:
    """Events that can be first causes, the first one first."""
    able = [event for event in events if _can_cause(event)] or _named_causes(events)
    able = [event for event in able if not (_is_application(event) and _is_teardown(case, event))]
    if any(event.severity == "Fatal" and event.code in _LINKS for event in able):
        able = [event for event in able if event.code not in _LINKS or event.severity == "Fatal"]
    if any(event.code == 149 for event in able):
        able = [event for event in able if event.code != 145]
    hard = [event for event in able if not _is_application(event)]
    chosen = hard or able
    if not chosen:
        return []
    if all(event.time_s is not None for event in chosen) and len({event.clock for event in chosen}) == 1:
        chosen = sorted(chosen, key=lambda event: event.time_s or 0.0)
    return chosen


def _named_causes(events: Sequence[DeviceEvent]) -> list[DeviceEvent]:
    """Where only the cleanup is left of the log: it names the event that it follows."""
    found = [(event, _CAUSED_BY.search(event.text)) for event in events]
    named = [replace(event, code=int(cause[1])) for event, cause in found if cause]
    return [event for event in named if _can_cause(event)]


def _can_cause(event: DeviceEvent) -> bool:
    return event.severity != "Nonfatal" if event.is_switch else event.code not in _CONSEQUENCES


def _independent(causes: Sequence[DeviceEvent]) -> list[DeviceEvent]:
    """The first event, and those of other GPUs that it does not explain: another code, at another moment.

    An application's fault (Xid 13, 31) spreads over the GPUs of its job: the first is the only root.
    """
    first = causes[0]
    if _is_application(first):
        return [first]
    found = [first]
    devices = {(first.speaker.host, first.speaker.gpu)}
    for event in causes[1:]:
        device = (event.speaker.host, event.speaker.gpu)
        if (
            device not in devices
            and event.code != first.code
            and not (event.code in _LINK_CODES and first.code == 79)
            and not (event.code in _OF_LINK and (first.is_switch or first.code in _LINK_CODES))
        ):
            devices.add(device)
            found.append(event)
    return found[:_SHOWN]


def _blame(case: Case, event: DeviceEvent) -> Blame:
    gpu = event.process if event.is_switch else event.speaker.gpu
    link = f"link {event.link}" if event.link is not None else ""
    return Blame(
        RootKind.DOMAIN if event.is_switch else RootKind.GPU,
        rank=None if event.is_switch else case.rank_on(event.speaker.host, event.speaker.gpu),
        node=event.speaker.host,
        gpu=gpu or event.speaker.gpu,
        name=link,
        why=f"{'SXid' if event.is_switch else 'Xid'} {event.code}",
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


def _is_application(event: DeviceEvent) -> bool:
    return not event.is_switch and event.code in _OF_APPLICATION


def _is_teardown(case: Case, event: DeviceEvent) -> bool:
    """Whether the job had already complained when this came."""
    before = [*case.of(WorkTimeout), *case.of(ProcessFault)]
    return any((seconds_after(fact, event) or 0.0) > _TEARDOWN_S for fact in before)


def _own_error_first(case: Case, event: DeviceEvent) -> bool:
    """A Python error that is not about the GPU and not known to be later: its process was ended with work
    on the GPU, which gives the same Xid."""
    faults = [f for f in case.of(ProcessFault) if is_own_error(f)]
    return any((seconds_after(event, fault) or 0.0) <= 0.0 for fault in faults)


def _is_late(case: Case, fault: ProcessFault) -> bool:
    """After the watchdog of the same rank gave up, errors of its device are consequences."""
    rank = case.rank_of(fault)
    return any(is_before(t, fault) for t in case.of(WorkTimeout) if rank is None or case.rank_of(t) == rank)


def _action(event: DeviceEvent) -> tuple[ActionKind, str]:
    if event.is_switch:
        return ActionKind.REPLACE_NODE, "drain the switch's domain"
    if _is_application(event):
        deep = (
            "; a client the driver no longer knows needs the node's restart"
            if "UNRECOGNIZED_CLIENT" in event.text
            else ""
        )
        return ActionKind.RESTART_PROCESS, f"a kernel of the program failed{deep}"
    if event.code in _REPLACE or (event.code in _LINKS and event.severity == "Fatal"):
        return ActionKind.REPLACE_NODE, _ACTIONS.get(event.code, "take the node out")
    return ActionKind.RESET_GPU, _ACTIONS.get(event.code, "drain the node and reset the GPU")


def _grounds(events: Sequence[DeviceEvent], causes: Sequence[DeviceEvent]) -> tuple[Ground, ...]:
    cause = set(map(id, causes))
    return tuple(
        Ground("device_event", _line(event), (event.origin,), supports=id(event) in cause)
        for event in [*causes, *(event for event in events if id(event) not in cause)][:_SHOWN]
    )


def _line(event: DeviceEvent) -> str:
    where = " ".join(
        part for part in (event.speaker.host, event.process if event.is_switch else event.speaker.gpu) if part
    )
    number = f"{'SXid' if event.is_switch else 'Xid'} {event.code}"
    more = [f"link {event.link}"] if event.link is not None else []
    more += [event.severity] if event.severity else []
    more += [f"the driver asks for: {event.recovery}"] if event.recovery else []
    advice = _ACTIONS.get(event.code, "") if not event.is_switch else ""
    return f"{where}: {number} {' '.join(more)}".rstrip() + (f" ({advice})" if advice else "")


def _short(event: DeviceEvent) -> str:
    text = event.text.split("name=", 1)[-1].split(", ", 1)[-1] if "name=" in event.text else event.text
    return text[:80].strip()


def _words(fault: ProcessFault) -> str:
    return fault.text.removeprefix("what():").strip()[:120]


def _who(blame: Blame) -> str:
    if blame.rank is None:
        return blame.name
    return f"rank {blame.rank}" + (f" on {blame.node}" if blame.node else "")


def _target(blame: Blame) -> str:
    return " ".join(part for part in (blame.node, blame.gpu) if part) or _who(blame)
