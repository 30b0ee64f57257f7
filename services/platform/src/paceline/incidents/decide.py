"""What a verdict does to the incidents: one pure function that returns a named reason."""

from dataclasses import dataclass
from enum import Enum

from paceline.contracts.events import IncidentStatus, Severity
from paceline.contracts.registry import JobState
from paceline.contracts.verdicts import Root, RootKind, Verdict, VerdictClass, VerdictRecord


class Reason(str, Enum):
    OPEN = "open"
    JOIN = "join"  # another episode of the same cause while its incident is open
    REVISE = "revise"
    REVISE_CLOSED = "revise_closed"  # somebody closed it by hand: keep the verdict, page nobody
    REOPEN = "reopen"
    RESOLVE = "resolve"
    WITHDRAW = "withdraw"  # judged again, it was no incident
    CLEAR_EPISODE = "clear_episode"  # one of several episodes is over, or a closed one
    IGNORE_DUPLICATE = "ignore_duplicate"
    IGNORE_STALE = "ignore_stale"
    IGNORE_NONE = "ignore_none"
    IGNORE_UNKNOWN_EPISODE = "ignore_unknown_episode"  # it ended, and we never heard that it began
    IGNORE_ENDED = "ignore_ended"  # the job had ended in order
    IGNORE_TOO_MANY = "ignore_too_many"

    @property
    def is_ignored(self) -> bool:
        return self.value.startswith("ignore")


@dataclass(frozen=True)
class IncidentPolicy:
    """Bounds and thresholds."""

    reopen_s_max: float = 600.0  # a cause that returns within it is the same incident
    revisions_max: int = 200
    # A whole node's worth of ranks standing still is worth waking somebody.
    critical_ranks_min: int = 8
    # A stall that began this long before the end of the job was one; both times are for people
    # and from different machines, so a smaller difference says nothing.
    ended_slack_s: float = 30.0


@dataclass(frozen=True)
class EpisodeState:
    """What is known of the episode that the verdict belongs to."""

    revision: int
    is_cleared: bool


@dataclass(frozen=True)
class IncidentState:
    """An incident as it stands. `episode` is null where it is known by its cause only."""

    id: str
    status: IncidentStatus
    resolved_unix_s: float | None
    episode: EpisodeState | None
    other_episodes_open: int
    revisions: int


@dataclass(frozen=True)
class JobEnd:
    state: JobState
    ended_unix_s: float


@dataclass(frozen=True)
class Decision:
    """`incident_id` is null where a new one is opened or nothing is done."""

    reason: Reason
    incident_id: str | None = None


def decide(
    current: IncidentState | None,
    same_cause: IncidentState | None,
    end: JobEnd | None,
    record: VerdictRecord,
    now_unix_s: float,
    policy: IncidentPolicy,
) -> Decision:
    """`current` holds the episode of the record, `same_cause` is the newest incident of the same
    job attempt and root; `end` is how the attempt ended, if it did."""
    if current is not None and current.episode is not None:
        return Decision(_known_episode(current, current.episode, record, policy), current.id)
    if record.resolved:
        return Decision(Reason.IGNORE_UNKNOWN_EPISODE)
    if record.verdict.verdict_class is VerdictClass.NONE:
        return Decision(Reason.IGNORE_NONE)
    if end is not None and _ended_in_order(end, record, policy):
        return Decision(Reason.IGNORE_ENDED)
    if same_cause is not None:
        if same_cause.status is not IncidentStatus.RESOLVED:
            reason = Reason.JOIN if same_cause.revisions < policy.revisions_max else Reason.IGNORE_TOO_MANY
            return Decision(reason, same_cause.id)
        resolved = same_cause.resolved_unix_s
        if resolved is not None and now_unix_s - resolved <= policy.reopen_s_max:
            return Decision(Reason.REOPEN, same_cause.id)
    return Decision(Reason.OPEN)


def _known_episode(
    incident: IncidentState, episode: EpisodeState, record: VerdictRecord, policy: IncidentPolicy
) -> Reason:
    if record.revision < episode.revision:
        return Reason.IGNORE_STALE
    is_over = record.resolved or record.verdict.verdict_class is VerdictClass.NONE
    # The end of an episode may carry the revision that it ends.
    if record.revision == episode.revision and not (is_over and not episode.is_cleared):
        return Reason.IGNORE_DUPLICATE
    is_closed = incident.status is IncidentStatus.RESOLVED
    if is_over:
        if episode.is_cleared:
            return Reason.IGNORE_DUPLICATE
        if is_closed or incident.other_episodes_open:
            return Reason.CLEAR_EPISODE
        return Reason.RESOLVE if record.resolved else Reason.WITHDRAW
    if is_closed:
        return Reason.REOPEN if episode.is_cleared else Reason.REVISE_CLOSED
    return Reason.REVISE if incident.revisions < policy.revisions_max else Reason.IGNORE_TOO_MANY


def _ended_in_order(end: JobEnd, record: VerdictRecord, policy: IncidentPolicy) -> bool:
    if not end.state.is_orderly_end:
        return False
    return record.stalled_unix_s > end.ended_unix_s - policy.ended_slack_s


def severity_of(verdict: Verdict, policy: IncidentPolicy) -> Severity:
    """From the class and the number of ranks that stand still."""
    if verdict.verdict_class is VerdictClass.NONE:
        return Severity.INFO
    if verdict.verdict_class.is_slow:
        return Severity.WARNING
    named = sum(max(1, len(root.ranks)) for root in verdict.roots)
    is_large = verdict.victims_count + named >= policy.critical_ranks_min
    if verdict.verdict_class is VerdictClass.INCONCLUSIVE:
        return Severity.ERROR if is_large else Severity.WARNING
    return Severity.CRITICAL if is_large else Severity.ERROR


def root_key(verdict: Verdict) -> str:
    """Equal for equal first causes; where no cause is named, for the same class and communicator. A rank
    that is slow and later hangs is two causes."""
    named = sorted(_root_text(root) for root in verdict.roots if root.kind is not RootKind.NONE)
    if named:
        return ("slow|" * verdict.verdict_class.is_slow + "|".join(named))[:1000]
    communicator = "" if verdict.operation is None else verdict.operation.communicator
    return f"none:{verdict.verdict_class.value}:{communicator}"[:1000]


def _root_text(root: Root) -> str:
    parts = (root.rank, root.peer_rank, root.node if root.rank is None else None, root.gpu, root.name)
    ranks = ",".join(map(str, sorted(root.ranks)))
    return f"{root.kind.value}:" + ":".join("" if part is None else str(part) for part in parts) + f":{ranks}"
