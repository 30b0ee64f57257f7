"""Hands somebody what is written to topics while they look on."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from paceline.contracts.topics import Topic
from paceline.lab.processes import LabError
from paceline.runtime.consumer import Consumer
from paceline.runtime.handling import Handle
from paceline.runtime.options import ConsumerOptions, Start
from paceline.runtime.settings import KafkaSettings

SUBSCRIBE_S_MAX = 30.0


@asynccontextmanager
async def feeding(
    settings: KafkaSettings, topics: Sequence[Topic], take: Handle, name: str
) -> AsyncIterator[None]:
    """`take` gets what is written from the beginning of the block to its end; LabError without partitions."""
    options = ConsumerOptions(start=Start.LATEST)
    consumer = Consumer(settings, topics, None, take, producer=None, name=name, options=options)
    await consumer.start()
    try:
        try:
            await asyncio.wait_for(consumer.caught_up.wait(), SUBSCRIBE_S_MAX)
        except TimeoutError:
            raise LabError(f"Kafka at {settings.bootstrap} gave no partitions to read") from None
        yield
    finally:
        await consumer.stop()
