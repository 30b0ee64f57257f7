"""Recordings of one attempt, merged in time and replayed through the engine of the live system.

Recorders are put in order by their wall clocks, as Kafka orders live samples by arrival, once clocks that are
seconds apart are brought together; durations stay those of each rank's own clock.
"""

import zlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from paceline.analysis.detection.arrays import SECOND_NS
from paceline.analysis.diagnosis.recorder_clocks import clock_offsets
from paceline.analysis.facts import Group, Membership, Origin, RecordedSamples, Speaker
from paceline.analysis.facts.recorded import RecordedEvent
from paceline.analysis.replay import Replay, Replayed
from paceline.contracts.batch import BATCH_BYTES_MAX, Batch, BatchError, decode_batch
from paceline.contracts.registry import JobRecord, NodeRecord

SAMPLES_MAX = 400_000  # the newest
WINDOW_NS = 3600 * SECOND_NS  # before the last one: about 20 s of work for eight ranks; hangs need less
READ_AHEAD_NS = 30 * SECOND_NS
AT_ONCE_BYTES = 64 << 20  # of decoded samples: a packed file may hold a thousand times its size
PAUSE_NS = 2 * SECOND_NS  # nobody wrote for longer: time that nobody has seen does not pass
ATTEMPTS_MAX = 1000
PLACES_MAX = 256  # verdicts of which the samples are remembered
NOTES_MAX = 8
NODES_SHOWN = 8
# What a recorder counts as lost; a segment that made room for a newer one is as intended, and said as well.
_LOSSES = ("memory_full", "frames_full", "rejected", "record_segments_overwritten", "events_full")
_ORDER = np.dtype([("time_ns", np.int64), ("part", np.int32), ("at", np.int32)])


@dataclass
class Recording:
    """What the recordings of one attempt say."""

    job: str
    run: str
    replayed: Replayed
    first_ns: int
    last_ns: int
    samples: int
    left_out: int = 0  # older than what is replayed
    unreadable: int = 0
    notes: tuple[str, ...] = ()
    newest: dict[str, Origin] = field(default_factory=dict)  # by node: its last sample
    places: dict[int, dict[str, Origin]] = field(default_factory=dict)  # the same when a verdict was given


def number_attempts(parts: Sequence[RecordedSamples]) -> dict[tuple[str, str], int]:
    """Number of each (job, attempt) in order of their beginning, from 0."""
    begins: dict[tuple[str, str], int] = {}
    for part in parts:
        key = (part.job, part.run)
        begins[key] = min(begins.get(key, part.first_ns), part.first_ns)
    ordered = sorted(begins, key=lambda key: (begins[key], key))
    beyond = max(len(ordered) - ATTEMPTS_MAX, 0)  # the oldest share one number
    return {key: max(number - beyond, 0) for number, key in enumerate(ordered)}


def memberships(parts: Sequence[RecordedSamples]) -> Iterator[Membership]:
    """Who is where, as the newest registry records of one attempt say."""
    world = 0
    places: dict[int, tuple[Speaker, Origin]] = {}
    for part in parts:
        for event in part.events:
            if isinstance(event.record, JobRecord):
                world = event.record.world_size
            elif isinstance(event.record, NodeRecord):
                for rank in event.record.ranks:
                    speaker = Speaker(
                        rank=rank.rank, local_rank=rank.local_rank, host=event.record.node, pid=rank.pid
                    )
                    places[rank.rank] = (speaker, part.origin)
    for number in sorted(places):
        speaker, origin = places[number]
        yield Membership(origin=origin, speaker=speaker, group=Group(size=world))


