"""The localizer without Kafka: records in, verdicts out. Pure but for its own state."""

import base64
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from paceline.analysis import BundleError, JobEvidence, JudgePolicy, dump_bundle
from paceline.analysis.judge import explain
from paceline.contracts.batch import Batch, BatchKind
from paceline.contracts.ids import derived_id
from paceline.contracts.registry import HealthEvent, HealthKind
from paceline.contracts.verdicts import EVIDENCE_BUNDLE_BYTES_MAX, VerdictRecord
from paceline.localizer.episodes import Episode, EpisodePolicy, Publish, decide
from paceline.localizer.memory import AttemptMemory, Memory, MemoryBounds, Registry

EPISODES_MAX = 8192
PENDING_DEATHS_MAX = 4096
# A death up to so long after the newest verdict on its attempt is part of that story: the teardown of
# a hung job, or a death that was judged before we were restarted. Clocks of two machines are compared.
TOLD_S = 30.0
_TRIGGERS = frozenset({HealthKind.PROCESS_EXIT, HealthKind.HEARTBEAT_LOST, HealthKind.PROCESS_FROZEN})


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


_EpisodeKey = tuple[str, str, str]  # job, attempt, episode


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
        self.decisions: Counter[str] = Counter()
        self._health_wait_s = health_wait_s
        self._episodes: dict[_Key, Episode] = {}
        self._published: dict[_EpisodeKey, VerdictRecord] = {}  # newest of an episode, bundle left out
        self._deaths: dict[tuple[str, str], tuple[float, HealthEvent]] = {}  # due time, first event
        self._told_unix_s: dict[tuple[str, str], float] = {}  # newest verdict on a stall of the attempt

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
        if not memory.note_health(event, self.memory.bounds) or event.kind not in _TRIGGERS:
            return
        if event.kind is HealthKind.PROCESS_EXIT and event.exit_code == 0:
            return
        key = (event.job, event.attempt)
        if key not in self._deaths and len(self._deaths) < PENDING_DEATHS_MAX:
            self._deaths[key] = (now_s + self._health_wait_s, event)

    def note_published(self, record: VerdictRecord) -> None:
        """A verdict found in the topic: after a restart the episode goes on where it was."""
        known = self._published.get((record.job, record.attempt, record.episode))
        if known is None or (record.revision, record.resolved) > (known.revision, known.resolved):
            self._remember(replace(record, evidence_bundle=""))

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

    def tick(self, now_s: float) -> list[Published]:
        """Judge deaths that no signal has reported in time."""
        outputs: list[Published] = []
        due = [key for key, (at_s, _) in self._deaths.items() if at_s <= now_s]
        for job, attempt in due:
            _, event = self._deaths.pop((job, attempt))
            key = _Key(job, attempt, False)
            if key in self._episodes or self.memory.find(job, attempt) is None:
                continue
            told_unix_s = self._told_unix_s.get((job, attempt))
            if told_unix_s is not None and event.at_unix_s <= told_unix_s + TOLD_S:
                self.decisions["death_told_already"] += 1
                continue
            outputs.extend(self._judge_death(key, event))
        return outputs

    # ------------------------------------------------------------------ judging

    def _open(self, key: _Key, signal_episode: str, now_ns: int) -> Episode:
        episode = self._episodes.get(key)
        if episode is not None:
            return episode
        while len(self._episodes) >= EPISODES_MAX:
            # The oldest is a job that nobody called over: what was published of it is still known.
            self._episodes.pop(next(iter(self._episodes)))
            self.decisions["episodes_full"] += 1
        # The first signal in the log names the episode; those of other shards join it.
        name = signal_episode or derived_id("epi", key.job, key.attempt, key.slow, now_ns)
        known = self._published.get((key.job, key.attempt, name))
        if known is not None and known.resolved:
            # The same round stands still once more.
            name = derived_id("epi", name, known.revision)
            known = self._published.get((key.job, key.attempt, name))
        episode = Episode(name, key.slow, 0.0)
        if known is not None:
            episode.revision, episode.verdict = known.revision, known.verdict
            episode.stalled_unix_s = known.stalled_unix_s
        self._episodes[key] = episode
        return episode

    def _judge(self, key: _Key, episode: Episode, batch: Batch) -> list[Published]:
        memory = self.memory.attempt(key.job, key.attempt)
        evidence = memory.evidence(slow=key.slow, node_health=self.memory.node_health(memory))
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
        judged_unix_s = batch.sampled_unix_ns / 1e9
        if not episode.stalled_unix_s:
            episode.stalled_unix_s = judged_unix_s - judgement.verdict.stalled_s
        episode.revision += 1
        episode.verdict = judgement.verdict
        return [self._record(memory, episode, judged_unix_s, reason, evidence)]

    def _judge_death(self, key: _Key, event: HealthEvent) -> list[Published]:
        """Without a signal there is no signal time: the event's own date stands for it."""
        memory = self.memory.attempt(key.job, key.attempt)
        evidence = memory.evidence(slow=False, node_health=self.memory.node_health(memory))
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
        self._remember(replace(record, evidence_bundle=""))
        return Published(record, reason)

    def _bundle(self, evidence: JobEvidence) -> str:
        try:
            packed = dump_bundle(evidence, EVIDENCE_BUNDLE_BYTES_MAX * 3 // 4)
        except BundleError:
            self.decisions["bundle_too_large"] += 1
            return ""
        return base64.b64encode(packed).decode()

    def _clear(self, batch: Batch) -> list[Published]:
        outputs: list[Published] = []
        for slow in (False, True):
            key = _Key(batch.job, batch.attempt, slow)
            episode = self._episodes.get(key) or self._revive(key, batch)
            if episode is None or not self._is_over(episode, batch):
                continue
            self._episodes.pop(key, None)
            memory = self.memory.attempt(batch.job, batch.attempt)
            memory.forget_signals()
            if episode.verdict is not None:
                self.decisions["resolved"] += 1
                outputs.append(self._record(memory, episode, batch.sampled_unix_ns / 1e9, None, None))
        return outputs

    def _is_over_already(self, batch: Batch) -> bool:
        """A signal that comes again after the end of its episode was published."""
        known = self._published.get((batch.job, batch.attempt, batch.episode))
        return known is not None and known.resolved and batch.sampled_unix_ns / 1e9 <= known.judged_unix_s

    def _revive(self, key: _Key, batch: Batch) -> Episode | None:
        """The episode of a CLEAR that came while we were away."""
        known = self._published.get((batch.job, batch.attempt, batch.episode))
        if known is None or known.resolved or known.verdict.verdict_class.is_slow != key.slow:
            return None
        episode = Episode(known.episode, key.slow, known.stalled_unix_s)
        episode.revision, episode.verdict = known.revision, known.verdict
        return episode

    @staticmethod
    def _is_over(episode: Episode, batch: Batch) -> bool:
        """Whether no shard sees the episode any more."""
        mine = {signal for signal in episode.signals if signal[1] == batch.episode}
        if not mine and batch.episode != episode.id:
            return False
        episode.signals -= {signal for signal in mine if signal[0] == batch.shard}
        return not episode.signals

    def _remember(self, record: VerdictRecord) -> None:
        key = (record.job, record.attempt, record.episode)
        self._published.pop(key, None)
        self._published[key] = record
        if not record.verdict.verdict_class.is_slow:
            told = (record.job, record.attempt)
            newest = max(self._told_unix_s.pop(told, 0.0), record.judged_unix_s)
            self._told_unix_s[told] = newest
        while len(self._published) > EPISODES_MAX:
            self._published.pop(next(iter(self._published)))
        while len(self._told_unix_s) > EPISODES_MAX:
            self._told_unix_s.pop(next(iter(self._told_unix_s)))

    def forget_jobs(self, jobs: Iterable[str]) -> None:
        """Jobs whose signals another instance reads now."""
        gone = set(jobs)
        self._episodes = {key: episode for key, episode in self._episodes.items() if key.job not in gone}
