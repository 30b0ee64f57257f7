"""`PACELINE_DATABASE_*`: where PostgreSQL is, and how much of it one service takes."""

from typing import Annotated

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from paceline.store.engine import Database, normalize_url

DEFAULT_URL = "postgresql+asyncpg://paceline@127.0.0.1:5432/paceline"
DEFAULT_CONSOLE_URL = "http://127.0.0.1:8300"  # of links in incidents, which two services write


class StoreSettings(BaseSettings):
    """One pool per service; connections are opened when they are needed."""

    model_config = SettingsConfigDict(env_prefix="PACELINE_DATABASE_", frozen=True, extra="ignore")

    url: str = DEFAULT_URL
    pool_size: Annotated[int, Field(ge=1, le=200)] = 5
    overflow_max: Annotated[int, Field(ge=0, le=200)] = 5
    connect_timeout_s: Annotated[float, Field(gt=0, le=300)] = 5.0
    statement_timeout_s: Annotated[float, Field(gt=0, le=3600)] = 30.0

    @field_validator("url")
    @classmethod
    def _check_url(cls, value: str) -> str:
        return normalize_url(value)

    def open(self) -> Database:
        """A database of these settings; nothing is contacted yet."""
        return Database(
            self.url,
            pool_size=self.pool_size,
            overflow_max=self.overflow_max,
            connect_timeout_s=self.connect_timeout_s,
            statement_timeout_s=self.statement_timeout_s,
        )


class HistorySettings(BaseSettings):
    """`PACELINE_HISTORY_*`: how far the fleet's memory reaches and what it may do. The incidents service
    acts on it and the API shows it, so both read the same."""

    model_config = SettingsConfigDict(env_prefix="PACELINE_HISTORY_", frozen=True, extra="ignore")

    node_days: Annotated[int, Field(ge=1, le=365)] = 30
    version_days: Annotated[int, Field(ge=1, le=365)] = 7
    jobs_min: Annotated[int, Field(ge=1)] = 2  # other jobs in which a node was the cause
    version_jobs_min: Annotated[int, Field(ge=2)] = 3  # jobs with the same symptom
    may_act_on_node: bool = True  # propose to replace a repeat offender; nobody acts by itself
