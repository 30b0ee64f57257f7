"""From a batch of records to 'handled': retries, bad records, and the one record that breaks a batch."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeVar

from opentelemetry.trace import Span, SpanKind

from paceline.contracts.batch import BatchError
from paceline.contracts.events import EventType
from paceline.contracts.schemas import ContractError
from paceline.runtime.clock import Clock
from paceline.runtime.cloud_events import EventHeaders, decode_event
from paceline.runtime.dead_letters import DeadLetterBox
from paceline.runtime.kafka import KafkaUnavailable
from paceline.runtime.logging import get_logger
from paceline.runtime.metrics import count
from paceline.runtime.record import BadRecord, Record
from paceline.runtime.retry import Backoff, is_transient
from paceline.runtime.telemetry import span

T = TypeVar("T")
# Handles a batch and returns the records that it found unusable (or None). It is called again with
# the same records after any exception, so it must give the same result twice.
Handle = Callable[[Sequence[Record]], Awaitable[Sequence[BadRecord] | None]]
log = get_logger(__name__)


class Abandoned(Exception):
    """The batch is no longer ours (rebalance, stop): not handled, not committed."""


class AfterFailure(str, Enum):
    WAIT = "wait"  # a dependency is away: the same batch again, for as long as it takes
    RETRY = "retry"  # unexpected: the same batch again, a few times
    ISOLATE = "isolate"  # find the record that breaks the batch
    REJECT = "reject"  # this is the record


@dataclass(frozen=True)
class RetryPolicy:
    """Unexpected errors are retried `attempts_max` times, transient ones without end."""

    attempts_max: int = 3
    backoff: Backoff = field(default_factory=lambda: Backoff(first_s=0.1, max_s=10.0))
    transient: Callable[[BaseException], bool] = is_transient


def after_failure(error: Exception, attempt: int, records_count: int, policy: RetryPolicy) -> AfterFailure:
    """What follows from a failed call of a handler."""
    unreadable = isinstance(error, ContractError | BatchError)
    if not unreadable and policy.transient(error):
        return AfterFailure.WAIT
    if not unreadable and attempt + 1 < policy.attempts_max:
        return AfterFailure.RETRY
    return AfterFailure.ISOLATE if records_count > 1 else AfterFailure.REJECT


class BatchRunner:
    """Runs one handler; `run` returns once each record is handled or kept as a dead letter."""

    def __init__(
        self, handle: Handle, box: DeadLetterBox, clock: Clock, policy: RetryPolicy, group: str
    ) -> None:
        self._handle = handle
        self._box = box
        self._clock = clock
        self._policy = policy
        self._group = group
        self.failing = ""  # why the present batch is not through yet, for readiness

    async def run(self, records: Sequence[Record], while_waiting: Callable[[], Awaitable[None]]) -> None:
        """`while_waiting` is awaited before each retry; it may raise Abandoned."""
        try:
            await self._run(list(records), while_waiting, self._policy.attempts_max)
        finally:
            self.failing = ""

    async def _run(
        self, left: list[Record], while_waiting: Callable[[], Awaitable[None]], attempts_max: int
    ) -> None:
        attempt = 0
        policy = RetryPolicy(attempts_max, self._policy.backoff, self._policy.transient)
        while left:
            try:
                bad = await self._handle(left)
            except BadRecord as error:
                left = [record for record in left if record is not error.record]
                await self._keep([error], while_waiting)
            except Abandoned:
                raise
            except Exception as error:
                decision = after_failure(error, attempt, len(left), policy)
                count("paceline.kafka.handler_retries", group=self._group, reason=decision.value)
                if decision is AfterFailure.ISOLATE:
                    for record in left:
                        await self._run([record], while_waiting, attempts_max=1)
                    return
                if decision is AfterFailure.REJECT:
                    return await self._keep([BadRecord(left[0], describe(error))], while_waiting)
                await self._wait(error, attempt, while_waiting)
                attempt += 1
            else:
                self._box.note_good(len(left) - len(bad or ()))
                return await self._keep(bad or (), while_waiting)

    async def _keep(self, bad: Sequence[BadRecord], while_waiting: Callable[[], Awaitable[None]]) -> None:
        for one in bad:
            attempt = 0
            while True:
                try:
                    await self._box.put(one)
                    break
                except KafkaUnavailable as error:
                    await self._wait(error, attempt, while_waiting)
                    attempt += 1

    async def _wait(
        self, error: Exception, attempt: int, while_waiting: Callable[[], Awaitable[None]]
    ) -> None:
        self.failing = describe(error)
        if attempt in (0, 5, 50):
            log.warning(
                "handler_failed", group=self._group, error=self.failing, attempt=attempt, exc_info=error
            )
        await while_waiting()
        await self._clock.sleep(self._policy.backoff.delay_s(attempt))
        await while_waiting()


def describe(error: BaseException) -> str:
    """Type and message, bounded."""
    return f"{type(error).__name__}: {error}"[:500]


def each(handle_one: Callable[[Record], Awaitable[None]]) -> Handle:
    """A handler from a function of one record; what it cannot read becomes a dead letter.

    Unreadable means `BadRecord`, `ContractError` or `BatchError`. Order is kept.
    """

    async def handle(records: Sequence[Record]) -> Sequence[BadRecord]:
        bad = []
        for record in records:
            try:
                await handle_one(record)
            except BadRecord as error:
                bad.append(error)
            except (ContractError, BatchError) as error:
                bad.append(BadRecord(record, str(error)))
            await asyncio.sleep(0)  # a long batch must not starve the loop
        return bad

    return handle


def each_event(kind: type[T], name: str, handle_one: Callable[[EventHeaders, T], Awaitable[None]]) -> Handle:
    """A handler from a function of one CloudEvent, inside a span `process NAME` of its trace."""

    async def handle_record(record: Record) -> None:
        headers, value = decode_event(kind, record.headers, record.value)
        with processing(name, record.topic, headers.traceparent):
            await handle_one(headers, value)

    return each(handle_record)


def processing(name: str, topic: str, traceparent: str) -> AbstractContextManager[Span]:
    """The span `process NAME` of one CloudEvent, in its trace."""
    return span(
        f"process {name}",
        traceparent=traceparent,
        kind=SpanKind.CONSUMER,
        attributes={"messaging.system": "kafka", "messaging.destination.name": topic},
    )


def only(kind: EventType, handle: Handle) -> Handle:
    """`handle` for the records of one CloudEvents type on a topic that carries several. Those of another
    known type belong to somebody else; what has no known type is handled, and so becomes a dead letter."""
    others = {each.value for each in EventType} - {kind.value}

    async def handle_some(records: Sequence[Record]) -> Sequence[BadRecord] | None:
        return await handle([record for record in records if record.header("ce_type") not in others])

    return handle_some
