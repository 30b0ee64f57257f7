"""Records read and applied together give what they give one after the other, byte for byte."""

import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from paceline.analysis.detection import DetectionPolicy
from paceline.analysis.detection.placing import install
from paceline.contracts.batch import (
    STATE_ROW,
    Batch,
    BatchError,
    BatchKind,
    RowKind,
    decode_batch,
    encode_batch,
)
from paceline.contracts.batch_run import RunReader, crc32_each
from paceline.detector.core import DetectorCore, Output, Placed, PlacedRun, Signal
from paceline.detector.native import native_checksums, native_placing
from paceline.detector.records import RecordReader
from paceline.detector.state import dump_held
from paceline.fleet import FaultKind, FleetJob, Profile, ProfileName, Topology, draw_faults
from paceline.runtime.record import BadRecord, Record

SECONDS, AT_S = 28, 8.0


def records_of(job: FleetJob, seconds: int, seed: int = 0) -> list[list[bytes]]:
    """What arrives in each second: lost, late, twice, in any order, torn and overwritten records."""
    random = np.random.default_rng(seed)
    late: list[bytes] = []
    arrived = []
    for second in range(seconds):
        now, late = late, []
        for _, batch in job.batches(second):
            value = encode_batch(batch)
            luck = random.random()
            if luck < 0.03:
                late.append(value)
            elif luck > 0.06:
                now += [value] * (2 if luck < 0.09 else 1)
            if luck > 0.97:
                now.append(damaged(value, random))
        if second % 3 == 0:
            now = [now[at] for at in random.permutation(len(now))]
        arrived.append(now)
    return arrived


def damaged(value: bytes, random: np.random.Generator) -> bytes:
    at = int(random.integers(len(value)))
    kinds = [value[:at], value[:at] + b"\xff" + value[at + 1 :], b"", value + b"\0", resealed(value, at)]
    return kinds[int(random.integers(len(kinds)))]


def resealed(value: bytes, at: int) -> bytes:
    """One byte is another, and the checksum fits."""
    body = value[64:at] + b"\xfe" + value[at + 1 :] if at >= 64 else value[64:]
    return value[:8] + zlib.crc32(body).to_bytes(4, "little") + value[12:64] + body


class Side:
    """A core and how it reads."""

    def __init__(self, together: bool) -> None:
        self.core = DetectorCore("d", DetectionPolicy())
        self.reader = RecordReader(native_checksums()) if together else None
        self.offset = 0
        self.bad: list[BadRecord] = []
        self.runs = 0

    def take(self, values: Sequence[bytes]) -> list[Output]:
        records = [Record("t", 0, self.offset + at, None, value) for at, value in enumerate(values)]
        self.offset += len(records)
        placed = self.reader.read(records, self.bad) if self.reader else self._read(records)
        self.runs += sum(isinstance(one, PlacedRun) for one in placed)
        return self.core.apply(placed)

    def tick(self, second: int) -> list[Output]:
        ticks = self.core.make_ticks(second * 10**9, second * 10**9, list(self.core.held))
        return self.take([encode_batch(tick) for tick in ticks])

    def _read(self, records: Sequence[Record]) -> list[Placed | PlacedRun]:
        placed: list[Placed | PlacedRun] = []
        for record in records:
            try:
                placed.append(Placed(record.partition, record.offset, decode_batch(record.value)))
            except BatchError as error:
                self.bad.append(BadRecord(record, str(error)))
        return placed

    def state(self) -> list[bytes]:
        return [dump_held(held) for held in self.core.held.values()]


def told(outputs: Sequence[Output]) -> list[object]:
    return [(encode_batch(one.batch), one.reason) if isinstance(one, Signal) else one for one in outputs]


def play(job: FleetJob, at_once: int, seconds: int = SECONDS, seed: int = 0) -> list[Output]:
    """Both ways; what they said."""
    alone, together = Side(together=False), Side(together=True)
    said: list[Output] = []
    for second, values in enumerate(records_of(job, seconds, seed), 1):
        for start in range(0, len(values), at_once):
            part = values[start : start + at_once]
            said += (expected := alone.take(part))
            assert told(together.take(part)) == told(expected)
        said += (expected := alone.tick(second))
        assert told(together.tick(second)) == told(expected)
        assert together.core.take_refused() == alone.core.take_refused()
    assert together.state() == alone.state()
    assert [(one.record.offset, one.reason) for one in together.bad] == [
        (one.record.offset, one.reason) for one in alone.bad
    ]
    assert alone.bad
    assert together.runs > seconds // 2
    return said


