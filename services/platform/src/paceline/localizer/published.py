"""What was published: the newest record of each episode, and where a new signal goes on from it."""

from dataclasses import dataclass, replace

from paceline.contracts.ids import derived_id
from paceline.contracts.verdicts import VerdictRecord

EPISODES_MAX = 8192
AGAIN_MAX = 1024  # stalls of one round in one attempt, each an episode of its own


@dataclass(frozen=True)
class Place:
    """Where a signal belongs: the episode's name, its newest record if it goes on, and when the last
    episode of the same name ended, 0 for never."""

    name: str
    known: VerdictRecord | None
    ended_unix_s: float


class PublishedVerdicts:
    """Newest record of each episode, bundle left out; least recently changed first out."""

    def __init__(self) -> None:
        self._records: dict[tuple[str, str, str], VerdictRecord] = {}
        self._told_unix_s: dict[tuple[str, str], float] = {}  # newest verdict on a stall of the attempt

    def find(self, job: str, attempt: str, episode: str) -> VerdictRecord | None:
        return self._records.get((job, attempt, episode))

    def told_unix_s(self, job: str, attempt: str) -> float | None:
        """When the newest verdict on a stall of the attempt was judged."""
        return self._told_unix_s.get((job, attempt))

    def place(self, job: str, attempt: str, name: str) -> Place:
        """Follow `name` over the episodes that have ended: the same round may stand still many times."""
        ended_unix_s = 0.0
        known = self.find(job, attempt, name)
        for _ in range(AGAIN_MAX):
            if known is None or not known.resolved:
                break
            ended_unix_s = known.judged_unix_s
            name = derived_id("epi", name, known.revision)
            known = self.find(job, attempt, name)
        return Place(name, known, ended_unix_s)

    def newest_open(self, job: str, attempt: str, *, slow: bool) -> VerdictRecord | None:
        """The unresolved episode that was changed last: a signal of another shard than the one that
        named it, or after a restart, belongs to it."""
        for (its_job, its_attempt, _), record in reversed(self._records.items()):
            if its_job != job or its_attempt != attempt or record.resolved:
                continue
            if record.verdict.verdict_class.is_slow == slow:
                return record
        return None

    def note(self, record: VerdictRecord) -> None:
        """A record found in the topic; older ones than known change nothing."""
        known = self.find(record.job, record.attempt, record.episode)
        if known is None or (record.revision, record.resolved) > (known.revision, known.resolved):
            self.remember(record)

    def remember(self, record: VerdictRecord) -> None:
        key = (record.job, record.attempt, record.episode)
        self._records.pop(key, None)
        self._records[key] = replace(record, evidence_bundle="")
        if not record.verdict.verdict_class.is_slow:
            told = (record.job, record.attempt)
            newest = max(self._told_unix_s.pop(told, 0.0), record.judged_unix_s)
            self._told_unix_s[told] = newest
        while len(self._records) > EPISODES_MAX:
            self._records.pop(next(iter(self._records)))
        while len(self._told_unix_s) > EPISODES_MAX:
            self._told_unix_s.pop(next(iter(self._told_unix_s)))
