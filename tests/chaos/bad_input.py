"""Records that nobody should have written, for every topic."""

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from paceline.contracts.batch import ROW_DTYPES, Batch, BatchKind, RowKind, Rows, encode_batch
from paceline.contracts.events import EventType
from paceline.contracts.registry import (
    CommunicatorRecord,
    HealthEvent,
    HealthKind,
    JobRecord,
    JobState,
    NodeRecord,
    RankRecord,
)
from paceline.contracts.schemas import dump_json
from paceline.contracts.topics import DEAD_LETTERS, FRAMES, HEALTH, JOBS, SIGNALS, TOPICS, Topic
from paceline.runtime.cloud_events import encode_event

Headers = list[tuple[str, bytes]]
FAR_RANKS = (99, 2**31, 2**32 - 1)
WRONG_JSON = (
    b"{",
    b"[]",
    b"null",
    b'"text"',
    b"{}",
    b'{"id": 5, "job": ["a"], "rank": "x"}',
    b"[" * 5000,
    b'{"job": "\xff"}',
)


@dataclass(frozen=True)
class BadRecord:
    topic: Topic
    key: str
    value: bytes
    headers: Headers


def bad_records(job: str, attempt: str, world: int, draw: random.Random) -> list[BadRecord]:
    """Everything, in a drawn order; keys send it to the partitions that `job` is read from."""
    found = [*_bytes_and_json(job, draw), *_batches(job, attempt, draw), *_events(job, attempt, world)]
    draw.shuffle(found)
    return found


def _bytes_and_json(job: str, draw: random.Random) -> Iterator[BadRecord]:
    for topic in TOPICS:
        if topic is DEAD_LETTERS:
            continue
        key = f"{job}:0" if topic is FRAMES else job
        for size in (1, 63, 64, 65, 500):
            yield BadRecord(topic, key, draw.randbytes(size), [])
        yield BadRecord(topic, key, b"", [])
        for event_type in EventType:
            for text in WRONG_JSON[:4]:
                yield BadRecord(topic, key, text, _headers(event_type.value))
        for text in WRONG_JSON:
            yield BadRecord(topic, key, text, _headers("dev.paceline.unheard_of.v9"))
            yield BadRecord(topic, key, text, [("ce_type", b"\xff\xfe"), ("traceparent", b"\0")])


def _batches(job: str, attempt: str, draw: random.Random) -> Iterator[BadRecord]:
    plain = Batch(
        BatchKind.FRAMES,
        job,
        attempt,
        "stranger",
        0,
        1,
        1,
        1,
        1,
        rows={RowKind.STATE: _rows(draw, RowKind.STATE)},
    )
    for topic, key in ((FRAMES, f"{job}:0"), (SIGNALS, job)):
        data = encode_batch(plain)
        for cut in (10, 63, 64, 70, 100, len(data) - 1):
            yield BadRecord(topic, key, data[:cut], [])
        for place in (0, 4, 6, 8, 50, len(data) - 5):
            yield BadRecord(topic, key, data[:place] + bytes([data[place] ^ 0x5A]) + data[place + 1 :], [])
        for kind in BatchKind:
            unknown = replace(plain, kind=kind, job="nobody-knows", episode="e")
            yield BadRecord(topic, key, encode_batch(unknown), [])
    yield BadRecord(FRAMES, f"{job}:0", encode_batch(replace(plain, kind=BatchKind.STALLED)), [])
    yield BadRecord(SIGNALS, job, encode_batch(plain), [])
    for seq in range(2, 12):
        far = _tables(draw, far=True)
        frame = replace(plain, seq=seq, sampled_ns=seq * 10**9, rows=far)
        yield BadRecord(FRAMES, f"{job}:0", encode_batch(frame), [])
        signal = replace(
            plain,
            kind=BatchKind.STALLED,
            seq=seq,
            rows=_tables(draw),
            shard=seq % 2,
            shards=2,
            episode=f"bad-{seq}",
        )
        yield BadRecord(SIGNALS, job, encode_batch(replace(signal, job=f"{job}-not")), [])


def _tables(draw: random.Random, *, far: bool = False) -> dict[RowKind, Rows]:
    return {kind: _rows(draw, kind, far=far) for kind in RowKind}


def _rows(draw: random.Random, kind: RowKind, *, far: bool = False) -> Rows:
    """Rows of random bytes; `far`: with ranks that the job does not have."""
    dtype = ROW_DTYPES[kind]
    rows: Rows = np.frombuffer(draw.randbytes(dtype.itemsize * 5), dtype).copy()
    if far and "rank" in (dtype.names or ()):
        rows["rank"] = np.resize(np.array(FAR_RANKS, np.uint32), 5)
    return rows


def _events(job: str, attempt: str, world: int) -> Iterator[BadRecord]:
    """Well formed, and wrong: ranks out of range, unknown jobs, impossible numbers."""
    for rank in (-1, -(2**40), world, 2**31):
        health = HealthEvent(
            f"bad-{rank}", HealthKind.PROCESS_EXIT, "stranger", job, attempt, rank, 1, 1.0, -9
        )
        yield _event(HEALTH, job, EventType.HEALTH, health)
        yield _event(HEALTH, job, EventType.HEALTH, replace(health, id=f"u{rank}", job="nobody-knows"))
        node = NodeRecord(job, attempt, "stranger", "a", (RankRecord(rank, 0, 1, 1),))
        yield _event(JOBS, f"{job}:stranger", EventType.NODE_RECORD, node)
    for comm, ranks in (("zz", "0-3"), ("00", "0"), ("0123456789abcdef", "0-99999999999"), ("f" * 17, "9-1")):
        record = CommunicatorRecord(job, attempt, comm, "bad", ranks, 0, 0, "gloo")
        yield _event(JOBS, f"{job}:{comm}", EventType.COMMUNICATOR_RECORD, record)
    other = JobRecord("nobody-knows", "a", "", "", "", "", -5, 1, JobState.RUNNING, "x", "x", 1e300)
    yield _event(JOBS, "nobody-knows", EventType.JOB_RECORD, other)
    yield _event(JOBS, "nobody-knows", EventType.JOB_RECORD, replace(other, job="nul\0", world_size=2))
    text = dump_json(replace(other, world_size=4, started_unix_s=1.0))
    huge = json.loads(text) | {"world_size": 10**30, "state": "dancing"}
    yield BadRecord(JOBS, "nobody-knows", json.dumps(huge).encode(), _headers(EventType.JOB_RECORD.value))


def _event(topic: Topic, key: str, event_type: EventType, value: object) -> BadRecord:
    headers, data = encode_event(
        value, event_type=event_type.value, source="chaos", event_id="bad", unix_s=1.0, traceparent=""
    )
    return BadRecord(topic, key, data, [(name, raw) for name, raw in headers])


def _headers(event_type: str) -> Headers:
    return [
        ("ce_id", b"bad"),
        ("ce_type", event_type.encode()),
        ("ce_source", b"chaos"),
        ("ce_specversion", b"1.0"),
        ("content-type", b"application/json"),
    ]
