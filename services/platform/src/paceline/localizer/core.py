"""The localizer without Kafka: records in, verdicts out. Pure but for its own state."""

import base64
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from paceline.analysis import BundleError, JobEvidence, JudgePolicy, dump_bundle
from paceline.analysis.episodes import Episode, EpisodePolicy, Publish, after_progress, decide
from paceline.analysis.judge import explain
from paceline.contracts.batch import Batch, BatchFlag, BatchKind
from paceline.contracts.ids import derived_id
from paceline.contracts.registry import HealthEvent, HealthKind
from paceline.contracts.scaling import ScalingRecord
from paceline.contracts.verdicts import EVIDENCE_BUNDLE_BYTES_MAX, VerdictRecord
from paceline.localizer.memory import AttemptMemory, Memory, MemoryBounds, Registry
from paceline.localizer.published import EPISODES_MAX, PublishedVerdicts
from paceline.localizer.scaling import ScalingWatch
from paceline.runtime.logging import get_logger

PENDING_DEATHS_MAX = 4096
# A death up to so long after the newest verdict on its attempt is part of that story: the teardown of
# a hung job, or a death that was judged before we were restarted. Clocks of two machines are compared.
TOLD_S = 30.0
# After a restart a CLEAR may be that of one shard of several: one that still stands says so again
# within 15 s, which is the longest pause of a detector between two signals of an episode.
ENDING_WAIT_S = 20.0
_TRIGGERS = frozenset({HealthKind.PROCESS_EXIT, HealthKind.HEARTBEAT_LOST, HealthKind.PROCESS_FROZEN})
log = get_logger(__name__)


@dataclass(frozen=True)
class Published:
    """A record for `paceline.verdicts.v1`, and why."""

    record: VerdictRecord
    reason: Publish | None  # None: resolved


@dataclass(frozen=True)
class _Key:
    job: str
    attempt: str
    slow: bool


@dataclass
class _Ending:
    """A restored episode that a CLEAR has ended, unless a signal comes until `due_s`."""

    batch: Batch
    due_s: float | None = None  # from the first tick on


