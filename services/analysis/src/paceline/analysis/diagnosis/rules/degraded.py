"""Links that came up slower than they should: a GPU's slot, a port's rate; and nodes that booted."""

from collections import Counter, defaultdict

from paceline.analysis.diagnosis.answer import Blame, Ground
from paceline.analysis.diagnosis.case import Case, seconds_after
from paceline.analysis.diagnosis.rules.finding import Finding, complaining, main_operation, origins_of
from paceline.analysis.facts import NetworkFailure, SettingSeen, WorkTimeout
from paceline.contracts.verdicts import Action, ActionKind, Owner, RootKind, SubReason, VerdictClass

_RATE_LOW = 0.75
_PLACES_MIN = 3
_BOOT_AFTER_S = 3600.0
_SKEW_S = 60.0


def booted(case: Case) -> Finding | None:
    """A node that starts while the others have lost it."""
    lost = [*case.of(NetworkFailure), *case.of(WorkTimeout)]
    boots: dict[str, SettingSeen] = {}
    for fact in case.of(SettingSeen):
        if fact.name != "boot" or not fact.speaker.host:
            continue
        gaps = [
            gap + (other.ran_ms or 0) / 1000 if isinstance(other, WorkTimeout) else gap
            for other in lost
            if (gap := seconds_after(other, fact)) is not None and other.speaker.host != fact.speaker.host
        ]
        if gaps and -_SKEW_S < max(gaps) < _BOOT_AFTER_S:
            boots[fact.speaker.host] = fact
    others = {fact.speaker.host for fact in lost if fact.speaker.host} - set(boots)
    if not boots or len(boots) > max(1, len(others)):
        return None
    where = ", ".join(boots)
    communicator, operation = main_operation(case)
    return Finding(
        reason="booted",
        verdict_class=VerdictClass.H1,
        sub_reason=SubReason.PROCESS_EXITED,
        roots=tuple(
            Blame(RootKind.NODE, node=host, why="booted while the others had lost it") for host in boots
        ),
        communicator=communicator,
        operation=operation,
        phase="inter-node collective; the node went down",
        owner=Owner.HOST,
        action=Action(
            ActionKind.REPLACE_NODE, where, "why it went down: its log before the boot, its console"
        ),
        confidence=0.8,
        grounds=(Ground("boot", f"{where} booted", origins_of(boots.values())),),
        summary=f"{where} went down and booted again; the others lost their connections to it",
    )


def slow_link(case: Case) -> Finding | None:
    """A GPU's slot with fewer lanes, or a port with a lower rate than the same port of other nodes."""
    if complaining(case):
        return None
    facts = [fact for fact in case.of(SettingSeen) if fact.name == "pcie_width"]
    roots = tuple(
        Blame(RootKind.GPU, rank=case.rank_of(f), node=f.speaker.host, gpu=f.speaker.gpu, why=f.value)
        for f in facts[:8]
    )
    if not facts or len(facts) > _PLACES_MIN:
        facts, roots = _slow_ports(case)
    if not roots:
        return None
    words = roots[0].why
    who = ", ".join(f"{root.node} {root.gpu or root.name}".strip() for root in roots)
    return Finding(
        reason="degraded_link",
        verdict_class=VerdictClass.S2,
        sub_reason=SubReason.SLOW_LINK,
        roots=roots,
        victims=(),
        phase="bandwidth of collectives (PCIe or inter-node)",
        owner=Owner.HOST,
        action=Action(ActionKind.NETWORK_TICKET, who, "reseat or replace: slot, riser, cable, optics"),
        confidence=0.75,
        grounds=(Ground("link", f"{who}: {words}", origins_of(facts)),),
        summary=f"{who} came up slower than it should ({words}): everything that crosses it is slow",
    )


def _slow_ports(case: Case) -> tuple[list[SettingSeen], tuple[Blame, ...]]:
    rates: dict[str, dict[str, tuple[float, SettingSeen]]] = defaultdict(dict)
    for fact in case.of(SettingSeen):
        device, _, rate = fact.value.partition(" ")
        if fact.name == "ib_rate" and fact.speaker.host and rate.isdecimal():
            rates[device][fact.speaker.host] = float(rate), fact
    facts, roots = [], []
    for device, places in rates.items():
        usual = Counter(rate for rate, _ in places.values()).most_common(1)[0][0]
        slow = {host: fact for host, (rate, fact) in places.items() if rate < _RATE_LOW * usual}
        if len(places) < _PLACES_MIN or not slow or len(slow) * 2 >= len(places):
            continue
        for host, fact in slow.items():
            rate = fact.value.partition(" ")[2]
            facts.append(fact)
            roots.append(
                Blame(RootKind.NODE, node=host, name=device, why=f"{device} at {rate} of {usual:.0f} Gb/s")
            )
    return facts, tuple(roots[:8])
