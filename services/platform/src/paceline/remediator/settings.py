"""`PACELINE_REMEDIATOR_*`, Kafka, database and the command key."""

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from paceline.contracts.repair import RepairLimits, RepairMode
from paceline.remediator.model import Policy
from paceline.runtime.settings import CommandSettings, Count, KafkaSettings, Seconds
from paceline.store.settings import DEFAULT_CONSOLE_URL, StoreSettings


class RemediatorSettings(BaseSettings):
    """What holds where no policy says otherwise. Without a command key nothing is ever done."""

    model_config = SettingsConfigDict(
        env_prefix="PACELINE_REMEDIATOR_", frozen=True, extra="ignore", populate_by_name=True
    )

    kafka: KafkaSettings = Field(default_factory=KafkaSettings)
    database: StoreSettings = Field(default_factory=StoreSettings)
    command: CommandSettings = Field(default_factory=CommandSettings)
    console_url: str = Field(default=DEFAULT_CONSOLE_URL, validation_alias="PACELINE_CONSOLE_URL")
    mode: RepairMode = RepairMode.OBSERVE
    limits: RepairLimits = Field(default_factory=RepairLimits)
    poll_s: Seconds = 0.2  # between two looks at what is due
    due_max: Count = 200  # jobs looked at in one round
    capture_s: Seconds = 180.0  # that nodes may take to ship stacks
    history_days_max: Count = 365
    cleanup_interval_s: Seconds = 300.0
    cleanup_rows_max: Count = 500

    def policy(self) -> Policy:
        return Policy(mode=self.mode, limits=self.limits)
