"""`PACELINE_INCIDENTS_*`, `PACELINE_CONSOLE_URL`, Kafka and database."""

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from paceline.incidents.decide import IncidentPolicy
from paceline.incidents.shipping import Shipping
from paceline.incidents.witnesses import ShippingPolicy
from paceline.runtime.settings import CommandSettings, Count, KafkaSettings, Seconds
from paceline.store.settings import DEFAULT_CONSOLE_URL, HistorySettings, StoreSettings


class IncidentsSettings(BaseSettings):
    """Thresholds of incidents, and what is kept for how long."""

    model_config = SettingsConfigDict(
        env_prefix="PACELINE_INCIDENTS_", frozen=True, extra="ignore", populate_by_name=True
    )

    kafka: KafkaSettings = Field(default_factory=KafkaSettings)
    database: StoreSettings = Field(default_factory=StoreSettings)
    history: HistorySettings = Field(default_factory=HistorySettings)
    command: CommandSettings = Field(default_factory=CommandSettings)
    console_url: str = Field(default=DEFAULT_CONSOLE_URL, validation_alias="PACELINE_CONSOLE_URL")
    reopen_s_max: Seconds = 600.0
    critical_ranks_min: Count = 8
    revisions_max: Count = 200
    evidence_per_incident_max: Count = 8
    evidence_days_max: Count = 30
    evidence_bytes_max: Count = 10 << 30
    shipping_nodes_max: Count = 8  # asked at once for what they show
    shipping_wait_s: Seconds = 90.0  # until nobody waits for them any more
    shipping_collect_s: Seconds = 45.0  # what collecting may take on a node
    shipped_reading: bool = True  # `paceline diagnose` on what was shipped, a process of lowest priority
    shipped_per_incident_bytes_max: Count = 64 << 20
    shipped_bytes_max: Count = 2 << 30
    incident_days_max: Count = 365  # resolved ones
    registry_days_max: Count = 30  # ended attempts, and those that no agent speaks of any more
    scaling_windows_max: Count = 360  # of one attempt: six hours, one window a minute
    scaling_days_max: Count = 30
    outbox_days_max: Count = 7
    cleanup_interval_s: Seconds = 60.0
    cleanup_rows_max: Count = 500  # of each kind in one round: a round never holds locks for long
    relay_batch_max: Count = 100
    relay_batch_s_max: Seconds = 10.0
    relay_send_timeout_s: Seconds = 10.0
    outbox_poll_s: Seconds = 1.0

    def policy(self) -> IncidentPolicy:
        return IncidentPolicy(
            reopen_s_max=self.reopen_s_max,
            revisions_max=self.revisions_max,
            critical_ranks_min=self.critical_ranks_min,
        )

    def shipping_policy(self) -> ShippingPolicy:
        return ShippingPolicy(
            nodes_max=self.shipping_nodes_max,
            deadline_s=self.shipping_wait_s,
            collect_s=self.shipping_collect_s,
            incident_bytes_max=self.shipped_per_incident_bytes_max,
        )

    def shipping(self) -> Shipping | None:
        """How nodes are asked, None without a command key. SettingsError for a key that cannot be used."""
        key = self.command.read_key()
        return None if key is None else Shipping(key, self.shipping_policy())
