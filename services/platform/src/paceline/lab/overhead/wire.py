"""The wire of a real platform: its topics."""

import asyncio
from collections import deque
from collections.abc import Sequence

from paceline.contracts.batch import Batch, BatchError, decode_batch
from paceline.contracts.commands import Command, CommandResult
from paceline.contracts.events import EventType
from paceline.contracts.registry import JobRecord, NodeRecord
from paceline.contracts.schemas import ContractError
from paceline.contracts.topics import COMMAND_RESULTS, COMMANDS, FRAMES, JOBS
from paceline.lab.overhead.run import NotMeasured, Target
from paceline.lab.overhead.samples import Tracks
from paceline.runtime.cloud_events import decode_event, decode_headers
from paceline.runtime.consumer import Consumer
from paceline.runtime.options import ConsumerOptions, Start
from paceline.runtime.producer import Producer
from paceline.runtime.record import Record
from paceline.runtime.settings import KafkaSettings

CONNECT_S_MAX = 30.0
BATCHES_MAX = 50_000  # between two looks at them
RESULTS_MAX = 20_000
NODES_MAX = 1024  # commanded at once


class KafkaWire:
    """Reads the registry once, then frames and results from now on; sends commands."""

    def __init__(self, kafka: KafkaSettings, job: str) -> None:
        self.jobs: dict[str, JobRecord] = {}
        self._job = job
        self._nodes: dict[tuple[str, str, str], NodeRecord] = {}
        self._batches: deque[Batch] = deque(maxlen=BATCHES_MAX)
        self._results: deque[CommandResult] = deque(maxlen=RESULTS_MAX)
        self._news = asyncio.Event()
        self._producer = Producer(kafka, "overhead")
        first, news = ConsumerOptions(start=Start.EARLIEST), ConsumerOptions(start=Start.LATEST)
        self._registry = Consumer(
            kafka, [JOBS], None, self._take_registry, producer=None, name="overhead-jobs", options=first
        )
        self._frames = Consumer(
            kafka, [FRAMES], None, self._take_frames, producer=None, name="overhead-frames", options=news
        )
        self._answers = Consumer(
            kafka, [COMMAND_RESULTS], None, self._take_results, producer=None, name="overhead-results",
            options=news,
        )  # fmt: skip
        self._consumers = (self._registry, self._frames, self._answers)

    async def start(self) -> None:
        """NotMeasured where Kafka does not answer."""
        await self._producer.start()
        for consumer in self._consumers:
            await consumer.start()
        try:
            async with asyncio.timeout(CONNECT_S_MAX):
                for consumer in self._consumers:
                    await consumer.caught_up.wait()
        except TimeoutError:
            raise NotMeasured(f"Kafka did not answer within {CONNECT_S_MAX:g} s; --kafka HOST:PORT") from None

    async def stop(self) -> None:
        for consumer in self._consumers:
            await consumer.stop()
        await self._producer.stop()

    def target(self) -> Target:
        """NotMeasured where the job is not there, is over, or is too large."""
        record = self.jobs.get(self._job)
        if record is None:
            living = [job.job for job in self.jobs.values() if job.ended_unix_s is None]
            raise NotMeasured(f"no job {self._job!r}; running: {', '.join(sorted(living)[:8]) or 'none'}")
        if record.ended_unix_s is not None:
            raise NotMeasured(f"{self._job!r} is over ({record.end_reason or record.state.value})")
        mine = [
            node for (job, attempt, _), node in self._nodes.items()
            if (job, attempt) == (record.job, record.attempt) and not node.left
        ]  # fmt: skip
        if not 0 < len(mine) <= NODES_MAX:
            raise NotMeasured(f"{self._job!r} is on {len(mine)} nodes, expected 1 to {NODES_MAX}")
        nodes = tuple(sorted(node.node for node in mine))
        return Target(record.job, record.attempt, record.name, nodes, sum(len(node.ranks) for node in mine))

    async def send(self, commands: Sequence[Command]) -> None:
        for command in commands:
            await self._producer.send_event(
                COMMANDS, command.node, EventType.COMMAND.value, command, event_id=command.id
            )

    async def answers(self, ids: Sequence[str], limit_s: float) -> dict[str, CommandResult]:
        wanted = set(ids)
        found: dict[str, CommandResult] = {}
        try:
            async with asyncio.timeout(limit_s):
                while True:
                    self._news.clear()
                    found.update({r.command: r for r in self._results if r.command in wanted})
                    if len(found) == len(wanted):
                        return found
                    await self._news.wait()
        except TimeoutError:
            return found

    def collect(self, tracks: Tracks) -> None:
        while self._batches:
            tracks.add(self._batches.popleft())

    async def _take_registry(self, records: Sequence[Record]) -> None:
        for record in records:
            try:
                kind = "" if record.is_tombstone else decode_headers(record.headers).type
                if kind == EventType.JOB_RECORD.value:
                    job = decode_event(JobRecord, record.headers, record.value)[1]
                    self.jobs[job.job] = job
                elif kind == EventType.NODE_RECORD.value:
                    node = decode_event(NodeRecord, record.headers, record.value)[1]
                    if node.job == self._job:
                        self._nodes[node.job, node.attempt, node.node] = node
            except ContractError:
                continue  # a dead letter of somebody else

    async def _take_frames(self, records: Sequence[Record]) -> None:
        for record in records:
            if record.key_text.rpartition(":")[0] != self._job:
                continue
            try:
                self._batches.append(decode_batch(record.value))
            except BatchError:
                continue

    async def _take_results(self, records: Sequence[Record]) -> None:
        for record in records:
            try:
                result = decode_event(CommandResult, record.headers, record.value)[1]
            except ContractError:
                continue
            if result.job == self._job:
                self._results.append(result)
        self._news.set()
