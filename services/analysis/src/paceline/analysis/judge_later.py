"""The second half of the order of judgement: everybody entered alike, so what holds them."""

from paceline.analysis import (
    stage_deadlock,
    stage_enter,
    stage_init,
    stage_processes,
    stage_progress,
    stage_silent,
    stage_slow,
    stage_unknown,
)
from paceline.analysis.judge import Stage

STAGES: tuple[tuple[str, Stage], ...] = (
    ("queue", stage_deadlock.queue_exhausted),
    ("connecting", stage_init.lazy_connect),
    ("no_progress", stage_progress.no_progress),
    ("arrived_late", stage_enter.arrived_late),
    ("cycle", stage_deadlock.cycle),
    ("lost_node", stage_processes.lost_node),
    ("seen_through", stage_silent.seen_through),
    ("open_send", stage_enter.open_send),
    ("delayed", stage_enter.delayed),
    ("bootstrap", stage_init.bootstrap),
    ("slow", stage_slow.slow),
    ("calls_stopped", stage_unknown.calls_stopped),
    ("nothing_stalled", stage_unknown.nothing_stalled),
    ("inconclusive", stage_unknown.inconclusive),
)
