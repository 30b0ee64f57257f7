"""A network link of a host that went down as the others began to wait."""

from paceline.analysis.diagnosis.answer import Blame, Ground
from paceline.analysis.diagnosis.case import Case, comparable, seconds_after
from paceline.analysis.diagnosis.rules.finding import Finding, complaining, main_operation, origins_of
from paceline.analysis.facts import SettingSeen, WorkTimeout
from paceline.contracts.verdicts import Action, ActionKind, Owner, RootKind, SubReason, VerdictClass

BEFORE_S = 300.0  # a link that went down so long before the first wait began is another story
HOSTS_MAX = 4


def link_down(case: Case) -> Finding | None:
    """Hosts whose kernel reports a link down between the begin of the wait and its end."""
    downs = [f for f in case.of(SettingSeen) if f.name == "link_down"]
    if not downs or not complaining(case):
        return None
    near = [fact for fact in downs if _is_near(case, fact)]
    hosts = sorted({fact.speaker.host for fact in near})
    if not near or len(hosts) > HOSTS_MAX:
        return None
    communicator, operation = main_operation(case)
    names = ", ".join(host or "a node" for host in hosts)
    devices = ", ".join(sorted({fact.value for fact in near}))
    return Finding(
        reason="link_down",
        verdict_class=VerdictClass.H3,
        sub_reason=SubReason.MISSING_EXIT,
        roots=tuple(
            Blame(RootKind.NODE if host else RootKind.NONE, node=host, name=devices, why="its link went down")
            for host in hosts
        ),
        communicator=communicator,
        operation=operation,
        phase="inter-node collective",
        owner=Owner.FABRIC,
        action=Action(ActionKind.NETWORK_TICKET, f"{names} {devices}", "cable, optics and switch port"),
        confidence=0.75,
        grounds=(Ground("link_down", near[0].text[:200], origins_of(near)),),
        summary=f"The link {devices} of {names} went down as the ranks began to wait: "
        "the stall is on the network",
    )


def _is_near(case: Case, fact: SettingSeen) -> bool:
    """Unknown clocks do not speak against it: a hang's kernel log is taken for the time of the hang."""
    for timeout in case.of(WorkTimeout):
        if not comparable(fact, timeout):
            continue
        gap = seconds_after(fact, timeout) or 0.0
        return -1.0 <= gap <= (timeout.ran_ms or 0) / 1000 + BEFORE_S
    return True
