"""The publisher of production: the runtime's producer, acknowledged lane.

Frames are loss-tolerant, but what is lost is decided here, by memory and disk ring; so they take
the lane that says when the broker has them.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from paceline.agent.delivery import Event, Frame, PublishError, PublishRejected
from paceline.contracts.topics import FRAMES
from paceline.runtime.clock import Clock
from paceline.runtime.kafka import KafkaUnavailable
from paceline.runtime.producer import Producer
from paceline.runtime.settings import KafkaSettings

ACKNOWLEDGED_FRAMES = replace(FRAMES, loss_tolerant=False)


class KafkaPublisher:
    """Publishes through one `Producer`; `timeout_s` bounds each call."""

    def __init__(self, settings: KafkaSettings, name: str, clock: Clock, timeout_s: float = 8.0) -> None:
        self._producer = Producer(settings, name, clock=clock)
        self._timeout_s = timeout_s

    async def start(self) -> None:
        await self._producer.start()

    async def stop(self) -> None:
        await self._producer.stop()

    async def publish(self, records: Sequence[Event | Frame]) -> None:
        """See `delivery.Publisher`."""
        if len(records) == 1:  # a sample of one job: no task of its own
            results = [await self._outcome(records[0])]
        else:
            results = await asyncio.gather(*map(self._outcome, records))
        errors = [error for error in results if error is not None]
        if any(isinstance(error, KafkaUnavailable) for error in errors):
            raise PublishError(str(errors[0]))
        if errors:
            raise PublishRejected(str(errors[0]))

    async def _outcome(self, record: Event | Frame) -> KafkaUnavailable | ValueError | None:
        try:
            await self._send(record)
        except (KafkaUnavailable, ValueError) as error:
            return error
        return None

    async def _send(self, record: Event | Frame) -> None:
        if isinstance(record, Frame):
            await self._producer.send(
                ACKNOWLEDGED_FRAMES, record.key, record.value, timeout_s=self._timeout_s
            )
            return
        if record.value is None:
            await self._producer.send(record.topic, record.key, None, timeout_s=self._timeout_s)
            return
        await self._producer.send_event(
            record.topic,
            record.key,
            record.type,
            record.value,
            event_id=record.id,
            timeout_s=self._timeout_s,
        )