def replay(parts: Sequence[RecordedSamples], samples_max: int = SAMPLES_MAX) -> Recording | None:
    """The verdict on one attempt; None where its files hold no sample and no event."""
    parts = sorted(parts, key=lambda part: (part.recorder, part.segment))
    offsets = clock_offsets(parts)
    parts = [_shifted(part, offsets[part.recorder]) if part.recorder in offsets else part for part in parts]
    order, left_out = _order(parts, samples_max)
    events = _events(parts)
    if not len(order) and not events:
        return None
    senders = _senders(parts)
    engine = Replay(parts[0].job, parts[0].run)
    source = _Samples(parts, order)
    times = [int(order["time_ns"][0]), int(order["time_ns"][-1])] if len(order) else []
    begin = times[0] if times else events[0][0].time_ns
    last = max([*times, events[-1][0].time_ns if events else begin])
    at_event, now, active = 0, begin, begin
    places: dict[int, dict[str, Origin]] = {}
    while now <= last:
        now += SECOND_NS
        while at_event < len(events) and events[at_event][0].time_ns < now:
            event, recorder = events[at_event]
            engine.note(event.record, recorder)
            at_event += 1
            active = max(active, event.time_ns)
        while batches := source.until(now):
            engine.take((senders[part.recorder], batch) for part, batch in batches)
            active = now
        if now - active <= PAUSE_NS:
            engine.tick(now)
            if engine.judged_ns == now and len(places) < PLACES_MAX:
                places[now] = dict(source.newest)
        else:
            now = _next(now, source.next_ns, events[at_event][0].time_ns if at_event < len(events) else None)
    return Recording(
        parts[0].job, parts[0].run, engine.finish(), begin, last, len(order), left_out,
        source.unreadable + sum({part.origin.file: part.unreadable for part in parts}.values()),
        (*_clock_notes(parts, offsets), *_notes(parts)), source.newest, places,
    )  # fmt: skip


def _shifted(part: RecordedSamples, ahead_ns: int) -> RecordedSamples:
    """As the clock of the others would have dated it."""
    samples = part.samples.copy()
    samples["time_ns"] -= ahead_ns
    events = tuple(RecordedEvent(event.time_ns - ahead_ns, event.record) for event in part.events)
    return replace(part, samples=samples, events=events)


