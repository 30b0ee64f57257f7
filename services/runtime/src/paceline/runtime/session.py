"""One life of an aiokafka consumer: opened, assigned, polled, committed, closed."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
from aiokafka.errors import KafkaError

from paceline.contracts.topics import Topic
from paceline.runtime.app import is_being_cancelled
from paceline.runtime.handling import Abandoned
from paceline.runtime.kafka import client_options, create_topics
from paceline.runtime.logging import get_logger
from paceline.runtime.metrics import count
from paceline.runtime.options import ConsumerOptions, Start
from paceline.runtime.record import Partition, Record
from paceline.runtime.settings import KafkaSettings

OPEN_S_MAX = 90.0
CLOSE_S_MAX = 5.0
ABANDON_S_MAX = 1.0  # for each part of a consumer that would not close
REVOKE_S_MAX = 10.0
POSITION_S_MAX = 1.0
ASK_S_MAX = 2.0
log = get_logger(__name__)


class Assignment:
    """The partitions that a consumer now owns; given to `on_assigned`, which may move positions."""

    def __init__(self, consumer: AIOKafkaConsumer, partitions: Sequence[Partition]) -> None:
        self._consumer = consumer
        self.partitions = tuple(partitions)

    def seek(self, partition: Partition, offset: int) -> None:
        """Read `partition` from `offset`; an offset out of retention falls back to the options."""
        self._consumer.seek(_kafka(partition), offset)

    async def first_offsets(self) -> dict[Partition, int]:
        found = await self._consumer.beginning_offsets([_kafka(part) for part in self.partitions])
        return {_ours(part): offset for part, offset in found.items()}

    async def end_offsets(self) -> dict[Partition, int]:
        found = await self._consumer.end_offsets([_kafka(part) for part in self.partitions])
        return {_ours(part): offset for part, offset in found.items()}

    async def offsets_at(self, unix_s: float) -> dict[Partition, int]:
        """The first offset at or after a time of the log; the end where nothing is that new."""
        wanted = {_kafka(part): int(unix_s * 1000) for part in self.partitions}
        ends = await self.end_offsets()  # first: what arrives between the two calls must not be skipped
        found = await self._consumer.offsets_for_times(wanted)
        return {
            part: (hit.offset if (hit := found.get(_kafka(part))) is not None else end)
            for part, end in ends.items()
        }


AssignedHook = Callable[[Assignment], Awaitable[None]]
RevokedHook = Callable[[Sequence[Partition]], Awaitable[None]]


class Session(ConsumerRebalanceListener):  # type: ignore[misc]
    """Wraps one `AIOKafkaConsumer`. `lock` is held while records are handled and committed."""

    def __init__(
        self,
        settings: KafkaSettings,
        topics: Sequence[Topic],
        group: str | None,
        options: ConsumerOptions,
        name: str,
        resume: dict[Partition, int],
        on_assigned: AssignedHook | None,
        on_revoked: RevokedHook | None,
    ) -> None:
        self._settings = settings
        self._topics = topics
        self._group = group
        self._options = options
        self._name = name
        self._resume = resume  # positions of this process, they outlive the session
        self._on_assigned = on_assigned
        self._on_revoked = on_revoked
        self._consumer = self._make()
        self._uncommitted: dict[TopicPartition, int] = {}
        self._owned: set[Partition] = set()
        self._revoking = False
        self.lock = asyncio.Lock()

    @property
    def assigned(self) -> tuple[Partition, ...]:
        return tuple(self._owned)

    async def open(self) -> None:
        """Connect, create missing topics, and own partitions (or, in a full group, none)."""
        async with asyncio.timeout(OPEN_S_MAX):
            if self._settings.create_topics:
                await create_topics(self._settings, self._topics)
            names = [topic.name for topic in self._topics]
            if self._group is not None:
                self._consumer.subscribe(names, listener=self)
                await self._consumer.start()
                return
            self._consumer.subscribe(names)  # without a group aiokafka assigns every partition
            await self._consumer.start()
            await self.on_partitions_assigned(sorted(self._consumer.assignment()))

    async def close(self) -> None:
        """Commit what was handled and leave; bounded, whatever Kafka does."""
        await self._try(self.commit, CLOSE_S_MAX)
        if not await self._try(self._consumer.stop, CLOSE_S_MAX):
            for step in remains(self._consumer):
                await self._try(step, ABANDON_S_MAX)

    async def _try(self, step: Callable[[], Awaitable[object]], limit_s: float) -> bool:
        try:
            async with asyncio.timeout(limit_s):
                await step()
        except (Exception, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and is_being_cancelled():
                raise
            log.info("consumer_close_failed", consumer=self._name, step=step.__name__, error=repr(error))
            return False
        return True

    async def poll(self) -> list[Record]:
        """The next records, an empty list after `poll_s`."""
        found = await self._consumer.getmany(
            timeout_ms=int(self._options.poll_s * 1000), max_records=self._options.records_max
        )
        return [
            Record(
                raw.topic,
                raw.partition,
                raw.offset,
                raw.key,
                raw.value or b"",
                raw.headers,
                raw.timestamp,
            )
            for records in found.values()
            for raw in records
        ]

    def owned(self, records: Sequence[Record]) -> list[Record]:
        """Those of `records` whose partition is still ours; `lock` is held."""
        owned = {(part.topic, part.number) for part in self._owned}
        return [record for record in records if (record.topic, record.partition) in owned]

    def note_handled(self, records: Sequence[Record]) -> None:
        newest = {(record.topic, record.partition): record.offset for record in records}
        for (topic, number), offset in newest.items():
            self._uncommitted[TopicPartition(topic, number)] = offset + 1
            self._resume[Partition(topic, number)] = offset + 1

    async def commit(self) -> None:
        """Commit handled positions; a failure is counted, the records come again."""
        if self._group is None or not self._uncommitted:
            return
        offsets, self._uncommitted = self._uncommitted, {}
        try:
            await self._consumer.commit(offsets)
        except KafkaError as error:
            # With the next one again: on a quiet topic nothing else would ever say how far the group is.
            again = {part: offset for part, offset in offsets.items() if _ours(part) in self._owned}
            self._uncommitted = again | self._uncommitted
            count("paceline.kafka.commit_failures", group=self._group)
            log.info("commit_failed", group=self._group, error=repr(error))

    async def while_waiting(self) -> None:
        """Keep the group's trust during long retries; Abandoned once the records are not ours."""
        if self._revoking:
            raise Abandoned
        mine = [_kafka(part) for part in self._owned]
        if self._group is not None and mine:
            # A poll of paused partitions returns nothing and counts as progress (max.poll.interval).
            self._consumer.pause(*mine)
            try:
                await self._consumer.getmany(*mine, timeout_ms=0)
            finally:
                self._consumer.resume(*[part for part in mine if part in self._consumer.assignment()])

    async def positions(self) -> dict[Partition, int]:
        """Where the next poll continues; -1 where the consumer does not know within POSITION_S_MAX."""
        found = {}
        for part in self._consumer.assignment():
            try:
                found[_ours(part)] = await asyncio.wait_for(self._consumer.position(part), POSITION_S_MAX)
            except (TimeoutError, KafkaError):
                found[_ours(part)] = -1
        return found

    async def end_offsets(self) -> Mapping[Partition, int] | None:
        """End of the log of each partition, None where Kafka does not answer."""
        try:
            async with asyncio.timeout(self._settings.request_timeout_s):
                return await Assignment(self._consumer, self.assigned).end_offsets()
        except (TimeoutError, KafkaError, OSError):
            return None

    async def all_ends(self) -> dict[Partition, int]:
        """End of the log of every partition of the topics, whoever reads it. KafkaError or TimeoutError where
        Kafka does not answer."""
        async with asyncio.timeout(ASK_S_MAX):
            parts = [
                TopicPartition(topic.name, number)
                for topic in self._topics
                for number in sorted(self._numbers(topic))
            ]
            found = await self._consumer.end_offsets(parts)
        return {_ours(part): offset for part, offset in found.items()}

    def _numbers(self, topic: Topic) -> set[int]:
        numbers: set[int] | None = self._consumer.partitions_for_topic(topic.name)
        if not numbers:
            raise TimeoutError(f"the partitions of {topic.name} are not known yet")
        return numbers

    async def committed(self, partitions: Sequence[Partition]) -> dict[Partition, int]:
        """Up to where the group has handled them; where nothing is kept before that, from there on."""
        parts = [_kafka(part) for part in partitions]
        async with asyncio.timeout(ASK_S_MAX):
            first = await self._consumer.beginning_offsets(parts)
            return {
                _ours(part): max(await self._consumer.committed(part) or 0, first[part]) for part in parts
            }

    def has_new_partitions(self) -> bool:
        """Whether a topic that is read whole has grown partitions we do not read yet."""
        if self._group is not None:
            return False
        return {_ours(part) for part in self._consumer.assignment()} > self._owned

    async def on_partitions_assigned(self, assigned: Sequence[TopicPartition]) -> None:
        """Called by aiokafka inside the rebalance, and by `open` where there is no group."""
        self._revoking = False
        ours = [_ours(part) for part in assigned]
        assignment = Assignment(self._consumer, ours)
        # What is fetched while the owner gets ready is not ours yet: it would be skipped for good.
        self._consumer.pause(*assigned)
        try:
            await self._seek_start(assignment)
            if self._on_assigned is not None:
                await self._on_assigned(assignment)
            self._owned = set(ours)
        finally:
            self._consumer.resume(*[part for part in assigned if part in self._consumer.assignment()])
        log.info("assigned", consumer=self._name, partitions=len(ours))

    async def on_partitions_revoked(self, revoked: Sequence[TopicPartition]) -> None:
        """Lets the handler finish (bounded), commits, then tells the owner."""
        if not self._owned:
            return
        self._revoking = True
        try:
            async with asyncio.timeout(REVOKE_S_MAX):
                async with self.lock:
                    await self.commit()
                    gone, self._owned = tuple(self._owned), set()
                    self._uncommitted = {}
                    if self._on_revoked is not None:
                        await self._on_revoked(gone)
        except TimeoutError:
            self._owned = set()
            log.warning("revoked_while_handling", consumer=self._name, limit_s=REVOKE_S_MAX)

    async def _seek_start(self, assignment: Assignment) -> None:
        first_time = not self._resume
        fresh = [part for part in assignment.partitions if part not in self._resume]
        if self._group is None:
            for part in assignment.partitions:
                if part in self._resume:
                    assignment.seek(part, self._resume[part])
        elif not first_time or self._options.start in (Start.COMMITTED, Start.COMMITTED_OR_LATEST):
            return  # from the group's committed position
        if not fresh:
            return
        # A partition that appears later is read from its beginning: all of it is news.
        latest = first_time and self._options.start in (Start.LATEST, Start.COMMITTED_OR_LATEST)
        offsets = await (assignment.end_offsets() if latest else assignment.first_offsets())
        for part in fresh:
            assignment.seek(part, offsets[part])
            self._resume[part] = offsets[part]

    def _make(self) -> AIOKafkaConsumer:
        earliest = self._options.start in (Start.COMMITTED, Start.EARLIEST)
        return AIOKafkaConsumer(
            **client_options(self._settings, self._name),
            group_id=self._group,
            group_instance_id=self._options.group_instance_id,
            enable_auto_commit=False,
            auto_offset_reset="earliest" if earliest else "latest",
            session_timeout_ms=int(self._settings.session_timeout_s * 1000),
            heartbeat_interval_ms=int(self._settings.session_timeout_s * 300),
            max_partition_fetch_bytes=self._options.partition_fetch_bytes_max,
            fetch_max_bytes=self._options.fetch_bytes_max,
            fetch_min_bytes=self._options.fetch_bytes_min,
            fetch_max_wait_ms=int(self._options.fetch_wait_s_max * 1000),
            check_crcs=self._options.check_crcs,
        )


def remains(consumer: AIOKafkaConsumer) -> list[Callable[[], Awaitable[object]]]:
    """Steps that end what `AIOKafkaConsumer.stop` leaves behind where one of its parts fails.

    Its heartbeats would hold partitions as a member of the group, its fetcher and its client would go
    on reading, for as long as the process lives.
    """
    coordinator = consumer._coordinator  # noqa: SLF001
    coordination = getattr(coordinator, "_coordination_task", None)
    if coordination is not None:
        coordination.cancel()
    names = ("_stop_heartbeat_task", "_stop_commit_offsets_refresh_task", "_maybe_leave_group")
    steps = [getattr(coordinator, name) for name in names if hasattr(coordinator, name)]
    if consumer._fetcher is not None:  # noqa: SLF001
        steps.append(consumer._fetcher.close)  # noqa: SLF001
    return [*steps, consumer._client.close]  # noqa: SLF001


def _ours(part: TopicPartition) -> Partition:
    return Partition(part.topic, part.partition)


def _kafka(part: Partition) -> TopicPartition:
    return TopicPartition(part.topic, part.number)
