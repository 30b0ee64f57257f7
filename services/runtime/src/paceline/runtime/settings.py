"""Settings from the environment, prefix `PACELINE_`; every duration carries its unit in its name."""

import re
from pathlib import Path
from typing import Annotated, Literal, Self, TypeVar

from pydantic import Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

Seconds = Annotated[float, Field(gt=0, le=86_400)]
Count = Annotated[int, Field(ge=1)]
Port = Annotated[int, Field(ge=0, le=65_535)]

_HOST_PORT = re.compile(r"^(\[[0-9a-fA-F:.]+\]|[^:\s,]+):\d{1,5}$")


class SettingsError(ValueError):
    """A setting that cannot be used; the message names variable, value and what was expected."""


COMMAND_KEY_BYTES_MIN = 16
_COMMAND_KEY_BYTES_MAX = 4096


class CommandSettings(BaseSettings):
    """`PACELINE_COMMAND_*`: the key that commands to agents are signed with; without it none are sent, and an
    agent obeys none."""

    model_config = SettingsConfigDict(env_prefix="PACELINE_COMMAND_", frozen=True, extra="ignore")

    key: SecretStr | None = None
    key_file: Path | None = None  # its content without the end of the line

    def read_key(self) -> bytes | None:
        """The key, None where none is set. SettingsError where it cannot be read or is short."""
        if self.key is not None and self.key.get_secret_value():
            content, name = self.key.get_secret_value().encode(), "PACELINE_COMMAND_KEY"
        elif self.key_file is not None:
            name = "PACELINE_COMMAND_KEY_FILE"
            try:
                with self.key_file.open("rb") as file:
                    content = file.read(_COMMAND_KEY_BYTES_MAX).strip()
            except OSError as error:
                raise SettingsError(f"{name} is {self.key_file}: {error.strerror or error}") from None
        else:
            return None
        if len(content) < COMMAND_KEY_BYTES_MIN:
            raise SettingsError(f"{name} has {len(content)} bytes, expected {COMMAND_KEY_BYTES_MIN} or more")
        return content


class KafkaSettings(BaseSettings):
    """`PACELINE_KAFKA_*`: where Kafka is and how to speak with it."""

    model_config = SettingsConfigDict(env_prefix="PACELINE_KAFKA_", frozen=True, extra="ignore")

    bootstrap: str = "127.0.0.1:9092"
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    ssl_ca_file: Path | None = None
    ssl_certificate_file: Path | None = None
    ssl_key_file: Path | None = None
    ssl_key_password: SecretStr | None = None
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = "SCRAM-SHA-512"
    sasl_username: str | None = None
    sasl_password: SecretStr | None = None
    create_topics: bool = True  # False where an administrator owns the topics
    replication_factor: Count = 1
    request_timeout_s: Seconds = 20.0
    send_timeout_s: Seconds = 20.0  # how long a send of a topic that must not be lost may wait
    lossy_buffer_bytes_max: Count = 16 << 20
    durable_buffer_bytes_max: Count = 16 << 20
    session_timeout_s: Seconds = 10.0
    stuck_s: Seconds = 15.0  # no movement with records ahead for so long: the consumer is recreated
    group_prefix: str = "paceline"

    @field_validator("bootstrap")
    @classmethod
    def _check_bootstrap(cls, value: str) -> str:
        servers = [server.strip() for server in value.split(",") if server.strip()]
        if not servers or not all(_HOST_PORT.match(server) for server in servers):
            raise ValueError("expected host:port, several separated by commas")
        return ",".join(servers)

    @model_validator(mode="after")
    def _check_security(self) -> Self:
        named = self.sasl_username and self.sasl_password is not None
        if self.security_protocol.startswith("SASL") and not named:
            raise ValueError(
                f"security_protocol {self.security_protocol} needs PACELINE_KAFKA_SASL_USERNAME "
                "and PACELINE_KAFKA_SASL_PASSWORD"
            )
        if (self.ssl_certificate_file is None) != (self.ssl_key_file is None):
            raise ValueError("ssl_certificate_file and ssl_key_file are set together or not at all")
        for path in (self.ssl_ca_file, self.ssl_certificate_file, self.ssl_key_file):
            if path is not None and not path.is_file():
                raise ValueError(f"{path} is not a file that can be read")
        return self


class TelemetrySettings(BaseSettings):
    """`PACELINE_TELEMETRY_*`: metrics are always on at /metrics, OTLP where an endpoint is named."""

    model_config = SettingsConfigDict(env_prefix="PACELINE_TELEMETRY_", frozen=True, extra="ignore")

    service_namespace: str = "paceline"
    otlp_endpoint: str | None = None  # for example http://127.0.0.1:4318
    otlp_interval_s: Seconds = 15.0
    trace_ratio: Annotated[float, Field(ge=0, le=1)] = 1.0


class LogSettings(BaseSettings):
    """`PACELINE_LOG_*`."""

    model_config = SettingsConfigDict(env_prefix="PACELINE_LOG_", frozen=True, extra="ignore")

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["json", "console"] = "json"


class HttpSettings(BaseSettings):
    """`PACELINE_HTTP_*`: the small server with /healthz, /readyz and /metrics."""

    model_config = SettingsConfigDict(env_prefix="PACELINE_HTTP_", frozen=True, extra="ignore")

    host: str = "127.0.0.1"
    port: Port = 0  # 0 = any free port
    request_timeout_s: Seconds = 5.0
    connections_max: Count = 64


AnySettings = TypeVar("AnySettings", bound=BaseSettings)


def load_settings(kind: type[AnySettings], **overrides: object) -> AnySettings:
    """`kind` from the environment; SettingsError names the variable that is wrong."""
    try:
        return kind(**overrides)  # type: ignore[arg-type]
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(map(str, first["loc"]))
        prefix = str(kind.model_config.get("env_prefix", ""))
        secret = "password" in field or "secret" in field or "token" in field
        shown = "" if secret or not field else f" is {str(first['input'])[:200]!r}"
        name = f"{prefix}{field.upper()}" if field else f"{prefix}*"
        reason = str(first["msg"]).removeprefix("Value error, ")
        raise SettingsError(f"{name}{shown}: {reason}") from None