def _next(now: int, *times: int | None) -> int:
    """Just before the next thing that happens, in whole seconds from `now`."""
    known = [time for time in times if time is not None]
    return now + max((min(known) - now) // SECOND_NS, 0) * SECOND_NS if known else now


def _order(parts: Sequence[RecordedSamples], samples_max: int) -> tuple[npt.NDArray[np.void], int]:
    """(time, part, index) of the newest samples, in order of time; how many older ones were left out."""
    tables = []
    for number, part in enumerate(parts):
        table = np.zeros(len(part.samples), _ORDER)
        # The clock of one recorder may be set back; its own order stands.
        table["time_ns"] = np.maximum.accumulate(part.samples["time_ns"]) if len(table) else 0
        table["part"], table["at"] = number, np.arange(len(table))
        tables.append(table)
    order = np.concatenate(tables) if tables else np.zeros(0, _ORDER)
    order = order[np.argsort(order["time_ns"], kind="stable")]
    left_out = max(len(order) - samples_max, 0)
    if len(order):
        begin = int(order["time_ns"][-1]) - WINDOW_NS
        left_out = max(left_out, int(np.searchsorted(order["time_ns"], begin)))
    return order[left_out:], left_out


def _events(parts: Sequence[RecordedSamples]) -> list[tuple[RecordedEvent, str]]:
    """Each event once, with its recorder; segments repeat what is registered."""
    seen: set[tuple[str, int, object]] = set()
    found: list[tuple[RecordedEvent, str]] = []
    for part in parts:
        for event in part.events:
            key = (part.recorder, event.time_ns, repr(event.record))
            if key not in seen:
                seen.add(key)
                found.append((event, part.recorder))
    return sorted(found, key=lambda pair: pair[0].time_ns)


def _senders(parts: Sequence[RecordedSamples]) -> dict[str, str]:
    """A name for each recorder: its node's, with a number where several record on one node."""
    of_node: dict[str, list[str]] = defaultdict(list)
    for part in parts:
        if part.recorder not in of_node[part.node]:
            of_node[part.node].append(part.recorder)
    return {
        recorder: node if number == 0 else f"{node}#{number}"
        for node, recorders in of_node.items()
        for number, recorder in enumerate(recorders)
    }


class _Samples:
    """Reads ahead a little of every file, so that thousands of files need neither memory nor handles."""

    def __init__(self, parts: Sequence[RecordedSamples], order: npt.NDArray[np.void]) -> None:
        self.unreadable = 0
        self.newest: dict[str, Origin] = {}
        self._parts, self._order = parts, order
        self._at = 0
        self._held: dict[tuple[int, int], bytes] = {}
        self._held_until = 0  # position in the order

    @property
    def next_ns(self) -> int | None:
        return int(self._order["time_ns"][self._at]) if self._at < len(self._order) else None

    def until(self, end_ns: int) -> list[tuple[RecordedSamples, Batch]]:
        """The next samples before `end_ns`, to little more than AT_ONCE_BYTES; none when all are taken."""
        end = int(np.searchsorted(self._order["time_ns"], end_ns))
        found, size = [], 0
        while self._at < end and size < AT_ONCE_BYTES:
            if self._at >= self._held_until:
                self._read_ahead()
            _, number, at = self._order[self._at].tolist()
            self._at += 1
            batch = self._decode(self._held.pop((number, at), b""))
            if batch is None:
                self.unreadable += 1
                continue
            part = self._parts[number]
            line = int(part.samples["number"][at])
            self.newest[batch.node] = Origin(part.origin.file, line)
            found.append((part, batch))
            size += sum(rows.nbytes for rows in batch.rows.values())
        return found

    def _read_ahead(self) -> None:
        """One piece of each file for the next READ_AHEAD_NS."""
        until = int(self._order["time_ns"][self._at]) + READ_AHEAD_NS
        end = max(int(np.searchsorted(self._order["time_ns"], until)), self._at + 1)
        ahead = self._order[self._at : end]
        for number in np.unique(ahead["part"]).tolist():
            part = self._parts[number]
            places = part.samples[ahead["at"][ahead["part"] == number]]
            first = int(places["offset"].min())
            size = int((places["offset"] + places["size"]).max()) - first
            try:
                content = part.read(first, size)
            except OSError:  # the recorder has made room for newer samples
                continue
            for at, (_, offset, length, _) in zip(
                ahead["at"][ahead["part"] == number].tolist(), places.tolist(), strict=True
            ):
                self._held[number, at] = content[offset - first : offset - first + length]
        self._held_until = end

    @staticmethod
    def _decode(packed: bytes) -> Batch | None:
        try:
            opened = zlib.decompressobj()
            return decode_batch(opened.decompress(packed, BATCH_BYTES_MAX + 1))
        except (zlib.error, BatchError):
            return None


def _clock_notes(parts: Sequence[RecordedSamples], offsets: dict[str, int]) -> Iterator[str]:
    nodes = {part.recorder: part.node for part in parts}
    for recorder, ahead_ns in list(offsets.items())[:NOTES_MAX]:
        way = "ahead of" if ahead_ns > 0 else "behind"
        seconds = abs(ahead_ns) / SECOND_NS
        yield f"{nodes[recorder]}: its clock is {seconds:.0f} s {way} that of the others; allowed for"


def _notes(parts: Sequence[RecordedSamples]) -> Iterator[str]:
    """What the recordings lack."""
    newest: dict[str, RecordedSamples] = {}
    damaged = {part.origin.file: part.bytes_damaged for part in parts if part.bytes_damaged}
    for name, size in list(damaged.items())[:NOTES_MAX]:
        yield f"{name}: {size} bytes torn or damaged"
    for part in parts:
        newest[part.recorder] = part
    for part in newest.values():
        dropped = sum(number for name, number in part.dropped.items() if name in _LOSSES)
        if dropped:
            yield f"{part.node}: {dropped} samples or files were dropped while it recorded"
    cut = sorted({part.node for part in newest.values() if not part.ended})
    if cut:
        more = f" and {len(cut) - NODES_SHOWN} more" if len(cut) > NODES_SHOWN else ""
        yield f"cut, or still recording: {', '.join(cut[:NODES_SHOWN])}{more}"
