"""The decision about a verdict: every reason, and the properties that must hold for all records."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.contracts.events import IncidentStatus, Severity
from paceline.contracts.registry import JobState
from paceline.contracts.verdicts import (
    Action,
    ActionKind,
    Coverage,
    Operation,
    Owner,
    Root,
    RootKind,
    SubReason,
    Verdict,
    VerdictClass,
    VerdictRecord,
)
from paceline.incidents.decide import (
    EpisodeState,
    IncidentPolicy,
    IncidentState,
    JobEnd,
    Reason,
    decide,
    root_key,
    severity_of,
)

NOW = 1_767_323_045.0
POLICY = IncidentPolicy()
VERDICT = Verdict(
    verdict_class=VerdictClass.H1,
    sub_reason=SubReason.MISSING_ENTER,
    roots=(Root(RootKind.RANK, rank=5, node="n0"),),
    victims=(0, 1, 2, 3, 4, 6, 7),
    victims_count=7,
    operation=Operation("00000000000000aa", "tp_1", "all_reduce", 412, 8),
    owner=Owner.USER_CODE,
    action=Action(ActionKind.FIX_CODE),
    confidence=0.9,
    coverage=Coverage(8, 8, 4, 4),
    evidence=(),
    summary="rank 5 never entered",
)
RECORD = VerdictRecord("ver_1", "job", "a1", "epi_1", 1, VERDICT, NOW - 10, NOW)
OPEN = IncidentState("inc_1", IncidentStatus.OPEN, None, EpisodeState(1, False), 0, 1)
RESOLVED = replace(OPEN, status=IncidentStatus.RESOLVED, resolved_unix_s=NOW - 5)
CLEARED = replace(RESOLVED, episode=EpisodeState(2, True))


def reason(
    current: IncidentState | None = None,
    cause: IncidentState | None = None,
    end: JobEnd | None = None,
    record: VerdictRecord = RECORD,
    policy: IncidentPolicy = POLICY,
) -> Reason:
    return decide(current, cause, end, record, NOW, policy).reason


def revised(revision: int, **changes: object) -> VerdictRecord:
    return replace(RECORD, revision=revision, **changes)  # type: ignore[arg-type]


def none_verdict(revision: int = 1) -> VerdictRecord:
    return revised(revision, verdict=replace(VERDICT, verdict_class=VerdictClass.NONE))


class TestNewEpisode:
    def test_opens(self) -> None:
        assert reason() is Reason.OPEN

    def test_none_opens_nothing(self) -> None:
        assert reason(record=none_verdict()) is Reason.IGNORE_NONE

    def test_end_of_an_episode_never_heard_of(self) -> None:
        assert reason(record=revised(3, resolved=True)) is Reason.IGNORE_UNKNOWN_EPISODE

    def test_same_cause_joins_the_open_incident(self) -> None:
        decision = decide(None, replace(OPEN, episode=None), None, RECORD, NOW, POLICY)
        assert (decision.reason, decision.incident_id) == (Reason.JOIN, "inc_1")

    def test_same_cause_reopens_within_the_window(self) -> None:
        decision = decide(None, replace(RESOLVED, episode=None), None, RECORD, NOW, POLICY)
        assert (decision.reason, decision.incident_id) == (Reason.REOPEN, "inc_1")

    def test_same_cause_later_is_another_incident(self) -> None:
        old = replace(RESOLVED, episode=None, resolved_unix_s=NOW - 601)
        assert reason(cause=old) is Reason.OPEN

    @pytest.mark.parametrize("state", [JobState.FINISHED, JobState.ENDED, JobState.CANCELLED])
    def test_the_ragged_end_of_a_job_opens_nothing(self, state: JobState) -> None:
        assert reason(end=JobEnd(state, NOW - 2)) is Reason.IGNORE_ENDED

    def test_a_stall_long_before_the_cancellation_was_one(self) -> None:
        assert reason(end=JobEnd(JobState.CANCELLED, RECORD.stalled_unix_s + 31)) is Reason.OPEN

    def test_a_failed_job_keeps_its_incident(self) -> None:
        assert reason(end=JobEnd(JobState.FAILED, NOW - 2)) is Reason.OPEN


class TestKnownEpisode:
    def test_revises(self) -> None:
        assert reason(OPEN, record=revised(2)) is Reason.REVISE

    def test_same_revision_is_a_duplicate(self) -> None:
        assert reason(OPEN) is Reason.IGNORE_DUPLICATE

    def test_older_revision_is_stale(self) -> None:
        assert reason(replace(OPEN, episode=EpisodeState(3, False)), record=revised(2)) is Reason.IGNORE_STALE

    @pytest.mark.parametrize("revision", [1, 2])
    def test_resolves_at_the_same_or_the_next_revision(self, revision: int) -> None:
        assert reason(OPEN, record=revised(revision, resolved=True)) is Reason.RESOLVE

    def test_none_withdraws(self) -> None:
        assert reason(OPEN, record=none_verdict(2)) is Reason.WITHDRAW

    def test_one_of_two_episodes_is_over(self) -> None:
        two = replace(OPEN, other_episodes_open=1)
        assert reason(two, record=revised(2, resolved=True)) is Reason.CLEAR_EPISODE

    def test_the_end_of_what_somebody_closed(self) -> None:
        assert reason(RESOLVED, record=revised(2, resolved=True)) is Reason.CLEAR_EPISODE

    def test_better_verdict_of_what_somebody_closed_pages_nobody(self) -> None:
        assert reason(RESOLVED, record=revised(2)) is Reason.REVISE_CLOSED

    def test_stalled_again_after_progress_reopens(self) -> None:
        assert reason(CLEARED, record=revised(3)) is Reason.REOPEN

    def test_the_end_twice_is_a_duplicate(self) -> None:
        assert reason(CLEARED, record=revised(2, resolved=True)) is Reason.IGNORE_DUPLICATE
        assert reason(CLEARED, record=revised(3, resolved=True)) is Reason.IGNORE_DUPLICATE

    def test_revisions_are_bounded(self) -> None:
        full = replace(OPEN, revisions=POLICY.revisions_max)
        assert reason(full, record=revised(2)) is Reason.IGNORE_TOO_MANY
        assert reason(full, record=revised(2, resolved=True)) is Reason.RESOLVE


@given(revision=st.integers(0, 5), known=st.integers(0, 5), resolved=st.booleans(), cleared=st.booleans())
def test_an_old_revision_never_changes_a_cleared_episode(
    revision: int, known: int, resolved: bool, cleared: bool
) -> None:
    current = replace(OPEN, episode=EpisodeState(known, cleared))
    found = reason(current, record=revised(revision, resolved=resolved))
    if revision < known or (revision == known and (cleared or not resolved)):
        assert found.is_ignored


class TestSeverity:
    def test_a_hang_of_a_node_is_critical(self) -> None:
        assert severity_of(VERDICT, POLICY) is Severity.CRITICAL

    def test_a_small_hang_is_an_error(self) -> None:
        assert severity_of(replace(VERDICT, victims_count=3), POLICY) is Severity.ERROR

    @pytest.mark.parametrize("name", ["S1", "S2", "S3"])
    def test_slow_is_a_warning(self, name: str) -> None:
        assert severity_of(replace(VERDICT, verdict_class=VerdictClass(name)), POLICY) is Severity.WARNING

    def test_inconclusive_by_size(self) -> None:
        verdict = replace(VERDICT, verdict_class=VerdictClass.INCONCLUSIVE, roots=())
        assert severity_of(verdict, POLICY) is Severity.WARNING
        assert severity_of(replace(verdict, victims_count=8), POLICY) is Severity.ERROR


class TestRootKey:
    def test_does_not_depend_on_the_order_or_the_class(self) -> None:
        first, second = Root(RootKind.RANK, rank=1), Root(RootKind.RANK, rank=2)
        one = replace(VERDICT, roots=(first, second))
        other = replace(VERDICT, roots=(second, first), verdict_class=VerdictClass.H3)
        assert root_key(one) == root_key(other)

    def test_tells_ranks_apart(self) -> None:
        other = replace(VERDICT, roots=(Root(RootKind.RANK, rank=6, node="n0"),))
        assert root_key(VERDICT) != root_key(other)

    def test_without_a_cause_it_is_class_and_communicator(self) -> None:
        verdict = replace(VERDICT, roots=(), verdict_class=VerdictClass.INCONCLUSIVE)
        assert root_key(verdict) == "none:INCONCLUSIVE:00000000000000aa"


def test_a_hang_of_a_slow_rank_is_a_cause_of_its_own() -> None:
    slow = replace(VERDICT, verdict_class=VerdictClass.S1)
    assert root_key(slow) != root_key(VERDICT)
    assert root_key(slow) == root_key(replace(slow, verdict_class=VerdictClass.S2))
