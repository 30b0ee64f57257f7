import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from paceline.contracts.batch import BatchError
from paceline.contracts.events import EventType
from paceline.contracts.registry import HealthEvent, HealthKind
from paceline.contracts.schemas import ContractError
from paceline.runtime.app import BackgroundTasks
from paceline.runtime.buffer import NewestWins, Outgoing
from paceline.runtime.clock import ManualClock
from paceline.runtime.cloud_events import decode_event, decode_headers, encode_event
from paceline.runtime.dead_letters import DeadLetterBox, DeadLetterLimit, Tokens, dead_letter_headers
from paceline.runtime.handling import (
    AfterFailure,
    BatchRunner,
    RetryPolicy,
    after_failure,
    each,
    each_event,
    only,
)
from paceline.runtime.kafka import KafkaUnavailable, client_options
from paceline.runtime.progress import Progress, ProgressWatch
from paceline.runtime.record import BadRecord, Partition, Record
from paceline.runtime.retry import Backoff, is_transient
from paceline.runtime.settings import KafkaSettings, SettingsError, load_settings

PART = Partition("t", 0)
HEALTH = HealthEvent("h1", HealthKind.PROCESS_EXIT, "n", "j", "a", 1, 2, 3.0)


def record(value: bytes = b"v", offset: int = 0, headers: Sequence[tuple[str, bytes]] = ()) -> Record:
    return Record("t", 0, offset, b"k", value, tuple(headers))


# clock


async def test_manual_clock_wakes_sleepers_in_order() -> None:
    clock, woken = ManualClock(unix_s=100.0), list[str]()

    async def sleeper(name: str, seconds: float) -> None:
        await clock.sleep(seconds)
        woken.append(name)

    tasks = [asyncio.create_task(sleeper("late", 5)), asyncio.create_task(sleeper("soon", 1))]
    await asyncio.sleep(0)
    assert clock.sleepers_count == 2
    clock.advance(1)
    await asyncio.wait_for(tasks[1], 1)
    assert woken == ["soon"]
    clock.advance(4)
    await asyncio.wait_for(tasks[0], 1)
    assert clock.unix_s() == 105.0
    assert clock.sleepers_count == 0


async def test_a_cancelled_sleeper_is_forgotten() -> None:
    clock = ManualClock()
    task = asyncio.create_task(clock.sleep(5))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert clock.sleepers_count == 0


# buffer


def test_the_newest_win_and_what_goes_is_counted() -> None:
    buffer = NewestWins(bytes_max=300)
    records = [Outgoing("t", b"k", b"%03d" % number + b"x" * 32) for number in range(4)]
    gone = [lost for one in records for lost in buffer.push(one)]
    assert gone == records[:1]
    assert (len(buffer), buffer.dropped, buffer.size_bytes) == (3, 1, 300)
    assert buffer.pop() is records[1]


def test_a_record_larger_than_the_buffer_is_dropped_alone() -> None:
    buffer = NewestWins(bytes_max=300)
    small, large = Outgoing("t", b"", b"s"), Outgoing("t", b"", b"x" * 400)
    buffer.push(small)
    assert buffer.push(large) == [large]
    assert buffer.pop() is small
    assert buffer.pop() is None


def test_a_failed_record_returns_to_the_head_only_where_there_is_room() -> None:
    buffer = NewestWins(bytes_max=200)
    first, second = Outgoing("t", b"", b"1"), Outgoing("t", b"", b"2")
    buffer.push(second)
    assert buffer.push_back(first)
    assert buffer.pop() is first
    buffer.push(Outgoing("t", b"", b"3"))
    buffer.push(Outgoing("t", b"", b"4"))
    assert not buffer.push_back(Outgoing("t", b"", b"5"))
    assert buffer.dropped == 1


# cloud events


