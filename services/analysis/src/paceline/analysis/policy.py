"""Every number the judgement depends on, with its unit and why it has this value."""

from dataclasses import dataclass


@dataclass(frozen=True)
class JudgePolicy:
    """Thresholds of `judge`. Ages are own-clock durations of one rank."""

    # An operation younger than this may still be moving; the detector has its own, longer floor.
    stall_age_s: float = 2.0
    # The native heartbeat beats ten times a second; below this a busy host may just be slow.
    frozen_age_s: float = 3.0
    # torch releases the GIL while it waits, so a stale Python heartbeat means other code holds it.
    gil_age_s: float = 3.0
    # A rank that ended in order while peers still finish their tail is the ragged end of a job.
    ragged_patience_s: float = 120.0
    # A declared checkpoint, evaluation or compilation may keep its peers waiting this long.
    phase_patience_s: float = 600.0
    # A missing rank that makes progress elsewhere is called late only after this.
    delayed_enter_s: float = 30.0
    # Where completion is not seen a pause looks like a hang: the paper's limit (papers.md 1.1).
    backstop_s: float = 300.0
    # Bootstrap and rendezvous are slow on big jobs.
    init_age_s: float = 120.0
    # The first use of a communicator connects; large ones take this long on a busy network.
    connect_age_s: float = 20.0
    # Slow rounds: papers.md 1.4 rule 4, "3 of the last 5 rounds of the same key".
    slow_rounds_min: int = 3
    slow_window: int = 5
    slow_ratio: float = 3.0  # used where a baseline row names no threshold of its own
    alpha: float = 0.8
    beta: float = 0.2
    # Bounds of what a verdict carries.
    roots_max: int = 64
    evidence_max: int = 32
