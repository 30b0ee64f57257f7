"""A producer that is given up: what it held fails, and nothing is left that complains later."""

import asyncio
import gc
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.structs import TopicPartition

from paceline.runtime.connection import close_producer
from paceline.runtime.kafka import KafkaUnavailable


async def test_abandoned_records_fail_once_and_leave_no_future_behind() -> None:
    said: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: said.append(context))
    client = AIOKafkaProducer(bootstrap_servers="127.0.0.1:1")
    accumulator = client._message_accumulator
    sent = await accumulator.add_message(TopicPartition("topic", 0), None, b"value", timeout=1.0)
    await close_producer(client, 0.0)
    assert isinstance(sent.exception(), KafkaUnavailable)
    del sent, client, accumulator
    await asyncio.sleep(0)
    gc.collect()
    assert said == []
