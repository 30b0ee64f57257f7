"""Registry records and health of a hostile writer: bounded work, bounded tables, the first cause is kept."""

from collections.abc import Iterator

import pytest

from paceline.analysis import build_evidence, builder
from paceline.analysis.health_bound import bounded_health
from paceline.contracts.registry import CommunicatorRecord, HealthEvent, HealthKind, JobRecord, JobState

JOB = JobRecord(
    job="j", attempt="a1", cluster="", tenant="", user="", name="j", world_size=1_000_000, shards=1,
    state=JobState.RUNNING, id_source="declared", attempt_source="store", started_unix_s=1.0,
)  # fmt: skip


def communicator(number: int, ranks: str, *, closed: bool = False) -> CommunicatorRecord:
    return CommunicatorRecord(
        "j", "a1", f"{number:016x}", "c", ranks, 0, 0, "gloo", closed=closed
    )  # fmt: skip


def exit_of(rank: int, code: int | None) -> HealthEvent:
    return HealthEvent(f"exit-{rank}", HealthKind.PROCESS_EXIT, "n", "j", "a1", rank, 1, float(rank), code)


def test_communicators_beyond_the_bound_are_never_expanded(monkeypatch: pytest.MonkeyPatch) -> None:
    expanded = 0

    class Span:
        """A range that counts what is read of it."""

        def __init__(self, size: int) -> None:
            self._range = range(size)

        def __len__(self) -> int:
            return len(self._range)

        def __getitem__(self, index: int) -> int:
            return self._range[index]

        def __iter__(self) -> Iterator[int]:
            nonlocal expanded
            for rank in self._range:
                expanded += 1
                yield rank

    monkeypatch.setattr(builder, "MEMBERS_MAX", 3_000)
    monkeypatch.setattr(builder, "rank_spans", lambda text, _: [Span(int(text.split("-")[1]) + 1)])
    monkeypatch.setattr(builder, "parse_ranks", lambda text, _: [*Span(int(text.split("-")[1]) + 1)],
                        raising=False)  # fmt: skip
    records = [communicator(number, "0-999") for number in range(1, 50)]
    evidence = build_evidence([], JOB, communicators=[*records, communicator(99, "0-9999", closed=True)])
    assert len(evidence.comm_ids) == 3
    assert expanded == 3_000


def test_one_that_does_not_fit_hides_no_later_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builder, "MEMBERS_MAX", 100)
    records = [communicator(1, "0-7"), communicator(2, "0-999"), communicator(3, "8-15")]
    evidence = build_evidence([], JOB, communicators=records)
    assert list(map(int, evidence.comm_ids)) == [1, 3]


def test_an_id_that_no_table_holds_is_ignored() -> None:
    odd = CommunicatorRecord("j", "a1", "f" * 40, "c", "0-1", 0, 0, "gloo", closed=True)
    evidence = build_evidence([], JOB, communicators=[odd, communicator(1, "0-7")])
    assert list(map(int, evidence.comm_ids)) == [1]


def test_a_status_that_no_process_has_is_ignored() -> None:
    evidence = build_evidence([], JOB, health=[exit_of(0, 1 << 70), exit_of(1, -9)])
    assert [event.rank for event in evidence.health] == [1]


def test_the_first_exit_and_signals_stay_of_too_many_exits() -> None:
    late = [
        exit_of(9_000, -9),
        HealthEvent("x", HealthKind.XID, "n", "", "", None, None, 1.0, gpu=0, code=79),
    ]
    kept = bounded_health([*(exit_of(rank, 1) for rank in range(5_000)), *late], 1_000)
    assert len(kept) == 1_000
    assert kept[0].rank == 0
    assert list(kept[-2:]) == late
    assert [event.rank for event in kept[:-2]] == list(range(998))


def test_the_first_exit_stays_of_too_many_signals() -> None:
    kept = bounded_health([exit_of(0, 1), *(exit_of(rank, -6) for rank in range(1, 5_000))], 1_000)
    assert kept[0].exit_code == 1
    assert len(kept) == 1_000
