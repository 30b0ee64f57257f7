"""What a registry record changes, in whatever order records arrive."""

from dataclasses import replace

import pytest

from paceline.contracts.registry import CommunicatorRecord, JobRecord, JobState, NodeRecord, RankRecord
from paceline.contracts.schemas import ContractError
from paceline.incidents import registry
from paceline.incidents.registry import (
    JobNews,
    KnownJob,
    check_communicator,
    check_job,
    check_node,
    incident_resolution,
    job_news,
)

JOB = JobRecord(
    job="llama", attempt="a1", cluster="c", tenant="t", user="u", name="llama", world_size=8, shards=1,
    state=JobState.RUNNING, id_source="declared", attempt_source="store", started_unix_s=100.0,
)  # fmt: skip
KNOWN = KnownJob("a1", "store", JobState.RUNNING, 100.0, None)


def test_a_first_record_registers() -> None:
    assert job_news(None, JOB) is JobNews.REGISTERED


def test_a_late_agent_does_not_take_a_running_job_back() -> None:
    assert job_news(KNOWN, replace(JOB, state=JobState.STARTING)) is JobNews.NOTHING
    ended = replace(KNOWN, state=JobState.FAILED, ended_unix_s=200.0)
    assert job_news(ended, JOB) is JobNews.NOTHING


def test_the_end_is_news_once() -> None:
    record = replace(JOB, state=JobState.FINISHED, ended_unix_s=200.0)
    assert job_news(KNOWN, record) is JobNews.ENDED
    assert job_news(replace(KNOWN, state=JobState.FINISHED, ended_unix_s=200.0), record) is JobNews.UPDATED


def test_a_newer_attempt_replaces_an_older_one_never_the_other_way() -> None:
    assert job_news(KNOWN, replace(JOB, attempt="a2", started_unix_s=150.0)) is JobNews.ATTEMPT_STARTED
    assert job_news(KNOWN, replace(JOB, attempt="a0", started_unix_s=50.0)) is JobNews.OLDER_ATTEMPT


def test_a_provisional_attempt_gets_its_name() -> None:
    known = replace(KNOWN, attempt="p1", attempt_source="provisional")
    assert job_news(known, JOB) is JobNews.RENAMED


@pytest.mark.parametrize(
    ("state", "attempt", "expected"),
    [
        (JobState.RUNNING, "a1", None),
        (JobState.FINISHED, "a1", "the job finished"),
        (JobState.ENDED, "a1", "the job ended, its exit status is not known"),
        (JobState.CANCELLED, "a1", "the job was cancelled by user"),
        (JobState.FAILED, "a1", None),
        (JobState.STARTING, "a0", "attempt a1 has started"),
        (JobState.FAILED, "a0", None),
    ],
)
def test_what_ends_an_incident(state: JobState, attempt: str, expected: str | None) -> None:
    assert incident_resolution(replace(JOB, state=state, end_reason="by user"), attempt) == expected


def test_an_end_without_a_time_gets_one() -> None:
    assert check_job(replace(JOB, state=JobState.FAILED)).ended_unix_s == 100.0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"job": ""}, "job is ''"),
        ({"job": "a\0b"}, "without NUL"),
        ({"world_size": 10**12}, "world_size is 1000000000000"),
        ({"world_size": -1}, "world_size is -1"),
        ({"started_unix_s": -5.0}, "started_unix_s"),
        ({"ended_unix_s": float("nan")}, "ended_unix_s"),
    ],
)
def test_hostile_jobs_are_refused_by_name(changes: dict[str, object], words: str) -> None:
    with pytest.raises(ContractError, match=words):
        check_job(replace(JOB, **changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"gpu": 1 << 63}, "ranks.gpu of rank 0 is 9223372036854775808"),
        ({"local_rank": -2}, "ranks.local_rank of rank 0 is -2"),
        ({"coordinates": {"tp": 1 << 70}}, "ranks.tp of rank 0"),
    ],
)
def test_numbers_that_no_table_holds_are_refused(changes: dict[str, object], words: str) -> None:
    row = replace(RankRecord(0, 0, 1, 1), **changes)  # type: ignore[arg-type]
    with pytest.raises(ContractError, match=words):
        check_node(NodeRecord("llama", "a1", "n0", "ag", (row,)))


def test_ranks_of_a_communicator_are_counted_without_expanding_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def expand(*_: object) -> list[int]:
        raise AssertionError("a record of eight bytes may name a million ranks")

    monkeypatch.setattr(registry, "parse_ranks", expand, raising=False)
    record = CommunicatorRecord("j", "a1", "0" * 15 + "1", "c", "0-999998,999999", 0, 0, "gloo")
    assert check_communicator(record) == 1_000_000
    with pytest.raises(ContractError, match="ranks below 1000000"):
        check_communicator(replace(record, ranks="1000000"))


def test_a_rank_out_of_range_is_refused() -> None:
    with pytest.raises(ContractError, match="rank is 1000000"):
        check_node(NodeRecord("llama", "a1", "n0", "ag", (RankRecord(1_000_000, 0, 1, 1),)))


@pytest.mark.parametrize(
    ("comm", "ranks"), [("zz", "0-7"), ("aa", "0-7"), ("00" * 8, "7-0"), ("00" * 8, "x")]
)
def test_a_communicator_that_cannot_be_read_is_refused(comm: str, ranks: str) -> None:
    with pytest.raises(ContractError, match="CommunicatorRecord"):
        check_communicator(CommunicatorRecord("llama", "a1", comm, "tp", ranks, 0, 0, "gloo"))
