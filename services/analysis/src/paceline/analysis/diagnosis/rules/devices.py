"""Which events of the kernel's log can be first causes.

What follows an event is not one: 43, 45 and 63 say that something has happened before, 145 on other GPUs
follows a link that went down, and the process in the line is only the one that used the GPU. An event of a
GPU that the job does not use, or one that comes when the job has already complained, is none of the job's.
Actions after NVIDIA's Xid catalog.
"""

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from paceline.analysis.adapters.kernel_amd import BY_PORT
from paceline.analysis.diagnosis.answer import Ground
from paceline.analysis.diagnosis.case import Case, first_and_last, is_before, seconds_after
from paceline.analysis.diagnosis.rules.ends import is_own_error
from paceline.analysis.facts import (
    DeviceEvent,
    Fact,
    GlooFailure,
    Membership,
    NetworkFailure,
    ProcessEnd,
    ProcessFault,
    ProgressSeen,
    SampleRow,
    WorkTimeout,
)
from paceline.contracts.verdicts import ActionKind

_CONSEQUENCES = frozenset({43, 45, 63, 92, 154, 162, 163, 164})
_OF_APPLICATION = frozenset({8, 13, 31, 32, 38, 68, 69, 109})  # a program's fault unless hardware fails too
_LINKS = frozenset(range(144, 151))  # NVLink 5
_LINK_CODES = _LINKS | {74}
# What other GPUs of a domain report after one link or switch failed.
_OF_LINK = _LINK_CODES | {13, 31, 94, 137}
_CAUSED_BY = re.compile(r"caused by previous Xid (\d{1,4})")
_REPLACE = frozenset({61, 62, 79, 110, 143})
_TEARDOWN_S = 10.0  # an application's Xid that much after the job's own complaint is its end
_LATE_S = 60.0  # a machine's event that much after it came too late; clocks of hosts differ by less
_OUTLIVED_S = 300.0
_ZONE_NEAR_S = 240.0
_SHOWN = 64
_ACTIONS = {
    13: "restart the application", 31: "restart the application", 43: "ignore", 45: "ignore", 63: "ignore",
    48: "reset the GPU, then its memory workflow", 64: "reset the GPU", 74: "NVLink workflow",
    79: "restart the machine", 94: "restart the application, reset the GPU at the next pause",
    95: "reset the GPU", 119: "reset the GPU", 120: "reset the GPU",
}  # fmt: skip
_OF_QUEUES = ("ring timeout", "queue cannot be preempted")
_NODE_LABELS = ("lost from the bus", "reset failed")


def causes(case: Case) -> list[DeviceEvent]:
    """Events that can be first causes, the first one first."""
    if not case.of(DeviceEvent):
        return []
    job = _Job(case)
    events = [event for event in case.of(DeviceEvent) if not job.is_strange(event)]
    able = [event for event in events if _can_cause(event)] or _named_causes(events)
    if _goes_on(case, able):
        return []
    able = [event for event in able if not _is_of_a_fault(event, events)]
    able = [event for event in able if not job.is_late(event) and not job.is_outlived(event)]
    if any(event.severity == "Fatal" and event.code in _LINKS for event in able):
        able = [event for event in able if event.code not in _LINKS or event.severity == "Fatal"]
    if any(event.code == 149 for event in able):
        able = [event for event in able if event.code != 145]
    hard = [event for event in able if not is_application(event)]
    chosen = hard or able
    if not chosen:
        return []
    if all(event.time_s is not None for event in chosen) and len({event.clock for event in chosen}) == 1:
        chosen = sorted(chosen, key=lambda event: event.time_s or 0.0)
    return chosen


def independent(found: Sequence[DeviceEvent]) -> list[DeviceEvent]:
    """The first event, and those of other GPUs that it does not explain: another code, at another moment.

    An application's fault (Xid 13, 31) spreads over the GPUs of its job: the first is the only root.
    """
    first = found[0]
    if is_application(first):
        return [first]
    kept = [first]
    devices = {(first.speaker.host, first.speaker.gpu)}
    for event in found[1:]:
        device = (event.speaker.host, event.speaker.gpu)
        if (
            device not in devices
            and (event.code, event.label) != (first.code, first.label)
            and not (event.code in _LINK_CODES and first.code == 79)
            and not (event.code in _OF_LINK and (first.is_switch or first.code in _LINK_CODES))
        ):
            devices.add(device)
            kept.append(event)
    return kept[:_SHOWN]


def is_application(event: DeviceEvent) -> bool:
    return event.of_application or (not event.is_switch and event.code in _OF_APPLICATION)


def own_error_first(case: Case, event: DeviceEvent) -> bool:
    """A Python error that is not about the GPU and not known to be later: its process was ended with work
    on the GPU, which gives the same Xid."""
    faults = [f for f in case.of(ProcessFault) if is_own_error(f)]
    return any((seconds_after(event, fault) or 0.0) <= 0.0 for fault in faults)


def event_name(event: DeviceEvent) -> str:
    """`Xid 79`, `SXid 20034`, `uncorrectable hardware error`."""
    return event.label or f"{'SXid' if event.is_switch else 'Xid'} {event.code}"


def event_action(event: DeviceEvent) -> tuple[ActionKind, str]:
    if event.is_switch:
        return ActionKind.REPLACE_NODE, "drain the switch's domain"
    if is_application(event):
        deep = (
            "; a client the driver no longer knows needs the node's restart"
            if "UNRECOGNIZED_CLIENT" in event.text
            else ""
        )
        return ActionKind.RESTART_PROCESS, f"a kernel of the program failed{deep}"
    if event.code in _REPLACE or (event.code in _LINKS and event.severity == "Fatal"):
        return ActionKind.REPLACE_NODE, _ACTIONS.get(event.code, "take the node out")
    if event.label in _NODE_LABELS:
        return ActionKind.REPLACE_NODE, "take the node out"
    return ActionKind.RESET_GPU, _ACTIONS.get(event.code, "drain the node and reset the GPU")


