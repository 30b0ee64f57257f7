"""From Kafka records to what the core takes: runs of frames, ticks between them, and what nobody can read."""

from collections.abc import Sequence

from paceline.contracts.batch import BatchError, BatchKind, decode_batch
from paceline.contracts.batch_run import BatchRun, Checksums, RunReader, crc32_each
from paceline.detector.core import Placed, PlacedRun
from paceline.runtime.record import BadRecord, Record


class RecordReader:
    """Keeps the order of each partition. `checksums` as of `RunReader`."""

    def __init__(self, checksums: Checksums = crc32_each) -> None:
        self._runs = RunReader(checksums)

    def read(self, records: Sequence[Record], bad: list[BadRecord]) -> list[Placed | PlacedRun]:
        """What can be read of `records`; the rest is added to `bad`, each with its own reason."""
        if not records:
            return []
        run, others = self._runs.read([record.value for record in records])
        alone = set(others)
        together = [at for at in range(len(records)) if at not in alone] if others else range(len(records))
        placed: list[Placed | PlacedRun] = []
        done = 0  # of the run
        for before, at in enumerate(others):
            one = _read_alone(records[at], bad)
            if one is not None:
                end = at - before  # records of the run before this one
                placed += _placed(records, together, run, done, end)
                placed.append(one)
                done = end
        return placed + _placed(records, together, run, done, len(together))


def _read_alone(record: Record, bad: list[BadRecord]) -> Placed | None:
    try:
        batch = decode_batch(record.value)
    except BatchError as error:
        bad.append(BadRecord(record, str(error)))
        return None
    if batch.kind not in (BatchKind.FRAMES, BatchKind.TICK):
        bad.append(BadRecord(record, f"kind {batch.kind.name}, expected FRAMES or TICK"))
        return None
    return Placed(record.partition, record.offset, batch)


def _placed(
    records: Sequence[Record], together: Sequence[int], run: BatchRun, start: int, end: int
) -> list[Placed | PlacedRun]:
    """Records `start` to `end` of `run`, whose places in `records` are `together`, by partition."""
    placed: list[Placed | PlacedRun] = []
    part = [records[at] for at in together[start:end]]
    for partition in sorted({record.partition for record in part}):
        places = [start + at for at, record in enumerate(part) if record.partition == partition]
        offsets = [records[together[at]].offset for at in places]
        placed.append(PlacedRun(partition, offsets, run if len(places) == len(run) else run.take(places)))
    return placed
