"""`PACELINE_DETECTOR_*`."""

import os
import socket
from typing import Annotated

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from paceline.analysis.detection import Bounds, DetectionPolicy, SlowPolicy, StallPolicy
from paceline.contracts.codes import Phase
from paceline.runtime.settings import Count, KafkaSettings, Seconds


def _default_instance() -> str:
    return f"detector-{socket.gethostname()[:100]}-{os.getpid()}"


class DetectorSettings(BaseSettings):
    """Limits of detection, bounds, and how the detector keeps its state."""

    model_config = SettingsConfigDict(env_prefix="PACELINE_DETECTOR_", frozen=True, extra="ignore")

    kafka: KafkaSettings = Field(default_factory=KafkaSettings)
    instance: str = Field(default_factory=_default_instance, max_length=200)
    floor_s: Seconds = 6.0  # a wait younger than this is never a stall
    dead_floor_s: Seconds = 2.0  # the same once a member is dead or frozen
    warmup_limit_s: Seconds = 120.0
    backstop_s: Seconds = 300.0
    checkpoint_limit_s: Seconds = 600.0
    evaluate_limit_s: Seconds = 600.0
    compile_limit_s: Seconds = 600.0
    data_limit_s: Seconds = 600.0
    init_limit_s: Seconds = 600.0
    finish_limit_s: Seconds = 600.0
    silence_s: Seconds = 10.0
    slow_theta: Annotated[float, Field(gt=1, le=1000)] = 3.0
    slow_lag_floor_ms: Annotated[float, Field(gt=0, le=3_600_000)] = 0.5  # lower bound; follows the step
    slow_persist_s: Seconds = 10.0
    tick_s: Seconds = 1.0
    snapshot_s: Seconds = 10.0
    start_window_s: Seconds = 60.0  # how far back to read where there is no snapshot
    replay_s_max: Seconds = 120.0  # how far back to read where there is an old one
    idle_job_s_max: Seconds = 1800.0  # a job that says nothing for so long is forgotten
    jobs_max: Count = 1024
    window_bytes_max: Count = 64 << 20
    snapshots_bytes_max: Count = 256 << 20

    def policy(self) -> DetectionPolicy:
        """The pure policy of these settings."""
        return DetectionPolicy(
            stall=StallPolicy(
                floor_s=self.floor_s,
                dead_floor_s=self.dead_floor_s,
                warmup_limit_s=self.warmup_limit_s,
                backstop_s=self.backstop_s,
                phase_limit_s={
                    Phase.INIT: self.init_limit_s,
                    Phase.COMPILE: self.compile_limit_s,
                    Phase.CHECKPOINT: self.checkpoint_limit_s,
                    Phase.EVALUATE: self.evaluate_limit_s,
                    Phase.DATA: self.data_limit_s,
                    Phase.FINISH: self.finish_limit_s,
                },
                silence_s=self.silence_s,
            ),
            slow=SlowPolicy(
                theta=self.slow_theta,
                lag_floor_ms=self.slow_lag_floor_ms,
                persist_s=self.slow_persist_s,
            ),
            bounds=Bounds(window_bytes_max=self.window_bytes_max),
        )
