"""One stall episode: which signals belong to it, what was published, what may be published next."""

from dataclasses import dataclass, field, replace
from enum import Enum

from paceline.analysis.judge import Judgement
from paceline.contracts.verdicts import SubReason, Verdict, VerdictClass, VerdictRecord

WRITERS_MAX = 1024
REPLACE_MARGIN = 0.05


class Publish(str, Enum):
    """Why a verdict is, or is not, published."""

    FIRST = "first"
    BETTER = "better"
    GROWN = "grown"
    NOT_AN_INCIDENT = "not_an_incident"
    SETTLING = "settling"
    SAME = "same"
    WORSE = "worse"
    TEARDOWN = "teardown"
    TOO_MANY = "too_many"

    @property
    def sends(self) -> bool:
        return self in (Publish.FIRST, Publish.BETTER, Publish.GROWN)


@dataclass(frozen=True)
class EpisodePolicy:
    revisions_max: int = 24
    growth: float = 2.0  # victims must have grown by this factor ...
    growth_min: int = 4  # ... and by this number


@dataclass
class Episode:
    """State of one episode. `signals` are the (shard, signal episode) that are not yet cleared; a
    restored episode was published before we were started, its earlier signals are not known."""

    id: str
    slow: bool
    stalled_unix_s: float
    first_ns: dict[str, int] = field(default_factory=dict)  # writer -> its time of the first signal
    revision: int = 0
    verdict: Verdict | None = None  # newest published
    signals: set[tuple[int, str]] = field(default_factory=set)
    restored: bool = False

    @classmethod
    def restore(cls, record: VerdictRecord) -> "Episode":
        slow = record.verdict.verdict_class.is_slow
        return cls(
            record.episode,
            slow,
            record.stalled_unix_s,
            revision=record.revision,
            verdict=record.verdict,
            restored=True,
        )

    def waited_s(self, now_ns: int, writer: str) -> float:
        """Seconds since the writer's first signal of the episode, by the writer's own clock."""
        if len(self.first_ns) >= WRITERS_MAX:
            self.first_ns.pop(next(iter(self.first_ns)))
        return max(0.0, (now_ns - self.first_ns.setdefault(writer, now_ns)) / 1e9)


def decide(episode: Episode, judgement: Judgement, waited_s: float, policy: EpisodePolicy) -> Publish:
    """Whether `judgement` becomes the next revision of `episode`."""
    new, old = judgement.verdict, episode.verdict
    if new.verdict_class is VerdictClass.NONE:
        return Publish.NOT_AN_INCIDENT
    if waited_s < judgement.settle_s:
        return Publish.SETTLING
    if old is None:
        return Publish.FIRST
    if episode.revision >= policy.revisions_max:
        return Publish.TOO_MANY
    if _cause(new) == _cause(old):
        grown = new.victims_count >= old.victims_count * policy.growth
        grown &= new.victims_count >= old.victims_count + policy.growth_min
        return Publish.GROWN if grown else Publish.SAME
    if new.verdict_class is VerdictClass.INCONCLUSIVE:
        return Publish.WORSE
    if old.verdict_class is VerdictClass.INCONCLUSIVE:
        return Publish.BETTER
    if new.verdict_class is VerdictClass.DEAD_PROCESS:
        return Publish.TEARDOWN  # a job that hung is killed in the end; the hang remains the cause
    # Another culprit at about the same confidence is a guess against a guess: the first one stands.
    margin = 0.0 if _names_more(new, old) else REPLACE_MARGIN
    return Publish.BETTER if new.confidence >= old.confidence + margin else Publish.WORSE


def after_progress(verdict: Verdict) -> Verdict:
    """What is true once the round that stood still has gone on: who had never entered has, late."""
    if verdict.verdict_class is not VerdictClass.H1 or verdict.sub_reason is not SubReason.MISSING_ENTER:
        return verdict
    summary = verdict.summary.replace("never entered", "was late to enter", 1)
    return replace(verdict, sub_reason=SubReason.DELAYED_ENTER, summary=summary)


def _names_more(new: Verdict, old: Verdict) -> bool:
    """Whether `new` accuses the same roots and perhaps further ones."""
    return set(_roots(old)) <= set(_roots(new))


def _cause(verdict: Verdict) -> tuple[object, ...]:
    return (verdict.verdict_class, verdict.sub_reason, _roots(verdict))


def _roots(verdict: Verdict) -> tuple[tuple[object, ...], ...]:
    return tuple(
        (root.kind, root.rank, root.node, root.peer_rank, root.name, root.ranks) for root in verdict.roots
    )
