"""Settings of the API, `PACELINE_API_*`."""

from pathlib import Path
from typing import Annotated

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

from paceline.store.settings import DEFAULT_CONSOLE_URL, HistorySettings, StoreSettings

Positive = Annotated[float, Field(gt=0)]


class ApiSettings(BaseSettings):
    """`console_path` is the built console (web/dist); without it only /v1 is served."""

    model_config = SettingsConfigDict(
        env_prefix="PACELINE_API_", frozen=True, extra="ignore", populate_by_name=True
    )

    database: StoreSettings = Field(default_factory=StoreSettings)
    history: HistorySettings = Field(default_factory=HistorySettings)
    console_url: str = Field(default=DEFAULT_CONSOLE_URL, validation_alias="PACELINE_CONSOLE_URL")
    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65_535)] = 8300
    console_path: Path | None = None
    # A token that is valid from the first start on, for deployments that cannot read a printed one.
    admin_token: SecretStr | None = None
    body_bytes_max: Annotated[int, Field(ge=1024)] = 256 * 1024
    session_life_hours: Positive = 12.0
    session_cookie_secure: bool = False  # True behind TLS
    connections_max: Annotated[int, Field(ge=8)] = 1000
    streams_max: Annotated[int, Field(ge=1)] = 200
    stream_keepalive_s: Positive = 15.0  # proxies close silent connections, many after 30 s
    stream_life_s: Positive = 600.0  # a client reconnects with Last-Event-ID and sees nothing twice
    stream_gap_max: Annotated[int, Field(ge=1)] = 1000  # a longer gap is answered with `reset`
    outbox_poll_s: Positive = 1.0  # fallback where a NOTIFY is lost
    stop_timeout_s: Positive = 5.0
