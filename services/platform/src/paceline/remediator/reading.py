"""From records of the topics to events of the state machine; None for what means nothing to repair."""

from paceline.contracts.registry import HealthEvent, HealthKind, JobRecord, JobState
from paceline.contracts.repair import MemberRecord, RecoveryReport, ReportKind
from paceline.contracts.schemas import ContractError
from paceline.remediator.model import (
    Event,
    JobOver,
    MemberError,
    NodeLost,
    OrderAnswer,
    PhaseDone,
    ProcessExit,
    ProcessStopped,
)
from paceline.store.base import JsonObject
from paceline.store.times import from_unix

TEXT_LENGTH_MAX = 300
NUMBER_MAX = 1 << 62


def event_of_health(event: HealthEvent) -> Event | None:
    """Exits, stops and lost nodes of a job."""
    if not event.job:
        return None
    if event.kind is HealthKind.PROCESS_EXIT and event.pid is not None:
        return ProcessExit(
            event.id,
            event.at_unix_s,
            event.rank,
            event.member,
            event.pid,
            event.pid_start,
            event.exit_code,
            event.node,
        )
    if event.kind in (HealthKind.PROCESS_FROZEN, HealthKind.PROCESS_RESUMED) and event.pid is not None:
        resumed = event.kind is HealthKind.PROCESS_RESUMED
        return ProcessStopped(event.id, event.at_unix_s, event.rank, event.pid, resumed, event.node)
    if event.kind in (HealthKind.HEARTBEAT_LOST, HealthKind.HEARTBEAT_BACK):
        return NodeLost(event.id, event.at_unix_s, event.node, event.kind is HealthKind.HEARTBEAT_BACK)
    if event.kind is HealthKind.CANCELLED:
        return JobOver(event.id, event.at_unix_s, cancelled=True, message=event.message)
    return None


def event_of_report(report: RecoveryReport) -> Event:
    """The word of one member; ContractError where it lacks what its kind needs."""
    if report.kind is ReportKind.ERROR:
        return MemberError(
            report.id, report.at_unix_s, report.member, report.generation, report.message[:1000], report.node
        )
    if report.kind is ReportKind.PHASE:
        if report.phase is None:
            raise ContractError(f"RecoveryReport: phase of {report.id[:80]!r} is null, expected one")
        return PhaseDone(
            report.id, report.at_unix_s, report.member, report.generation, report.phase, report.step,
            report.replayed, report.node, report.attempt_no,
        )  # fmt: skip
    if report.outcome is None:
        raise ContractError(f"RecoveryReport: outcome of {report.id[:80]!r} is null, expected one")
    return OrderAnswer(
        report.id, report.at_unix_s, report.member, report.generation, report.command, report.outcome,
        report.message[:1000], report.node,
    )  # fmt: skip


def event_of_job(record: JobRecord) -> JobOver | None:
    """The end of an attempt, as rank 0's agent judged it. A failure is no end: it may be under repair."""
    if record.state is JobState.FINISHED or record.state is JobState.ENDED:
        cancelled = False
    elif record.state is JobState.CANCELLED:
        cancelled = True
    else:
        return None
    ended_s = record.ended_unix_s or record.started_unix_s
    event_id = f"over:{record.job}:{record.attempt}:{record.state.value}"
    return JobOver(event_id, ended_s, cancelled, record.end_reason)


def phase_values(report: RecoveryReport) -> JsonObject:
    """The row of a report."""
    _check_text("RecoveryReport", job=report.job, attempt=report.attempt, member=report.member, id=report.id)
    _check_numbers(
        "RecoveryReport",
        report.generation,
        report.step,
        report.replayed,
        report.bytes,
        report.rank,
        report.attempt_no,
    )
    return {
        "id": report.id, "job": report.job, "attempt": report.attempt, "generation": report.generation,
        "member": report.member, "rank": report.rank, "kind": report.kind.value,
        "phase": "" if report.phase is None else report.phase.value,
        "outcome": "" if report.outcome is None else report.outcome.value,
        "duration_ms": report.duration_ms, "step": report.step, "replayed": report.replayed,
        "bytes_count": report.bytes, "message": report.message[:1000].replace("\0", ""),
        "at": _time("RecoveryReport", report.at_unix_s),
    }  # fmt: skip


def member_values(record: MemberRecord) -> JsonObject:
    """The row of a supervisor, without the time of writing; ContractError for what no table takes."""
    _check_text(
        "MemberRecord", job=record.job, attempt=record.attempt, member=record.member, node=record.node
    )
    _check_numbers(
        "MemberRecord", record.rank, record.pid, record.child_pid, record.child_pid_start, record.generation,
        record.step, record.world_size, record.uid,
    )  # fmt: skip
    for name, value in (("store", record.store), ("replica", record.replica)):
        if len(value) > TEXT_LENGTH_MAX or "\0" in value:
            raise ContractError(f"MemberRecord: {name} is {value[:40]!r}, expected host:port")
    return {
        "job": record.job, "attempt": record.attempt, "member": record.member, "node": record.node,
        "role": record.role.value, "rank": record.rank, "pid": record.pid, "child_pid": record.child_pid,
        "child_pid_start": record.child_pid_start, "generation": record.generation, "step": record.step,
        "store": record.store, "replica": record.replica,
        "failure_domain": record.failure_domain[:TEXT_LENGTH_MAX].replace("\0", ""), "ready": record.ready,
        "world_size": record.world_size, "support": record.support.value, "lease_s": record.lease_s,
        "left": record.left, "uid": record.uid, "told_at": _time("MemberRecord", record.at_unix_s),
    }  # fmt: skip


def _check_text(kind: str, **texts: str) -> None:
    for name, value in texts.items():
        if not value or len(value) > TEXT_LENGTH_MAX or "\0" in value:
            raise ContractError(
                f"{kind}: {name} is {value[:40]!r}, expected 1 to {TEXT_LENGTH_MAX} characters without NUL"
            )


def _check_numbers(kind: str, *numbers: int) -> None:
    for number in numbers:
        if not -1 <= number < NUMBER_MAX:
            raise ContractError(f"{kind}: a number is {number}, expected -1 to 2**62")


def _time(kind: str, unix_s: float) -> object:
    try:
        return from_unix(unix_s)
    except ValueError as error:
        raise ContractError(f"{kind}: at_unix_s: {error}") from None
