"""The records of a large healthy job, made ahead of time, and their way into Kafka at small cost.

One record per node and second, compressed with lz4 as agents do. Independent agents make a Kafka batch for
each record; `per_batch` puts several into one, because the broker shares the cores here. Encoded once; then
only counters, times and checksums are patched. Complete produce requests (version 3, acks 0) go into a file
and from there into sockets by `sendfile`, so that the producer takes little of those cores.
"""

import itertools
import os
import socket
import struct
import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import cramjam
import numpy as np
from aiokafka.record.util import calc_crc32c

from paceline.contracts.batch import (
    PROCESS_ROW,
    ROUND_ROW,
    STATE_ROW,
    Batch,
    BatchKind,
    RowKind,
    encode_batch,
)
from paceline.contracts.topics import FRAMES
from tests.bench.detector_step import Load

JOB = "bench"
SLOTS = 20  # parts of a second that are sent together
CONNECTIONS = 4
SECOND = 10**9
_BODY = 64  # of a record of `contracts.batch`, behind its fixed header
_CHECKSUM, _TIMES = 8, 20  # in that header
_LZ4 = 3


@dataclass(frozen=True)
class Prepared:
    """A file of produce requests; `ends` has SLOTS entries per second: bytes from the start."""

    path: Path
    seconds: int
    records: int
    ends: tuple[int, ...]
    first_unix_ns: int  # the sampling time of its first record
    value_bytes: int  # of all records, before compression


