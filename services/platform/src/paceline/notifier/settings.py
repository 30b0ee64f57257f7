"""`PACELINE_NOTIFIER_*`, Kafka and database."""

from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Annotated, Self
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from paceline.contracts.events import Severity
from paceline.runtime.settings import Count, KafkaSettings, Seconds
from paceline.store.settings import StoreSettings

Texts = Annotated[tuple[str, ...], NoDecode]


class NotifierSettings(BaseSettings):
    """Receivers and bounds. Lists are separated by commas."""

    model_config = SettingsConfigDict(env_prefix="PACELINE_NOTIFIER_", frozen=True, extra="ignore")

    kafka: KafkaSettings = Field(default_factory=KafkaSettings)
    database: StoreSettings = Field(default_factory=StoreSettings)
    cluster: str = ""  # label of the alerts where the job names none
    severity_min: Severity = Severity.INFO

    alertmanager_urls: Texts = ()  # for example http://127.0.0.1:9093
    alertmanager_resend_s: Seconds = 60.0
    alertmanager_hold_s: Seconds = 240.0  # an alert ends by itself when we have been silent so long
    alertmanager_timeout_s: Seconds = 10.0

    webhook_timeout_s: Seconds = 20.0  # the standard asks for 15 to 30
    webhook_ca_file: Path | None = None
    allow_private_addresses: bool = False  # loopback and private networks as receivers
    allowed_networks: Texts = ()  # for example 10.20.0.0/16

    concurrency_max: Count = 32
    concurrency_per_target_max: Count = 2
    poll_s: Seconds = 1.0
    log_days_max: Count = 30

    @field_validator("alertmanager_urls", "allowed_networks", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return tuple(filter(None, map(str.strip, value.split(",")))) if isinstance(value, str) else value

    @field_validator("alertmanager_urls")
    @classmethod
    def _check_urls(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for url in value:
            parts = urlsplit(url)
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise ValueError(f"{url[:100]!r}: expected http://HOST:PORT of an Alertmanager")
        return tuple(url.rstrip("/") for url in value)

    @field_validator("allowed_networks")
    @classmethod
    def _check_networks(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for text in value:
            ip_network(text)
        return value

    @model_validator(mode="after")
    def _check_hold(self) -> Self:
        if self.alertmanager_hold_s < 2 * self.alertmanager_resend_s:
            raise ValueError(
                f"alertmanager_hold_s {self.alertmanager_hold_s:g} must be at least twice "
                f"alertmanager_resend_s {self.alertmanager_resend_s:g}, else alerts flap"
            )
        return self

    @property
    def networks(self) -> tuple[IPv4Network | IPv6Network, ...]:
        return tuple(ip_network(text) for text in self.allowed_networks)
