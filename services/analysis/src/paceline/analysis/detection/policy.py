"""Limits and bounds of detection. Every figure has a default, a unit in its name and a reason."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from paceline.contracts.codes import Phase

PHASE_LIMIT_S_DEFAULT = 600.0  # checkpoints and evaluations of large jobs take minutes


def _phase_limits() -> dict[Phase, float]:
    declared = (Phase.INIT, Phase.COMPILE, Phase.CHECKPOINT, Phase.EVALUATE, Phase.DATA, Phase.FINISH)
    return dict.fromkeys(declared, PHASE_LIMIT_S_DEFAULT)


@dataclass(frozen=True)
class StallPolicy:
    """When a wait is a stall."""

    # A pause of 4 s that nobody declares, its spread over the ranks, and a second between samples.
    floor_s: float = 6.0
    dead_floor_s: float = 2.0  # a member is dead or frozen: waiting cannot help
    warmup_limit_s: float = 120.0  # first step: compilation, lazy connections, data caches
    backstop_s: float = 300.0  # CCL-D's own limit, whoever else progresses
    base_factor: float = 10.0  # limit = max(base_factor x Tbase, usual_factor x usual wait, floor)
    usual_factor: float = 3.0
    phase_limit_s: Mapping[Phase, float] = field(default_factory=_phase_limits)
    still_samples_min: int = 2  # divergence over at least two polls
    frozen_after_s: float = 3.0  # native heartbeat beats 10 times a second
    row_stale_s: float = 10.0  # a row not refreshed for so long says nothing about progress
    silence_s: float = 10.0  # a node whose agent sends nothing for so long has lost its heartbeat
    ended_after_s: float = 5.0  # all processes gone for so long: the job is over
    warmup_steps: int = 3  # a rank three steps ahead proves that the first step is done
    stepless_rounds: int = 20  # a job that declares no steps is warm after so many rounds of one group ...
    stepless_beats: int = 15  # ... that moved on in so many seconds; broadcasts do not count
    stepless_s: float = 60.0  # or after so much time if rounds or messages still move then
    stepless_rounds_sure: int = 10_000  # no set-up has so many, however little was seen of them
    clear_ticks: int = 2  # progress has to be seen so often before a stall is over


@dataclass(frozen=True)
class SlowPolicy:
    """When a round is slow, and when slow rounds are worth a signal.

    Where the job declares steps, lateness is weighed by what it costs of a step. Where it does not, only
    the ratio and the fixed floor can tell what matters.
    """

    theta: float = 3.0  # R = Tmax / Tbase; below it the warning band of keys whose steps are known
    repeat_k: int = 3  # slow rounds ...
    repeat_n: int = 5  # ... of the last so many complete kept rounds; as many normal ones end it
    base_rounds: int = 20  # Tbase = median of the first so many per-round minima ...
    base_rounds_rare: int = 8  # ... or of these where they span as many steps:
    rare_per_step: float = 4.0  # communicators with no more rounds in a step
    lag_floor_ms: float = 0.5  # mean lateness below this is scheduling noise, whatever else is known
    single_lag_floor_ms: float = 2.0  # ... and so is that of a single round
    blind_lag_floor_ms: float = 20.0  # the same while the duration of a step is unknown
    cost_share: float = 0.02  # lateness that costs less of a step is not worth a word
    strong_cost_share: float = 0.1  # ... and to be judged by single rounds it has to cost this
    rotating_cost_share: float = 0.1  # stragglers in turn: mean lateness of a round
    rotating_s: float = 30.0  # ... for so long: everybody pauses once in a while
    constant_cost_share: float = 0.25  # late from the first round on: peers are the base, not history
    constant_s: float = 60.0  # ... for so long
    usual_lag_factor: float = 2.0  # ... and so is a lag below this many times the usual one
    identity_nats: float = 9.0  # evidence that it is always the same rank: odds of 8,000 to 1
    step_rise_min: float = 0.015  # of the duration of a step
    persist_s: float = 10.0  # first slow round to signal
    refresh_weight: float = 0.05  # a normal round moves Tbase by so much of the difference
    idle_clear_s: float = 120.0  # no complete round of the key for so long ends it too

    @property
    def round_floor_ms(self) -> float:
        """Lateness of a single round that is more than scheduling noise."""
        return max(self.single_lag_floor_ms, self.lag_floor_ms)


@dataclass(frozen=True)
class Bounds:
    """How much one job block may hold."""

    ranks_max: int = 131_072
    members_max: int = 2_097_152  # (communicator, rank) pairs
    communicators_max: int = 131_072
    nodes_max: int = 32_768
    extra_rows_max: int = 4_096  # per sender and kind: peers, open rounds, edges, frames
    window_bytes_max: int = 64 * 1024 * 1024  # kept rounds


@dataclass(frozen=True)
class DetectionPolicy:
    stall: StallPolicy = field(default_factory=StallPolicy)
    slow: SlowPolicy = field(default_factory=SlowPolicy)
    bounds: Bounds = field(default_factory=Bounds)
