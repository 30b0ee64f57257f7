"""States of devices that tools report (nvidia-smi, dcgmi), where a job stands and nothing else says why."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from paceline.analysis.diagnosis.answer import Blame, Ground
from paceline.analysis.diagnosis.case import Case
from paceline.analysis.diagnosis.rules.finding import Finding, complaining, main_operation, origins_of
from paceline.analysis.diagnosis.rules.silence import silent
from paceline.analysis.facts import ProcessFault, SampleRow, SettingSeen
from paceline.contracts.verdicts import Action, ActionKind, Owner, RootKind, SubReason, VerdictClass

_LOST = ("gpu_lost",)
_BROKEN = {  # setting: what it says, in order of weight
    "gpu_recovery_action": "asks for recovery",
    "gpu_unreadable": "cannot be read by the driver's tools",
    "remap_failed": "cannot remap memory rows",
    "ecc_uncorrectable": "has uncorrectable memory errors",
    "health_failure": "fails its health check",
    "nvlink_down": "has NVLink links down",
}
_STRONG = ("gpu_recovery_action", "gpu_unreadable")
_MEASURED = ("nccl_tests", "bandwidth", "network_bench")
_MANY = 100.0  # errors since the driver started
_FEW = 3  # so many times more devices are fine as are not: else the state is the usual one


def lost_device(case: Case) -> Finding | None:
    """A GPU that the driver has lost."""
    facts = [fact for fact in case.of(SettingSeen) if fact.name in _LOST]
    return (
        _finding(case, facts, "is lost: the driver does not reach it", ActionKind.REPLACE_NODE)
        if facts
        else None
    )


def device_state(case: Case) -> Finding | None:
    """The device that differs from the others by its state, in a job that waits or failed on devices."""
    measured = any(row.kind in _MEASURED for row in case.of(SampleRow))
    troubled = bool(complaining(case) or case.of(ProcessFault))
    if not troubled and not measured:
        return None
    late = silent(case)
    for name, words in _BROKEN.items():
        if late is not None and name not in _STRONG:
            continue  # a counter may be old: the rank that did not enter says more
        facts = [fact for fact in case.of(SettingSeen) if fact.name == name]
        if name == "nvlink_down" and not any(fact.name == "nvlink_up" for fact in case.of(SettingSeen)):
            continue
        if name != "nvlink_down" and not troubled:
            continue
        devices = {_device(fact) for fact in facts}
        if facts and len(devices) * _FEW <= max(
            len(case.ranks_named), len(devices) * _FEW if len(devices) == 1 else 0
        ):
            return _finding(case, facts, words, ActionKind.RESET_GPU)
    facts = _recovering(case) if troubled and late is None else []
    return (
        _finding(case, facts, "has an NVLink link that recovers or replays", ActionKind.RESET_GPU)
        if facts
        else None
    )


def _recovering(case: Case) -> list[SettingSeen]:
    """The one GPU of several whose NVLink errors grow, or are many since the driver started."""
    seen: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    rows: dict[tuple[str, str], SampleRow] = {}
    for row in case.of(SampleRow):
        for name, value in row.numbers.items():
            if row.kind == "network" and name.startswith("nvlink_"):
                place = row.speaker.host, row.words.get("gpu", "")
                seen[place][name].append(value)
                if value:
                    rows[place] = row
    guilty = {
        place: name
        for place, counters in seen.items()
        for name, values in counters.items()
        if values[-1] > values[0] or values[-1] >= _MANY
    }
    if len(guilty) != 1 or len(seen) <= _FEW:
        return []
    ((place, name),) = guilty.items()
    row, index = rows[place], place[1].removeprefix("GPU ")
    speaker = replace(row.speaker, rank=None, local_rank=int(index) if index.isdecimal() else None)
    words = name.removeprefix("nvlink_").replace("_", " ")
    text = f"{words}: {seen[place][name][0]:.0f} to {seen[place][name][-1]:.0f}"
    return [SettingSeen(origin=row.origin, speaker=speaker, name="nvlink_errors", value=words, text=text)]


def _finding(case: Case, facts: Sequence[SettingSeen], words: str, action: ActionKind) -> Finding:
    first = {_device(fact): fact for fact in reversed(facts)}
    roots = tuple(
        Blame(RootKind.GPU, rank=case.rank_of(fact), node=node, gpu=gpu, name=fact.value[:80], why=words)
        for (node, gpu), fact in list(first.items())[:8]
    )
    communicator, operation = main_operation(case)
    who = ", ".join(f"{root.node} GPU {root.gpu}".strip() for root in roots)
    return Finding(
        reason="device_state",
        verdict_class=VerdictClass.H3,
        sub_reason=SubReason.HARDWARE_EVENT,
        roots=roots,
        communicator=communicator,
        operation=operation,
        phase="device state",
        owner=Owner.GPU,
        action=Action(action, who, "take it out and look at the kernel log of that node"),
        confidence=0.7,
        grounds=(Ground("state", f"{who}: {facts[0].text[:160]}", origins_of(facts)),),
        summary=f"{who} {words} ({facts[0].text[:80]}); the ranks that wait are healthy",
        would_decide=("the kernel log (dmesg) of that node: when it failed",),
    )


def _device(fact: SettingSeen) -> tuple[str, str]:
    speaker = fact.speaker
    index = str(speaker.local_rank) if speaker.local_rank is not None else ""
    return speaker.host, speaker.gpu or index