def test_events_return_as_they_were() -> None:
    headers, data = encode_event(
        HEALTH, event_type=EventType.HEALTH.value, source="paceline/agent", event_id="h1",
        unix_s=1_767_323_045.0,
        traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    )  # fmt: skip
    event, value = decode_event(HealthEvent, headers, data)
    assert value == HEALTH
    assert (event.id, event.type, event.source) == ("h1", EventType.HEALTH.value, "paceline/agent")
    assert event.time == "2026-01-02T03:04:05.000Z"
    assert event.traceparent.startswith("00-0af7")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"ce_specversion": b"9"}, "ce_specversion is '9'"),
        ({"ce_specversion": None}, "ce_specversion is ''"),
        ({"ce_id": None}, "ce_id is missing"),
        ({"ce_type": b"\xff\xfe"}, "ce_type is b'\\xff\\xfe': expected UTF-8"),
        ({"content-type": b"text/plain"}, "content-type is 'text/plain'"),
    ],
)
def test_bad_headers_are_named(change: dict[str, bytes | None], named: str) -> None:
    headers, _ = encode_event(HEALTH, event_type="t", source="s", event_id="i", unix_s=0.0)
    changed = {**dict(headers), **change}
    with pytest.raises(ContractError) as caught:
        decode_headers([(name, raw) for name, raw in changed.items() if raw is not None])
    assert named in str(caught.value)


def test_an_event_without_id_is_not_sent() -> None:
    with pytest.raises(ContractError, match="ce_id"):
        encode_event(HEALTH, event_type="t", source="s", event_id="", unix_s=0.0)


# retry


def test_backoff_grows_to_its_bound() -> None:
    backoff = Backoff(first_s=0.1, max_s=10.0, jitter_ratio=0.2)
    assert [round(backoff.delay_s(n, 0.5), 3) for n in (0, 1, 2, 20, 10_000)] == [0.1, 0.2, 0.4, 10.0, 10.0]
    assert backoff.delay_s(20, 1.0) == pytest.approx(12.0)
    assert backoff.delay_s(20, 0.0) == pytest.approx(8.0)


class SqlError(Exception):
    def __init__(self, sqlstate: str) -> None:
        super().__init__(sqlstate)
        self.sqlstate = sqlstate


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ConnectionRefusedError(), True),
        (TimeoutError(), True),
        (KafkaUnavailable("away"), True),
        (SqlError("57P01"), True),
        (SqlError("40001"), True),
        (SqlError("23505"), False),
        (ValueError("x"), False),
        (KeyError("x"), False),
    ],
)
def test_which_errors_pass_by_themselves(error: Exception, expected: bool) -> None:
    assert is_transient(error) is expected


def test_a_wrapped_cause_counts() -> None:
    wrapper = RuntimeError("while saving")
    wrapper.__cause__ = ConnectionResetError()
    assert is_transient(wrapper)


# handling


def test_what_follows_from_a_failure() -> None:
    policy = RetryPolicy(attempts_max=2)
    assert after_failure(OSError(), 99, 5, policy) is AfterFailure.WAIT
    assert after_failure(KeyError(), 0, 5, policy) is AfterFailure.RETRY
    assert after_failure(KeyError(), 1, 5, policy) is AfterFailure.ISOLATE
    assert after_failure(KeyError(), 1, 1, policy) is AfterFailure.REJECT
    assert after_failure(ContractError("x"), 0, 5, policy) is AfterFailure.ISOLATE
    assert after_failure(BatchError("x"), 0, 1, policy) is AfterFailure.REJECT


async def nothing() -> None:
    return


def runner(handle: object, clock: ManualClock, attempts_max: int = 2) -> tuple[BatchRunner, DeadLetterBox]:
    box = DeadLetterBox(None, "g", clock)
    policy = RetryPolicy(attempts_max, Backoff(first_s=0.0, max_s=0.0))
    return BatchRunner(handle, box, clock, policy, "g"), box  # type: ignore[arg-type]


async def test_only_the_record_that_breaks_a_batch_is_given_up() -> None:
    handled: list[int] = []

    async def handle(records: Sequence[Record]) -> None:
        for one in records:
            if one.offset == 2:
                raise KeyError("bug")
            handled.append(one.offset)

    run, box = runner(handle, ManualClock())
    await run.run([record(offset=n) for n in range(4)], nothing)
    assert set(handled) == {0, 1, 3}
    assert box.rejected == 1


async def test_a_raised_bad_record_leaves_the_batch_and_the_rest_is_handled() -> None:
    calls: list[list[int]] = []

    async def handle(records: Sequence[Record]) -> None:
        calls.append([one.offset for one in records])
        for one in records:
            if one.offset == 1:
                raise BadRecord(one, "no")

    run, box = runner(handle, ManualClock())
    await run.run([record(offset=n) for n in range(3)], nothing)
    assert calls == [[0, 1, 2], [0, 2]]
    assert box.rejected == 1