class LocalizerCore:
    """All jobs of one localizer instance."""

    def __init__(
        self,
        policy: JudgePolicy | None = None,
        episodes: EpisodePolicy | None = None,
        bounds: MemoryBounds | None = None,
        health_wait_s: float = 3.0,
    ) -> None:
        self.policy = policy or JudgePolicy()
        self.episode_policy = episodes or EpisodePolicy()
        self.memory = Memory(bounds or MemoryBounds())
        self.scaling = ScalingWatch()
        self.decisions: Counter[str] = Counter()
        self._health_wait_s = health_wait_s
        self._episodes: dict[_Key, Episode] = {}
        self._endings: dict[_Key, _Ending] = {}  # of keys in `_episodes`
        self._published = PublishedVerdicts()
        self._deaths: dict[tuple[str, str], tuple[float, HealthEvent]] = {}  # due time, first event

    @property
    def open_episodes(self) -> int:
        return len(self._episodes)

    # ------------------------------------------------------------------ inputs

    def note_registry(self, record: Registry) -> None:
        """A record of the jobs topic."""
        memory = self.memory.attempt(record.job, record.attempt)
        if not memory.note(record, self.memory.bounds):
            self.memory.dropped["registry"] += 1

    def note_health(self, event: HealthEvent, now_s: float) -> None:
        """A health event; `now_s` is any steady clock, for deaths that no signal will report."""
        if not event.job:
            self.memory.note_node(event)
            return
        memory = self.memory.attempt(event.job, event.attempt)
        noted = memory.health.note(event, self.memory.bounds.health_max)
        self.memory.dropped["health"] += noted.loses
        if not noted.is_kept or event.kind not in _TRIGGERS:
            return
        if event.kind is HealthKind.PROCESS_EXIT and event.exit_code == 0:
            return
        key = (event.job, event.attempt)
        if key in self._deaths:
            return
        if len(self._deaths) >= PENDING_DEATHS_MAX:
            self.memory.dropped["death"] += 1
            return
        self._deaths[key] = (now_s + self._health_wait_s, event)

    def note_published(self, record: VerdictRecord) -> None:
        """A verdict found in the topic: after a restart the episode goes on where it was."""
        self._published.note(record)

    def apply(self, batch: Batch) -> list[Published]:
        """A signal; verdicts that follow from it, in order."""
        if batch.kind not in (BatchKind.STALLED, BatchKind.STATE, BatchKind.SLOW, BatchKind.CLEAR):
            self.decisions["ignored_kind"] += 1
            return []
        if not self.memory.take_signal(batch):
            return []
        if batch.kind is BatchKind.CLEAR:
            return self._clear(batch)
        if batch.kind is BatchKind.STATE:
            key = _Key(batch.job, batch.attempt, False)
            episode = self._episodes.get(key)
            return self._judge(key, episode, batch) if episode else []
        key = _Key(batch.job, batch.attempt, batch.kind is BatchKind.SLOW)
        if key.slow and _Key(batch.job, batch.attempt, False) in self._episodes:
            return []  # while the job stands still, slow rounds are old news
        if key not in self._episodes and self._is_over_already(batch):
            self.decisions["replayed"] += 1
            return []
        episode = self._open(key, batch.episode, batch.sampled_ns)
        episode.signals.add((batch.shard, batch.episode))
        return self._judge(key, episode, batch)

    def apply_window(self, batch: Batch) -> ScalingRecord | None:
        """A window of iterations (SCALING); what it shows never opens or changes an episode."""
        found = self.scaling.apply(batch, self.memory.attempt(batch.job, batch.attempt))
        self.memory.dropped.update(self.scaling.dropped)
        self.scaling.dropped.clear()
        if found is not None:
            told = found.findings or ("refused" if found.refused else "none",)
            for each in told:
                self.decisions[f"scaling_{each if isinstance(each, str) else each.mode.value}"] += 1
        return found

    def tick(self, now_s: float) -> list[Published]:
        """Judge deaths that no signal has reported in time, and end what a CLEAR has ended."""
        outputs = self._end_cleared(now_s)
        due = [key for key, (at_s, _) in self._deaths.items() if at_s <= now_s]
        for job, attempt in due:
            _, event = self._deaths.pop((job, attempt))
            key = _Key(job, attempt, False)
            if key in self._episodes or self.memory.find(job, attempt) is None:
                continue
            told_unix_s = self._published.told_unix_s(job, attempt)
            if told_unix_s is not None and event.at_unix_s <= told_unix_s + TOLD_S:
                self.decisions["death_told_already"] += 1
                continue
            try:
                outputs.extend(self._judge_death(key, event))
            except Exception:  # a job whose records cannot be judged must not silence all others
                self.decisions["death_not_judged"] += 1
                log.exception("death_not_judged", job=job, attempt=attempt, health_event=event.id)
        return outputs

    # ------------------------------------------------------------------ judging

    def _open(self, key: _Key, signal_episode: str, now_ns: int) -> Episode:
        self._endings.pop(key, None)
        episode = self._episodes.get(key)
        if episode is not None:
            return episode
        while len(self._episodes) >= EPISODES_MAX:
            # The oldest is a job that nobody called over: what was published of it is still known.
            oldest = next(iter(self._episodes))
            self._episodes.pop(oldest)
            self._endings.pop(oldest, None)
            self.decisions["episodes_full"] += 1
        # The first signal in the log names the episode; those of other shards join it.
        name = signal_episode or derived_id("epi", key.job, key.attempt, key.slow, now_ns)
        place = self._published.place(key.job, key.attempt, name)
        known = place.known or self._published.newest_open(key.job, key.attempt, slow=key.slow)
        episode = Episode(place.name, key.slow, 0.0) if known is None else Episode.restore(known)
        self._episodes[key] = episode
        return episode

    def _judge(self, key: _Key, episode: Episode, batch: Batch) -> list[Published]:
        memory = self.memory.attempt(key.job, key.attempt)
        stalled_unix_s = episode.stalled_unix_s or batch.sampled_unix_ns / 1e9
        evidence = memory.evidence(
            slow=key.slow, node_health=self.memory.node_health(memory), stalled_unix_s=stalled_unix_s
        )
        judgement = explain(evidence, self.policy)
        if key.slow and not judgement.verdict.verdict_class.is_slow:
            self.decisions[f"not_slow_{judgement.reason}"] += 1
            return []
        reason = decide(
            episode, judgement, episode.waited_s(batch.sampled_ns, batch.node), self.episode_policy
        )
        self.decisions[reason.value] += 1
        if not reason.sends:
            return []
        self.decisions.update(evidence.orders_refused)  # with each verdict that had to do without
        judged_unix_s = batch.sampled_unix_ns / 1e9
        if not episode.stalled_unix_s:
            episode.stalled_unix_s = judged_unix_s - judgement.verdict.stalled_s
        episode.revision += 1
        episode.verdict = judgement.verdict
        return [self._record(memory, episode, judged_unix_s, reason, evidence)]

    def _judge_death(self, key: _Key, event: HealthEvent) -> list[Published]:
        """Without a signal there is no signal time: the event's own date stands for it."""
        memory = self.memory.attempt(key.job, key.attempt)
        evidence = memory.evidence(
            slow=False, node_health=self.memory.node_health(memory), stalled_unix_s=event.at_unix_s
        )
        judgement = explain(evidence, self.policy)
        if judgement.stage not in ("dead", "frozen", "lost_node", "hardware"):
            self.decisions[f"health_{judgement.reason}"] += 1
            return []
        name = derived_id("epi", key.job, key.attempt, event.id)
        episode = self._open(key, name, 0)
        if episode.verdict is not None:
            return []
        self.decisions["first_by_health"] += 1
        episode.stalled_unix_s = event.at_unix_s
        episode.revision += 1
        episode.verdict = judgement.verdict
        return [self._record(memory, episode, event.at_unix_s, Publish.FIRST, evidence)]

    def _record(
        self,
        memory: AttemptMemory,
        episode: Episode,
        judged_unix_s: float,
        reason: Publish | None,
        evidence: JobEvidence | None,
    ) -> Published:
        assert episode.verdict is not None
        record = VerdictRecord(
            id=derived_id("ver", memory.job, memory.attempt, episode.id, episode.revision),
            job=memory.job,
            attempt=memory.attempt,
            episode=episode.id,
            revision=episode.revision,
            verdict=episode.verdict,
            stalled_unix_s=episode.stalled_unix_s,
            judged_unix_s=judged_unix_s,
            resolved=reason is None,
            evidence_bundle="" if evidence is None else self._bundle(evidence),
        )
        self._published.remember(record)
        return Published(record, reason)

    def _bundle(self, evidence: JobEvidence) -> str:
        try:
            packed = dump_bundle(evidence, EVIDENCE_BUNDLE_BYTES_MAX * 3 // 4, self.policy)
        except BundleError:
            self.decisions["bundle_too_large"] += 1
            return ""
        return base64.b64encode(packed).decode()

    def _clear(self, batch: Batch) -> list[Published]:
        outputs: list[Published] = []
        for slow in (False, True):
            key = _Key(batch.job, batch.attempt, slow)
            episode = self._episodes.get(key) or self._revive(key, batch)
            if episode is None:
                continue
            if self._is_over(episode, batch):
                outputs.extend(self._end(key, episode, batch))
            elif episode.restored and not episode.signals and key not in self._endings:
                self._endings[key] = _Ending(batch)
        return outputs

    def _end(self, key: _Key, episode: Episode, batch: Batch) -> list[Published]:
        self._episodes.pop(key, None)
        self._endings.pop(key, None)
        memory = self.memory.attempt(batch.job, batch.attempt)
        memory.forget_signals()
        if episode.verdict is None:
            return []
        self.decisions["resolved"] += 1
        if batch.flags & BatchFlag.PROGRESS:
            episode.verdict = after_progress(episode.verdict)
        return [self._record(memory, episode, batch.sampled_unix_ns / 1e9, None, None)]

    def _end_cleared(self, now_s: float) -> list[Published]:
        outputs: list[Published] = []
        for key, ending in list(self._endings.items()):
            if ending.due_s is None:
                ending.due_s = now_s + ENDING_WAIT_S
            elif ending.due_s <= now_s:
                self.decisions["cleared_after_restart"] += 1
                outputs.extend(self._end(key, self._episodes[key], ending.batch))
        return outputs

    def _is_over_already(self, batch: Batch) -> bool:
        """A signal that comes again after the end of its episode was published."""
        place = self._published.place(batch.job, batch.attempt, batch.episode)
        return place.known is None and batch.sampled_unix_ns / 1e9 <= place.ended_unix_s

    def _revive(self, key: _Key, batch: Batch) -> Episode | None:
        """The episode of a CLEAR that came while we were away."""
        named = self._published.find(batch.job, batch.attempt, batch.episode)
        if named is not None and named.verdict.verdict_class.is_slow != key.slow:
            return None
        if named is not None and not named.resolved:
            return Episode.restore(named)
        place = self._published.place(batch.job, batch.attempt, batch.episode)
        if batch.sampled_unix_ns / 1e9 <= place.ended_unix_s:
            return None
        if place.known is None and not self._published.newest_open(batch.job, batch.attempt, slow=key.slow):
            return None
        return self._open(key, batch.episode, batch.sampled_ns)

    @staticmethod
    def _is_over(episode: Episode, batch: Batch) -> bool:
        """Whether no shard sees the episode any more."""
        mine = {signal for signal in episode.signals if signal[1] == batch.episode}
        if not mine and batch.episode != episode.id:
            return False
        episode.signals -= {signal for signal in mine if signal[0] == batch.shard}
        return not episode.signals

    def forget_jobs(self, jobs: Iterable[str]) -> None:
        """Jobs whose signals another instance reads now."""
        gone = set(jobs)
        self.scaling.forget_jobs(gone)
        self._episodes = {key: episode for key, episode in self._episodes.items() if key.job not in gone}
        self._endings = {key: ending for key, ending in self._endings.items() if key.job not in gone}