@pytest.fixture(params=["numpy", "native"])
def _placing(request: pytest.FixtureRequest) -> Iterator[None]:
    """Both ways to put rows into the tables."""
    native = native_placing() if request.param == "native" else None
    assert native or request.param == "numpy", "the native module is missing or too old: make setup"
    install(native)
    yield
    install(None)


@pytest.mark.usefixtures("_placing")
@pytest.mark.parametrize("kind", [FaultKind.MISSING_ENTER, FaultKind.LATE_RANK, FaultKind.DEAD_PROCESS])
@pytest.mark.parametrize("at_once", [7, 500])
def test_a_faulty_job_is_judged_alike(kind: FaultKind, at_once: int) -> None:
    topology = Topology(2, 2, 8, ranks_per_node=2)
    fault = draw_faults(kind, topology, 3, AT_S)
    profile = Profile.named(ProfileName.NCCL1)
    job = FleetJob(topology, profile, faults=fault, seed=3, job="j", shards=2)
    assert play(job, at_once)


@pytest.mark.usefixtures("_placing")
def test_jobs_share_a_poll(fake_job: Callable[..., Any]) -> None:
    """Two attempts of one job, another job, one that ends: runs are cut by block and by tick."""
    sides = Side(together=False), Side(together=True)
    jobs = [fake_job(), fake_job(), fake_job()]
    names = [("j", "a1"), ("j", "a2"), ("k", "a1")]
    for second in range(1, 30):
        values = []
        for at, (job, (name, attempt)) in enumerate(zip(jobs, names, strict=True)):
            if at == 1 and second < 5:
                continue
            job.run(1.0)
            values += [encode_batch(replace(one, job=name, attempt=attempt)) for one in job.sample()]
        values = values[::2] + values[1::2]
        said = []
        for side in sides:
            ticks = side.core.make_ticks(second * 10**9, second * 10**9, list(side.core.held))
            part = [*values[:3], *(encode_batch(tick) for tick in ticks), *values[3:]]
            said.append(told(side.take(part)))
        assert said[0] == said[1]
    assert sides[0].state() == sides[1].state()
    assert sides[1].runs > 29


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 127, 128, 200, 4099])
def test_checksums_are_those_of_zlib(size: int) -> None:
    values = [np.random.default_rng(at).bytes(size) for at in range(3)]
    assert native_checksums() is not crc32_each
    for skip in (0, 5, 64):
        assert native_checksums()(values, skip) == crc32_each(values, skip)


class TestReading:
    def values(self, count: int = 6) -> list[bytes]:
        state = np.zeros(2, STATE_ROW)
        return [
            encode_batch(Batch(BatchKind.FRAMES, "j", "a", f"n{at}", 0, 1, 1, 1, 1, {RowKind.STATE: state}))
            for at in range(count)
        ]

    def test_a_damaged_record_leaves_alone(self) -> None:
        values = self.values()
        values[2] = values[2][:-1]
        values[4] = b"garbage"
        run, others = RunReader().read(values)
        assert [origin.node for origin in run.origins] == ["n0", "n1", "n3", "n5"]
        assert others == [2, 4]

    @pytest.mark.parametrize("missing", range(1, 10))
    def test_a_record_cut_in_its_section_table_leaves_alone(self, missing: int) -> None:
        """The checksum fits: written so by somebody, not torn on its way."""
        values = self.values(3)
        cut = values[1][: 64 + 4 + 8 - missing]
        values[1] = cut[:8] + zlib.crc32(cut[64:]).to_bytes(4, "little") + cut[12:]
        run, others = RunReader().read(values)
        assert others == [1]
        assert run.plain.all()

    @pytest.mark.parametrize("at", range(64 + 3 + 8))
    def test_no_more_is_taken_than_one_by_one(self, at: int) -> None:
        """Every byte of the header, the texts and the section table, with a checksum that fits."""
        reader = RunReader()
        for byte in (0, 1, 2, 0x7F, 0xFE, 0xFF):
            value = self.values(1)[0]
            value = value[:at] + bytes([byte]) + value[at + 1 :]
            value = value[:8] + zlib.crc32(value[64:]).to_bytes(4, "little") + value[12:]
            run, others = reader.read([*self.values(2), value])
            assert len(run) + len(others) == 3
            if len(run) == 3:
                batch = decode_batch(value)
                assert (batch.job, batch.attempt) == run.origins[2].attempt
                assert batch.node == run.origins[2].node
                assert (
                    batch.rows.get(RowKind.STATE, np.zeros(0, STATE_ROW)).tobytes()
                    == run.rows(2, RowKind.STATE).tobytes()
                )