async def test_an_absent_dependency_is_waited_for_and_named() -> None:
    tries = 0

    async def handle(records: Sequence[Record]) -> None:
        nonlocal tries
        tries += 1
        if tries < 50:
            raise ConnectionRefusedError("database")

    run, box = runner(handle, ManualClock())
    seen: set[str] = set()

    async def watch() -> None:
        seen.add(run.failing)

    await run.run([record()], watch)
    assert tries == 50
    assert seen == {"ConnectionRefusedError: database"}
    assert run.failing == ""
    assert box.rejected == 0


async def test_each_keeps_order_and_rejects_what_it_cannot_read() -> None:
    seen: list[int] = []

    async def one(item: Record) -> None:
        if item.offset == 1:
            raise ContractError("field x is 1: expected 2")
        seen.append(item.offset)

    bad = await each(one)([record(offset=n) for n in range(3)])
    assert seen == [0, 2]
    assert bad is not None
    assert [item.reason for item in bad] == ["field x is 1: expected 2"]


async def test_each_event_rejects_garbage_and_hands_on_events() -> None:
    got: list[HealthEvent] = []

    async def handle(headers: object, value: HealthEvent) -> None:
        got.append(value)

    headers, data = encode_event(HEALTH, event_type="t", source="s", event_id="i", unix_s=0.0)
    batch = [record(b"\xff"), record(b"{}", 1, headers), record(data, 2, headers)]
    bad = await each_event(HealthEvent, "health", handle)(batch)
    assert got == [HEALTH]
    assert bad is not None
    assert len(bad) == 2


async def test_records_of_another_known_type_belong_to_somebody_else_and_garbage_to_nobody() -> None:
    got: list[HealthEvent] = []

    async def handle(headers: object, value: HealthEvent) -> None:
        got.append(value)

    batch = []
    for offset, name in enumerate((EventType.HEALTH.value, EventType.RECOVERY_REPORT.value, "colour")):
        headers, data = encode_event(HEALTH, event_type=name, source="s", event_id="i", unix_s=0.0)
        batch.append(record(data if name == EventType.HEALTH.value else b"{}", offset, headers))
    bad = await only(EventType.HEALTH, each_event(HealthEvent, "health", handle))(batch)
    assert got == [HEALTH]
    assert [item.record.offset for item in bad or ()] == [2]


# dead letters


def test_tokens_refill_with_time() -> None:
    tokens = Tokens(per_s=2.0, burst=2)
    assert [tokens.wait_s(0.0) for _ in range(3)] == [0.0, 0.0, 0.5]
    assert tokens.wait_s(0.5) == 0.0
    assert tokens.wait_s(100.0) == 0.0


async def test_mostly_bad_records_are_reported() -> None:
    limit = DeadLetterLimit(ratio_max=0.5, ratio_window_count=4)
    box = DeadLetterBox(None, "g", ManualClock(), limit)
    box.note_good(1)
    for _ in range(3):
        await box.put(BadRecord(record(), "no"))
    assert box.ratio_exceeded
    box.note_good(2)
    assert not box.ratio_exceeded


def test_dead_letters_say_where_from_and_why_within_bounds() -> None:
    bad = BadRecord(
        Record("t", 3, 9, b"k" * 5_000, b"v", (("a", b"h" * 9_000),) * 100), "because " + "x" * 9_000
    )
    headers = dead_letter_headers(bad, "g", 1.0)
    named = dict(headers)
    assert (named["paceline_topic"], named["paceline_partition"], named["paceline_offset"]) == (
        b"t",
        b"3",
        b"9",
    )
    assert named["paceline_reason"].startswith(b"because")
    assert sum(len(name) + len(raw) for name, raw in headers) < 100_000


# progress


def test_standing_still_with_records_ahead_is_stuck() -> None:
    watch = ProgressWatch(stuck_s=15, unassigned_s=60)
    assert watch.observe(0, {PART: 5}, {PART: 9}, handling=False) is Progress.MOVING
    assert watch.observe(10, {PART: 5}, {PART: 9}, handling=False) is Progress.WAITING
    assert watch.observe(12, {PART: 7}, {PART: 9}, handling=False) is Progress.MOVING
    assert watch.observe(26, {PART: 7}, {PART: 9}, handling=False) is Progress.WAITING
    stuck = watch.observe(27, {PART: 7}, {PART: 9}, handling=False)
    assert stuck is Progress.STUCK
    assert stuck.needs_new_consumer


