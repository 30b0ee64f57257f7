"""Structured logs: one JSON object a line for machines, aligned text for people, on stderr."""

import logging
import sys

import structlog
from structlog.types import Processor

from paceline.runtime.settings import LogSettings

# Libraries that report every reconnect attempt; ours say it once, with the consequence. aiokafka does
# so as errors, hundreds of them a second while Kafka is away.
NOISY = {
    "aiokafka": logging.CRITICAL,
    "kafka": logging.CRITICAL,
    "asyncio": logging.ERROR,
    "httpx": logging.ERROR,
    "httpcore": logging.ERROR,
    "opentelemetry": logging.ERROR,
}


def configure_logging(settings: LogSettings) -> None:
    """Route structlog and the standard library to one stream; may be called again."""
    level = logging.getLevelName(settings.level.upper())
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    renderer: Processor = (
        structlog.processors.JSONRenderer()
        if settings.format == "json"
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    for name, least in NOISY.items():
        logging.getLogger(name).setLevel(max(level, least))


def get_logger(name: str) -> structlog.stdlib.BoundLogger:
    """A logger that takes an event and fields: `log.warning("dropped", topic=topic, count=n)`."""
    return structlog.stdlib.get_logger(name)