class Agents:
    """All agents of one job; each `prepare` goes on where the last one ended."""

    def __init__(self, ranks: int, rounds: int, partition: int) -> None:
        load = Load(ranks)
        self.nodes, self.partition = load.nodes, partition
        self._random = np.random.default_rng(1)
        load.state["completed"] = load.state["entered"] = 1000
        load.rounds["gap_ns"] = self._random.integers(10**6, 10**8, load.rounds.shape)
        load.rounds["signature"] = load.rounds["comm"] * np.uint64(2654435761)
        many = np.repeat(load.rounds, rounds, axis=1)
        values = [
            encode_batch(
                Batch(
                    BatchKind.FRAMES, JOB, "a1", f"node{node:05d}", 0, 1, 1, 1, 1,
                    {RowKind.PROCESS: load.process[node], RowKind.STATE: load.state[node],
                     **({RowKind.ROUND: many[node]} if rounds else {})},
                )
            )
            for node in range(self.nodes)
        ]  # fmt: skip
        self.size = len(values[0])
        self._bytes = bytearray(b"".join(values))
        end = self.size
        self._rounds = self._view(ROUND_ROW, end := end - many.shape[1] * ROUND_ROW.itemsize * bool(rounds),
                                  many.shape[1] if rounds else 0)  # fmt: skip
        self._states = self._view(STATE_ROW, end := end - load.state.shape[1] * STATE_ROW.itemsize,
                                  load.state.shape[1])  # fmt: skip
        self._processes = self._view(PROCESS_ROW, end - load.process.shape[1] * PROCESS_ROW.itemsize,
                                     load.process.shape[1])  # fmt: skip
        self._per_second = max(rounds, 1)
        self._order = np.arange(rounds) if rounds else np.zeros(0, np.int64)
        self._second = 0
        self._boot_ns = self._random.integers(10**12, 10**15, self.nodes).tolist()

    def _view(self, dtype: np.dtype[np.void], offset: int, rows: int) -> np.ndarray:
        return np.ndarray((self.nodes, rows), dtype, self._bytes, offset, (self.size, dtype.itemsize))

    def prepare(self, path: Path, seconds: int, first_unix_ns: int, per_batch: int) -> Prepared:
        """Write `seconds` seconds of requests to `path`, `per_batch` records in one batch of Kafka."""
        ends, done = [], 0
        bounds = [self.nodes * slot // SLOTS for slot in range(SLOTS + 1)]
        with path.open("wb") as file:
            for second in range(seconds):
                self._advance()
                unix_ns = first_unix_ns + second * SECOND
                for low, high in itertools.pairwise(bounds):
                    part = b"".join(
                        self._request(node, min(node + per_batch, high), unix_ns)
                        for node in range(low, high, per_batch)
                    )
                    done += file.write(part)
                    ends.append(done)
        records = seconds * self.nodes
        return Prepared(path, seconds, records, tuple(ends), first_unix_ns, records * self.size)

    def _advance(self) -> None:
        """One second of a job with a step a second: every counter moves."""
        self._second += 1
        states, rounds, random = self._states, self._rounds, self._random
        states["completed"] += self._per_second
        states["entered"] += self._per_second
        states["idle_ms"] = random.integers(0, 900, states.shape)
        states["send_count"] += random.integers(500, 600, states.shape).astype(np.uint64)
        self._processes["step"] += 1
        self._processes["step_age_ms"] = random.integers(0, 900, self._processes.shape)
        self._processes["cpu_ms"] += random.integers(900, 1100, self._processes.shape).astype(np.uint64)
        self._processes["waited_ms"] += random.integers(300, 400, self._processes.shape).astype(np.uint32)
        if rounds.shape[1]:
            order = np.tile(self._order, rounds.shape[1] // len(self._order))
            rounds["round"] = 1001 + (self._second - 1) * self._per_second + order
            rounds["issue"] = rounds["round"] * np.uint64(4)
            rounds["duration_ns"] = random.integers(3_900_000, 4_100_000, rounds.shape)
            rounds["gap_ns"] += random.integers(0, 10**6, rounds.shape).astype(np.uint64)
            rounds["recv_wait_us"] = random.integers(0, 1000, rounds.shape)

    def _request(self, low: int, high: int, second_unix_ns: int) -> bytes:
        records = [self._record(node, second_unix_ns, node - low) for node in range(low, high)]
        time_ms = (second_unix_ns + high * SECOND // self.nodes) // 10**6
        return _produce(FRAMES.name.encode(), self.partition, _record_batch(records, time_ms))

    def _record(self, node: int, second_unix_ns: int, place: int) -> bytes:
        start = node * self.size
        unix_ns = second_unix_ns + node * SECOND // self.nodes
        body = memoryview(self._bytes)[start + _BODY : start + self.size]
        seq, own_ns = self._second, self._boot_ns[node] + self._second * SECOND
        struct.pack_into("<I", self._bytes, start + _CHECKSUM, zlib.crc32(body))
        struct.pack_into("<QQQ", self._bytes, start + _TIMES, seq, own_ns, unix_ns)
        value = bytes(self._bytes[start : start + self.size])
        key = f"{JOB}:0".encode()
        fields = [b"\0\0", _varint(place), _varint(len(key)), key, _varint(len(value)), value, b"\0"]
        record = b"".join(fields)
        return _varint(len(record)) + record


def _varint(number: int) -> bytes:
    left, packed = number << 1, bytearray()  # zigzag of a number that is not negative
    while left > 0x7F:
        packed.append(left & 0x7F | 0x80)
        left >>= 7
    packed.append(left)
    return bytes(packed)


def _record_batch(records: Sequence[bytes], time_ms: int) -> bytes:
    """A record batch (magic 2)."""
    packer = cramjam.lz4.Compressor(level=1, content_checksum=False, block_linked=False)
    packer.compress(b"".join(records))
    count = len(records)
    checked = struct.pack(">hiqqqhii", _LZ4, count - 1, time_ms, time_ms, -1, -1, -1, count)
    checked += bytes(packer.finish())
    return struct.pack(">qiibI", 0, 9 + len(checked), -1, 2, calc_crc32c(checked)) + checked


def _produce(topic: bytes, partition: int, batch: bytes) -> bytes:
    """A produce request, version 3, that wants no answer."""
    body = struct.pack(">hhih5shhii", 0, 3, 0, 5, b"bench", -1, 0, 10_000, 1)
    body += struct.pack(f">h{len(topic)}siii", len(topic), topic, 1, partition, len(batch)) + batch
    return struct.pack(">i", len(body)) + body


def send(prepared: Prepared, bootstrap: str, *, paced: bool) -> tuple[float, float]:
    """Send all of it; returns (wall clock of the start, largest lateness in seconds)."""
    host, port = bootstrap.split(":")
    sockets = [socket.create_connection((host, int(port)), 10) for _ in range(CONNECTIONS)]
    for one in sockets:
        one.settimeout(60)
    starts = [0, *prepared.ends[:-1]]
    late_s, started_s = 0.0, time.time()
    with prepared.path.open("rb") as file:
        for slot, (start, end) in enumerate(zip(starts, prepared.ends, strict=True)):
            due_s = started_s + (slot + 1) / SLOTS  # at the end of the slot: nobody sends ahead of time
            if paced:
                time.sleep(max(due_s - time.time(), 0))
            one = sockets[slot % CONNECTIONS]
            file.seek(start)
            one.sendfile(file, start, end - start)
            late_s = max(late_s, time.time() - due_s)
    for one in sockets:
        one.shutdown(socket.SHUT_WR)
        while one.recv(4096):  # the broker closes once it has taken everything
            pass
        one.close()
    os.unlink(prepared.path)
    return started_s, late_s
