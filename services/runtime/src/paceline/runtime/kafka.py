"""Connections to Kafka: options for every client, and the topics."""

import asyncio
from collections.abc import Sequence
from ssl import SSLContext
from typing import TypedDict

from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import KafkaError, TopicAlreadyExistsError, for_code
from aiokafka.helpers import create_ssl_context

from paceline.contracts.topics import TOPICS, Topic
from paceline.runtime.settings import KafkaSettings, SettingsError

REFUSED_RETRY_S = 0.3


class KafkaUnavailable(ConnectionError):
    """Kafka did not answer in time; the message says where and how long. Worth a retry."""


class TopicError(RuntimeError):
    """A topic that cannot be created; the message names it and the broker's reason."""


class ClientOptions(TypedDict, total=False):
    """What every aiokafka client is given."""

    bootstrap_servers: str
    client_id: str
    request_timeout_ms: int
    retry_backoff_ms: int
    metadata_max_age_ms: int
    security_protocol: str
    ssl_context: SSLContext | None
    sasl_mechanism: str
    sasl_plain_username: str | None
    sasl_plain_password: str | None


def client_options(settings: KafkaSettings, client_id: str) -> ClientOptions:
    """Connection options for one client; SettingsError where the TLS files cannot be used."""
    options = ClientOptions(
        bootstrap_servers=settings.bootstrap,
        client_id=client_id,
        request_timeout_ms=int(settings.request_timeout_s * 1000),
        retry_backoff_ms=200,
        metadata_max_age_ms=30_000,
        security_protocol=settings.security_protocol,
    )
    if settings.security_protocol.endswith("SSL"):
        options["ssl_context"] = _ssl_context(settings)
    if settings.security_protocol.startswith("SASL"):
        assert settings.sasl_password is not None
        options["sasl_mechanism"] = settings.sasl_mechanism
        options["sasl_plain_username"] = settings.sasl_username
        options["sasl_plain_password"] = settings.sasl_password.get_secret_value()
    return options


def _ssl_context(settings: KafkaSettings) -> SSLContext:
    key_password = settings.ssl_key_password
    try:
        context: SSLContext = create_ssl_context(
            cafile=settings.ssl_ca_file,
            certfile=settings.ssl_certificate_file,
            keyfile=settings.ssl_key_file,
            password=key_password.get_secret_value() if key_password else None,
        )
        return context
    except OSError as error:  # ssl.SSLError is one
        files = (settings.ssl_ca_file, settings.ssl_certificate_file, settings.ssl_key_file)
        raise SettingsError(
            f"PACELINE_KAFKA_SSL_*_FILE {', '.join(str(path) for path in files if path)}: {error}; "
            "expected PEM files that belong together"
        ) from error


async def create_topics(
    settings: KafkaSettings, topics: Sequence[Topic] = TOPICS, timeout_s: float | None = None
) -> tuple[str, ...]:
    """Create what does not exist yet; returns the names that were new.

    Existing topics are left as they are. KafkaUnavailable where Kafka does not answer within
    `timeout_s` (default: the request timeout), TopicError where it refuses for that long.
    """
    limit_s = settings.request_timeout_s if timeout_s is None else timeout_s
    refusal: TopicError | None = None
    try:
        async with asyncio.timeout(limit_s):
            while True:
                try:
                    return await _try_create(settings, topics)
                except TopicError as error:  # a broker that has just started refuses for a moment
                    refusal = error
                except KafkaError:
                    if refusal is None:
                        raise
                await asyncio.sleep(REFUSED_RETRY_S)
    except (TimeoutError, KafkaError, OSError) as error:
        if refusal is not None:
            raise refusal from error
        raise KafkaUnavailable(
            f"no answer from Kafka at {settings.bootstrap} within {limit_s:g} s ({error!r}); "
            "check PACELINE_KAFKA_BOOTSTRAP and that the broker runs"
        ) from error


async def _try_create(settings: KafkaSettings, topics: Sequence[Topic]) -> tuple[str, ...]:
    admin = AIOKafkaAdminClient(**client_options(settings, "paceline-admin"))
    try:
        await admin.start()
        return await _create_missing(admin, settings, topics)
    finally:
        await admin.close()


async def _create_missing(
    admin: AIOKafkaAdminClient, settings: KafkaSettings, topics: Sequence[Topic]
) -> tuple[str, ...]:
    existing = set(await admin.list_topics())
    missing = [topic for topic in topics if topic.name not in existing]
    if not missing:
        return ()
    response = await admin.create_topics(
        [
            NewTopic(topic.name, topic.partitions, settings.replication_factor, topic_configs=topic.config)
            for topic in missing
        ]
    )
    created = []
    for name, code, *message in response.topic_errors:
        error = for_code(code)
        if code == 0:
            created.append(name)
        elif error is not TopicAlreadyExistsError:
            reason = message[0] if message and message[0] else error.__name__
            raise TopicError(
                f"topic {name}: {reason}; create it by hand or set PACELINE_KAFKA_REPLICATION_FACTOR"
            )
    return tuple(created)
