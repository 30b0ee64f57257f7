"""`PACELINE_LOCALIZER_*`."""

from typing import Annotated

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from paceline.analysis import JudgePolicy
from paceline.analysis.episodes import EpisodePolicy
from paceline.localizer.memory import MemoryBounds
from paceline.runtime.settings import Count, KafkaSettings, Seconds


class LocalizerSettings(BaseSettings):
    """Limits of the judgement, of what is remembered and of what is published."""

    model_config = SettingsConfigDict(env_prefix="PACELINE_LOCALIZER_", frozen=True, extra="ignore")

    kafka: KafkaSettings = Field(default_factory=KafkaSettings)
    stall_age_s: Seconds = 2.0
    ragged_patience_s: Seconds = 120.0
    phase_patience_s: Seconds = 600.0
    slow_theta: Annotated[float, Field(gt=1, le=1000)] = 3.0
    revisions_max: Count = 24  # of one episode
    health_wait_s: Seconds = 3.0  # from a death that no signal reports to its verdict
    jobs_max: Count = 4096
    signal_bytes_max: Count = 256 << 20  # rows kept over all jobs
    catch_up_s: Seconds = 20.0  # how long signals wait for the registry at the start
    health_window_s: Seconds = 3600.0  # how far back health is read at the start
    verdicts_window_s: Seconds = 21_600.0  # how far back own verdicts are read at the start

    def judge_policy(self) -> JudgePolicy:
        return JudgePolicy(
            stall_age_s=self.stall_age_s,
            ragged_patience_s=self.ragged_patience_s,
            phase_patience_s=self.phase_patience_s,
            slow_ratio=self.slow_theta,
        )

    def episode_policy(self) -> EpisodePolicy:
        return EpisodePolicy(revisions_max=self.revisions_max)

    def bounds(self) -> MemoryBounds:
        return MemoryBounds(jobs_max=self.jobs_max, signal_bytes_max=self.signal_bytes_max)
