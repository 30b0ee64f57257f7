"""Reports of supervisors: a recovery has dozens, so what a poll has read of one job shares transactions."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from paceline.contracts.repair import RecoveryReport
from paceline.contracts.schemas import ContractError
from paceline.remediator.deciding import locked_job
from paceline.remediator.model import Event, Step
from paceline.remediator.reading import event_of_report, phase_values
from paceline.remediator.writing import Context
from paceline.runtime.clock import Clock
from paceline.runtime.cloud_events import decode_event
from paceline.runtime.handling import processing
from paceline.runtime.record import BadRecord, Record
from paceline.runtime.telemetry import current_traceparent
from paceline.store import Database
from paceline.store.base import JsonObject
from paceline.store.repositories.repair import RepairRepository
from paceline.store.sequence import holds_sequence

REPORTS_MAX = 100  # in one transaction: no longer is a job locked, nor an approval of its action kept waiting


@dataclass(frozen=True)
class Told:
    """One report: what it means, its row, and where its trace goes on."""

    job: str
    attempt: str
    event: Event
    values: JsonObject
    topic: str
    traceparent: str


def read_report(record: Record) -> Told:
    """ContractError for what is no report, or one that no table takes."""
    headers, report = decode_event(RecoveryReport, record.headers, record.value)
    event, values = event_of_report(report), phase_values(report)
    return Told(report.job, report.attempt, event, values, record.topic, headers.traceparent)


def group_reports(told: Sequence[Told], reports_max: int = REPORTS_MAX) -> list[list[Told]]:
    """Those of each job and attempt in their order, at most `reports_max` together."""
    of_jobs: dict[tuple[str, str], list[Told]] = {}
    for each in told:
        of_jobs.setdefault((each.job, each.attempt), []).append(each)
    return [
        reports[begin : begin + reports_max]
        for reports in of_jobs.values()
        for begin in range(0, len(reports), reports_max)
    ]


class ReportHandler:
    """Handles what a poll has read. The same records again keep no row twice and decide to do nothing."""

    def __init__(
        self,
        database: Database,
        clock: Clock,
        context: Context,
        heard_s: Callable[[], float],
        note: Callable[[str, str, Event, Step], None],
    ) -> None:
        """`note` is called for each decision, once it is committed."""
        self._database = database
        self._clock = clock
        self._context = context
        self._heard_s = heard_s
        self._note = note

    async def handle(self, records: Sequence[Record]) -> Sequence[BadRecord]:
        bad: list[BadRecord] = []
        told: list[Told] = []
        for record in records:
            try:
                told.append(read_report(record))
            except ContractError as error:
                bad.append(BadRecord(record, str(error)))
            await asyncio.sleep(0)  # a long batch must not starve the loop
        for reports in group_reports(told):
            decided = await self._decide(reports, keep=True)
            while decided < len(reports):
                decided += await self._decide(reports[decided:], keep=False)
        return bad

    async def _decide(self, reports: Sequence[Told], *, keep: bool) -> int:
        """Decide in one transaction about the first of these; how many. `keep` writes the rows of all.
        A decision of which others are told is its last: that lock is everybody's, and is to be taken last."""
        job, attempt, steps = reports[0].job, reports[0].attempt, []
        async with self._database.transaction() as session:
            if keep:  # before the job's lock: so two that were given the same records wait in one order
                await RepairRepository(session).add_phases([each.values for each in reports])
            async with locked_job(session, job, attempt, self._context) as locked:
                for each in reports:
                    with processing("report", each.topic, each.traceparent):
                        traceparent = current_traceparent() or each.traceparent
                        now_s, heard_s = self._clock.unix_s(), self._heard_s()
                        steps.append(await locked.apply(each.event, now_s, traceparent, heard_s))
                    if holds_sequence(session):
                        break
        for each, step in zip(reports, steps, strict=False):
            self._note(job, attempt, each.event, step)
        return len(steps)