def test_one_stuck_partition_is_enough_and_an_unknown_position_counts() -> None:
    watch, other = ProgressWatch(15, 60), Partition("t", 1)
    watch.observe(0, {PART: 1, other: -1}, {PART: 9, other: 4}, handling=False)
    assert watch.observe(15, {PART: 8, other: -1}, {PART: 9, other: 4}, handling=False) is Progress.STUCK


def test_at_the_end_is_idle_however_long() -> None:
    watch = ProgressWatch(15, 60)
    watch.observe(0, {PART: 9}, {PART: 9}, handling=False)
    assert watch.observe(1_000, {PART: 9}, {PART: 9}, handling=False) is Progress.IDLE


def test_a_long_handler_is_not_stuck_and_the_clock_starts_after_it() -> None:
    watch = ProgressWatch(15, 60)
    watch.observe(0, {PART: 5}, {PART: 9}, handling=False)
    assert watch.observe(100, {PART: 5}, None, handling=True) is Progress.HANDLING
    assert watch.observe(110, {PART: 5}, {PART: 9}, handling=False) is Progress.WAITING


def test_no_answer_is_unreachable_after_a_while() -> None:
    watch = ProgressWatch(15, 60)
    watch.observe(0, {PART: 5}, {PART: 5}, handling=False)
    assert watch.observe(10, {PART: 5}, None, handling=False) is Progress.WAITING
    assert watch.observe(15, {PART: 5}, None, handling=False) is Progress.UNREACHABLE


def test_no_partition_for_long_is_told() -> None:
    watch = ProgressWatch(15, 60)
    assert watch.observe(0, {}, {}, handling=False) is Progress.WAITING
    assert watch.observe(60, {}, {}, handling=False) is Progress.UNASSIGNED
    watch.reset()
    assert watch.observe(61, {}, {}, handling=False) is Progress.WAITING


# settings


@pytest.mark.parametrize(
    ("variable", "value", "expected"),
    [
        ("BOOTSTRAP", "kafka", "expected host:port"),
        ("BOOTSTRAP", "", "expected host:port"),
        ("SECURITY_PROTOCOL", "TLS", "SASL_SSL"),
        ("SECURITY_PROTOCOL", "SASL_SSL", "PACELINE_KAFKA_SASL_USERNAME"),
        ("SSL_CERTIFICATE_FILE", "/nowhere.pem", "set together"),
        ("SSL_CA_FILE", "/nowhere.pem", "/nowhere.pem is not a file"),
        ("REQUEST_TIMEOUT_S", "-1", "greater than 0"),
        ("SEND_TIMEOUT_S", "soon", "number"),
    ],
)
def test_wrong_kafka_settings_name_the_variable(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, expected: str
) -> None:
    monkeypatch.setenv(f"PACELINE_KAFKA_{variable}", value)
    with pytest.raises(SettingsError) as caught:
        load_settings(KafkaSettings)
    assert "PACELINE_KAFKA_" in str(caught.value)
    assert expected in str(caught.value)


def test_secrets_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_KAFKA_SECURITY_PROTOCOL", "SASL_SSL")
    monkeypatch.setenv("PACELINE_KAFKA_SASL_USERNAME", "me")
    monkeypatch.setenv("PACELINE_KAFKA_SASL_PASSWORD", "hunter2")
    settings = load_settings(KafkaSettings)
    assert "hunter2" not in repr(settings)
    options = client_options(settings, "x")
    assert options["sasl_plain_password"] == "hunter2"
    assert options["ssl_context"] is not None
    monkeypatch.delenv("PACELINE_KAFKA_SASL_USERNAME")
    with pytest.raises(SettingsError) as caught:
        load_settings(KafkaSettings)
    assert "hunter2" not in str(caught.value)


def test_tls_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("not a certificate")
    settings = KafkaSettings(security_protocol="SSL", ssl_ca_file=tmp_path / "ca.pem")
    with pytest.raises(SettingsError, match=r"ca\.pem.*expected PEM"):
        client_options(settings, "x")


# background tasks


async def test_a_task_that_dies_is_told_and_a_cancelled_one_is_not() -> None:
    tasks = BackgroundTasks()

    async def fail() -> None:
        raise KeyError("bug")

    async def live() -> None:
        await asyncio.Event().wait()

    tasks.spawn("live", live())
    tasks.spawn("fail", fail())
    cause = await asyncio.wait_for(tasks.crashed(), 1)
    assert isinstance(cause, KeyError)
    await tasks.cancel()
