"""All rules in the order of asking: the first that answers decides (docs/diagnose.md).

Machines, then ends and errors of processes, then who did not enter, who differs, what is stuck inside,
what is slow, which setting, and at last: nothing wrong, or not decided.
"""

from paceline.analysis.diagnosis.case import Case
from paceline.analysis.diagnosis.rules import (
    agree,
    benches,
    called,
    calm,
    counts,
    degraded,
    differ,
    ends,
    enter,
    enter_host,
    hardware,
    idle,
    input_bound,
    inside,
    judged,
    late,
    links,
    live,
    lost_nodes,
    meeting,
    node_benches,
    outside_end,
    ports,
    recorded,
    refusals,
    reported,
    reports,
    resources,
    settings,
    setup,
    silence,
    slow,
    start,
    state,
    steps,
    tensors,
    throttle,
)
from paceline.analysis.diagnosis.rules.finding import Finding, Rule

RULES: tuple[Rule, ...] = (
    # machines
    calm.cancelled_first,
    hardware.first_event,
    hardware.device_fault,
    degraded.booted,
    # live samples
    recorded.decided,
    # start
    start.endpoints_differ,
    meeting.launch_failed,
    meeting.port_taken,
    meeting.name_unknown,
    meeting.endpoints_disagree,
    meeting.loopback_address,
    differ.init_refused,
    refusals.refused,
    # ends and errors of processes
    late.crossed_messages,
    lost_nodes.node_lost,
    outside_end.asked_to_end,
    ends.killed,
    ends.own_failure,
    counts.unresponsive,
    state.lost_device,
    # who differs, who did not enter
    agree.fingerprint,
    called.differing_calls,
    agree.size_refused,
    reports.desync_report,
    tensors.submitted_by_some,
    reports.barrier_report,
    enter.extra_call,
    counts.drift,
    late.long_phase,
    counts.behind_in_counts,
    judged.dumps,
    setup.differs_and_calls,
    agree.watchdogs,
    called.fewer_calls,
    judged.table,
    enter.behind,
    enter_host.blocked_task,
    late.outside,
    late.other_call,
    # inside
    start.key_not_set,
    ports.port_events,
    links.link_down,
    setup.differs,
    inside.completions,
    meeting.wrong_interface,
    inside.connects,
    resources.limit_reached,
    settings.stopped_first,
    settings.odd_one_ahead,
    settings.device_missing,
    differ.adapters_differ,
    state.device_state,
    inside.everybody_inside,
    silence.gloo_late,
    silence.silent,
    calm.finished,
    silence.stuck_watchdog,
    ends.connection_closed,
    ends.ended_alone,
    start.init_stands,
    start.not_joined,
    settings.acs_hang,
    # slow
    steps.collections,
    settings.clock_writes,
    steps.queued_tail,
    slow.measured_rows,
    reported.straggler_reports,
    throttle.slowed_device,
    throttle.slow_pair,
    throttle.narrow_link,
    idle.idle_among_busy,
    settings.acs_slow,
    differ.port_counters,
    degraded.slow_link,
    differ.version_slow,
    benches.version_of_tests,
    node_benches.odd_test,
    node_benches.odd_node,
    input_bound.waits_for_input,
    settings.bandwidth_collapse,
    settings.spinning,
    recorded.past,
    # nothing wrong
    counts.one_apart,
    calm.announced,
    calm.cancelled,
    calm.steady,
    recorded.undecided,
    judged.dumps_undecided,
    recorded.calm,
    ends.raised_alone,
)


# What says so itself: of a bundle only some nodes' files are there, so silence means nothing in them.
OUTSPOKEN: tuple[Rule, ...] = (
    hardware.first_event,
    hardware.device_fault,
    start.endpoints_differ,
    differ.init_refused,
    ends.killed,
    ends.own_failure,
    agree.fingerprint,
    agree.size_refused,
    reports.desync_report,
    reports.barrier_report,
    judged.dumps,
    ports.port_events,
    inside.completions,
)


def decide_in_order(case: Case) -> Finding:
    """The finding of the first rule that has one; live evidence is judged again before all of them. To what
    live samples say the files beside them add what they say themselves."""
    found = live.judged_again(case)
    if found is not None:
        return live.add_files(case, found, _first(OUTSPOKEN, case))
    decided = _first(RULES, case) or calm.undecided(case)
    return decided if decided.coverage is None else live.add_files(case, decided, _first(OUTSPOKEN, case))


def _first(rules: tuple[Rule, ...], case: Case) -> Finding | None:
    for rule in rules:
        finding = rule(case)
        if finding is not None:
            return finding
    return None