def event_grounds(events: Sequence[DeviceEvent], found: Sequence[DeviceEvent]) -> tuple[Ground, ...]:
    cause = set(map(id, found))
    return tuple(
        Ground("device_event", _line(event), (event.origin,), supports=id(event) in cause)
        for event in [*found, *(event for event in events if id(event) not in cause)][:_SHOWN]
    )


def event_text(event: DeviceEvent) -> str:
    text = event.text.split("name=", 1)[-1].split(", ", 1)[-1] if "name=" in event.text else event.text
    return text[:80].strip()


def _line(event: DeviceEvent) -> str:
    where = " ".join(
        part for part in (event.speaker.host, event.process if event.is_switch else event.speaker.gpu) if part
    )
    more = [f"link {event.link}"] if event.link is not None else []
    more += [event.severity] if event.severity else []
    more += [f"the driver asks for: {event.recovery}"] if event.recovery else []
    advice = _ACTIONS.get(event.code, "") if not event.is_switch else ""
    return f"{where}: {event_name(event)} {' '.join(more)}".rstrip() + (f" ({advice})" if advice else "")


def _named_causes(events: Sequence[DeviceEvent]) -> list[DeviceEvent]:
    """Where only the cleanup is left of the log: it names the event that it follows."""
    found = [(event, _CAUSED_BY.search(event.text)) for event in events]
    named = [replace(event, code=int(cause[1])) for event, cause in found if cause]
    asked = [event for event in events if event.recovery not in ("", "None")]
    return [event for event in named if _can_cause(event)] or asked


def _can_cause(event: DeviceEvent) -> bool:
    if event.follows:
        return False
    return event.severity != "Nonfatal" if event.is_switch else event.code not in _CONSEQUENCES


def _goes_on(case: Case, events: Sequence[DeviceEvent]) -> bool:
    """Nobody complains, and steps come after every event."""
    kinds = (WorkTimeout, ProcessFault, NetworkFailure, GlooFailure, ProcessEnd)
    steps: list[Fact] = [*case.of(ProgressSeen), *(row for row in case.of(SampleRow) if row.kind == "steps")]
    if not events or not steps or any(case.of(kind) for kind in kinds):
        return False
    return all((seconds_after(event, steps[-1]) or 0.0) > _LATE_S for event in events)


def _is_of_a_fault(event: DeviceEvent, events: Sequence[DeviceEvent]) -> bool:
    """A queue that stops on a GPU after a page fault of its program."""
    if event.label not in _OF_QUEUES:
        return False
    faults = [other for other in events if other.of_application and other.speaker.gpu == event.speaker.gpu]
    return any(is_before(fault, event) for fault in faults[:_SHOWN])


class _Job:
    """What events are held against: where the job runs, when it complained, when it made steps."""

    def __init__(self, case: Case) -> None:
        members = [f for f in case.of(Membership) if f.speaker.host and f.rank_in_group is not None]
        self.gpus = {fact.speaker.gpu for fact in case.of(Membership)}
        self.on: dict[str, list[Membership]] = defaultdict(list)
        for fact in members:
            self.on[fact.speaker.host].append(fact)
        self.gpus_on = {host: {fact.speaker.gpu for fact in found} for host, found in self.on.items()}
        self.pids_on = {host: {fact.speaker.pid for fact in found} for host, found in self.on.items()}
        self.complaints = first_and_last([*case.of(WorkTimeout), *case.of(ProcessFault)])
        self.steps = first_and_last(case.of(ProgressSeen))

    def is_strange(self, event: DeviceEvent) -> bool:
        """Of a GPU that no rank uses, on a node of whose ranks all GPUs are known."""
        gpu = event.speaker.gpu
        if event.is_switch or not gpu or event.code in _LINK_CODES:
            return False
        if event.label == BY_PORT and gpu not in self.gpus:
            return True
        host = event.speaker.host or (next(iter(self.on)) if len(self.on) == 1 else "")
        gpus = self.gpus_on.get(host, set())
        if not gpus or "" in gpus:
            return False
        return gpu not in gpus and event.speaker.pid not in self.pids_on[host]

    def is_late(self, event: DeviceEvent) -> bool:
        """Whether the job had already complained when this came."""
        gaps = [seconds_after(fact, event) or 0.0 for fact in self.complaints]
        if is_application(event):
            return any(gap > _TEARDOWN_S for gap in gaps)
        return any(gap > _LATE_S and not _is_of_zones(gap) for gap in gaps)

    def is_outlived(self, event: DeviceEvent) -> bool:
        """Whether the job made steps well after this; all its ranks take part in each."""
        gaps = [seconds_after(event, step) or 0.0 for step in self.steps]
        return any(gap > _OUTLIVED_S for gap in gaps) and not _is_of_zones(max(gaps))


def _is_of_zones(gap: float) -> bool:
    """A gap that clocks of two time zones make: about whole hours, or one of the uneven zones."""
    quarters = gap / 900.0
    near = abs(quarters - round(quarters)) * 900.0 <= _ZONE_NEAR_S
    return near and round(quarters) > 0 and (round(quarters) % 4 == 0 or round(quarters) in (22, 23, 38, 42))
