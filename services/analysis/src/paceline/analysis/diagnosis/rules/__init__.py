"""All rules in the order of asking: the first that answers decides (docs/diagnose.md).

Machines, then ends and errors of processes, then who did not enter, who differs, what is stuck inside,
what is slow, which setting, and at last: nothing wrong, or not decided.
"""

from paceline.analysis.diagnosis.case import Case
from paceline.analysis.diagnosis.rules import agree, calm, counts, ends, enter, hardware, inside, start
from paceline.analysis.diagnosis.rules.finding import Finding, Rule

RULES: tuple[Rule, ...] = (
    hardware.first_event,
    hardware.device_fault,
    start.endpoints_differ,
    ends.killed,
    ends.own_failure,
    counts.unresponsive,
    agree.fingerprint,
    agree.size_refused,
    enter.desync_report,
    enter.extra_call,
    counts.drift,
    enter.behind,
    counts.behind_in_counts,
    inside.port_events,
    inside.completions,
    inside.everybody_inside,
    enter.gloo_late,
    enter.silent,
    ends.connection_closed,
    start.init_stands,
    start.not_joined,
    counts.one_apart,
    calm.finished,
    calm.announced,
)


def decide(case: Case) -> Finding:
    """The finding of the first rule that has one."""
    for rule in RULES:
        finding = rule(case)
        if finding is not None:
            return finding
    return calm.undecided(case)
