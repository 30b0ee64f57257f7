"""Simulated agents -> detector -> localizer, without Kafka and in simulated time."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from paceline.analysis.detection.evidence import split_batch
from paceline.contracts.batch import Batch, BatchKind, decode_batch, encode_batch
from paceline.contracts.registry import HealthEvent, JobRecord
from paceline.contracts.scaling import ScalingRecord
from paceline.contracts.verdicts import Verdict, VerdictClass
from paceline.detector.core import BlockKey, DetectorCore, Output, Placed, Signal
from paceline.detector.settings import DetectorSettings
from paceline.fleet import FleetJob
from paceline.fleet.publish import Event
from paceline.localizer.core import LocalizerCore, Published
from paceline.localizer.settings import LocalizerSettings

INSTANCE = "detector-evaluation"
DETECTOR_BOOT_S = 1e6  # of the detector's own clock, which no rank shares


@dataclass(frozen=True)
class Told:
    """One published verdict. `at_s` are seconds of the simulated job."""

    at_s: float
    verdict: Verdict
    resolved: bool
    episode: str

    @property
    def is_conclusive(self) -> bool:
        """Whether it says something: a class, and not the end of an episode."""
        return not self.resolved and self.verdict.verdict_class is not VerdictClass.INCONCLUSIVE


@dataclass
class Pipeline:
    """The services of one simulated job, with their default settings, and what they have said.

    `watch` sees every whole signal that the localizer gets.
    """

    job: FleetJob
    watch: Callable[[float, Batch], None] | None = None
    detector: DetectorCore = field(init=False)
    localizer: LocalizerCore = field(init=False)
    told: list[Told] = field(default_factory=list)
    windows: list[ScalingRecord] = field(default_factory=list)
    second: int = -1
    _offset: int = 0
    _seen: int = 0

    def __post_init__(self) -> None:
        detector, localizer = DetectorSettings(), LocalizerSettings()
        self.detector = DetectorCore(INSTANCE, detector.policy())
        self.localizer = LocalizerCore(
            localizer.judge_policy(),
            localizer.episode_policy(),
            localizer.bounds(),
            localizer.health_wait_s,
        )

    def step(self) -> list[Told]:
        """One second of the job; the verdicts that came in it."""
        self.second += 1
        frames = self.job.batches(self.second)
        for at_s, _, event in self.job.events(self.second):
            self._take_event(at_s, event)
        end_s = self.second + 1.0
        self._take_outputs(end_s, self.detector.apply(self._place(batch for _, batch in frames)))
        self._tick(end_s)
        new = self.told[self._seen :]
        self._seen = len(self.told)
        return new

    def run(self, seconds: int) -> list[Told]:
        """`seconds` more; everything said in them."""
        first = len(self.told)
        for _ in range(seconds):
            self.step()
        return self.told[first:]

    def _place(self, batches: Iterable[Batch]) -> list[Placed]:
        placed = []
        for batch in batches:
            placed.append(Placed(batch.shard, self._offset, batch))
            self._offset += 1
        return placed

    def _take_event(self, at_s: float, event: Event) -> None:
        if isinstance(event, HealthEvent):
            self.localizer.note_health(event, at_s)
            return
        if isinstance(event, JobRecord):
            self._take_outputs(at_s, self.detector.note_job(event))
        self.localizer.note_registry(event)

    def _tick(self, end_s: float) -> None:
        keys: set[BlockKey] = set(self.detector.held)
        sampled_ns = int((DETECTOR_BOOT_S + end_s) * 1e9)
        unix_ns = int((self.job.start_unix_s + end_s) * 1e9)
        ticks = self.detector.make_ticks(sampled_ns, unix_ns, keys)
        self._take_outputs(end_s, self.detector.apply(self._place(ticks)))
        self._tell(end_s, self.localizer.tick(end_s))

    def _take_outputs(self, at_s: float, outputs: Iterable[Output]) -> None:
        for output in outputs:
            if isinstance(output, Signal):
                self._send(at_s, output.batch)
            elif isinstance(output, HealthEvent):
                self.localizer.note_health(output, at_s)

    def _send(self, at_s: float, signal: Batch) -> None:
        """Cut, encode and decode as on the way through Kafka; all shards read each other's signals."""
        if self.watch is not None:
            self.watch(at_s, signal)
        for part in split_batch(signal):
            arrived = decode_batch(encode_batch(part))
            self.detector.note_signal(arrived)
            if arrived.kind is BatchKind.SCALING:
                found = self.localizer.apply_window(arrived)
                self.windows += [] if found is None else [found]
                continue
            self._tell(at_s, self.localizer.apply(arrived))

    def _tell(self, at_s: float, published: Iterable[Published]) -> None:
        for each in published:
            record = each.record
            self.localizer.note_published(record)
            self.told.append(Told(at_s, record.verdict, record.resolved, record.episode))
