"""One sample of every page per interval, and one more of a job when a process of it ends."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from paceline.agent.batches import Sample, encode_sample, merge_rows
from paceline.agent.delivery import FRAME_DROPS
from paceline.agent.detail import DetailControl, DetailPolicy
from paceline.agent.pages import PageFault, PageView
from paceline.agent.processes import Page, Process
from paceline.agent.registry import LocalJob
from paceline.agent.roster import Roster
from paceline.agent.rows import (
    Facts,
    Reduction,
    RowPolicy,
    Suspicion,
    find_suspicion,
    pageless_row,
    reduce_page,
)
from paceline.agent.settings import AgentSettings
from paceline.contracts.batch import BatchFlag, RowKind, Rows
from paceline.contracts.codes import ProcessState
from paceline.contracts.registry import JobState
from paceline.runtime.clock import Clock
from paceline.runtime.logging import get_logger

log = get_logger(__name__)
# A pid that we cannot see, without a connection and without a beat for so long, is gone.
INVISIBLE_GONE_S = 10.0
# The longest pause between two attempts of a process to find its agent (probe.connection), doubled.
REHELLO_S_MAX = 15.0
PushFrame = Callable[[str, bytes], None]  # Kafka key, value


@dataclass(frozen=True)
class Look:
    """One process as a sample first sees it; reduced at once where nothing is to be looked at closely."""

    suspicion: Suspicion
    reduction: Reduction | None = None


class Sampler:
    """Reads pages and pushes frames. One event loop owns it; a sample never waits."""

    def __init__(
        self,
        settings: AgentSettings,
        clock: Clock,
        roster: Roster,
        push: PushFrame,
        drops: Counter[str],
    ) -> None:
        self.detail = DetailControl(DetailPolicy.of(settings))
        self.samples = 0
        self.pages_read = 0
        self.bytes_encoded = 0
        self._settings = settings
        self._clock = clock
        self._roster = roster
        self._push = push
        self._drops = drops
        self._policy = RowPolicy(suspect_ms=int(settings.suspect_s * 1000))
        # Grows faster than any agent can sample, so that a restarted agent counts on from above.
        self._seq_base = int(clock.unix_s()) * 16
        self._kept: dict[Process, dict[RowKind, Rows]] = {}  # last rows of ended processes
        self._dropped_at = 0

    def sample_all(self) -> None:
        """One sample of every job, and the look at processes, ends and registry that goes with it."""
        self.samples += 1
        for process in list(self._roster.processes.values()):
            self._roster.observe(process)
            self._look_for_silence(process)
        for job in list(self._roster.jobs.values()):
            self.sample(job)
            self._roster.settle(job)
            if job.key in self._roster.jobs:
                self._roster.sync(job)
        known = set(self._roster.processes.values())
        self._kept = {process: rows for process, rows in self._kept.items() if process in known}
        self.detail.forget(self._roster.jobs)

    def sample(self, job: LocalJob, last: Process | None = None) -> None:
        """Read and publish one job now; `last` is a process whose page is read for the last time."""
        now_ns = self._clock.monotonic_ns()
        processes = self._roster.of_job(job.key)
        facts = [process.facts for process in processes]
        looks = [self._look(*each, now_ns) for each in zip(processes, facts, strict=True)]
        self.detail.update(job.key, processes, now_ns)
        detail = any(look.suspicion is not Suspicion.NONE for look in looks)
        parts = [
            self._rows_of(process, known, look, now_ns, detail, process is last)
            for process, known, look in zip(processes, facts, looks, strict=True)
        ]
        self._note_running(job, parts)
        is_news = last is not None or any(process.exit is None for process in processes)
        rows = merge_rows(parts)
        if rows and is_news and self._roster.is_public(job):
            self._encode(job, rows, now_ns, detail, last is not None)

    def last_words(self, process: Process) -> None:
        """The page of a process that has just ended: final rows, then it is released."""
        job = self._roster.jobs[process.key]
        now_ns = self._clock.monotonic_ns()
        self._look(process, process.facts, now_ns)
        process.conclude()
        self.sample(job, last=process)
        self._roster.release(process)
        process.view = None

    def _look(self, process: Process, facts: Facts, now_ns: int) -> Look:
        """Take a new snapshot where there is a page, and reduce it while it is in the caches. Its details are
        given up with that; where another process is looked at closely they are read once more."""
        if process.page is None:
            stopped = process.exit is None and process.reading.state is ProcessState.STOPPED
            return Look(Suspicion.STOPPED if stopped else Suspicion.NONE)
        view = self._read(process, process.page)
        if view is None:
            return Look(Suspicion.NONE)
        suspicion = find_suspicion(view, facts, now_ns, self._policy)
        reduction = None
        if suspicion is Suspicion.NONE:
            reduction = reduce_page(view, facts, process.memory, now_ns, self._policy, detail=False)
            process.view = view.without_details()
        return Look(suspicion, reduction)

    def _read(self, process: Process, page: Page) -> PageView | None:
        """A new snapshot, None where the page is none any more."""
        try:
            page.beat()
            process.view = page.read()
        except PageFault as error:
            self._drops["bad_page"] += 1
            log.warning("page_given_up", job=process.key[0], rank=process.rank, reason=str(error))
            page.close()
            process.page = None
            return None
        self.pages_read += 1
        return process.view

    def _rows_of(
        self, process: Process, facts: Facts, look: Look, now_ns: int, detail: bool, last: bool
    ) -> Mapping[RowKind, Rows]:
        """Rows from the page; of an ended process its last states, else what `/proc` says."""
        if process.page is None or process.view is None:
            return self._kept.get(process) or self._pageless(process, now_ns)
        process.pageless_ns = None
        reduction = look.reduction
        if detail or reduction is None:
            view = process.view if process.view.has_details else self._read(process, process.page)
            if view is None:
                return self._kept.get(process) or self._pageless(process, now_ns)
            reduction = reduce_page(view, facts, process.memory, now_ns, self._policy, detail=detail)
        process.memory = reduction.memory
        if last:
            kinds = (RowKind.PROCESS, RowKind.STATE)
            self._kept[process] = {kind: reduction.rows[kind] for kind in kinds}
        return reduction.rows

    def _pageless(self, process: Process, now_ns: int) -> Mapping[RowKind, Rows]:
        """Say nothing of a process that is about to send its page again, unless it cannot."""
        if process.pageless_ns is None:
            process.pageless_ns = now_ns
        waited_ns = now_ns - process.pageless_ns
        held = process.reading.state in (ProcessState.STOPPED, ProcessState.TRACED)
        if process.exit is None and not held and waited_ns < REHELLO_S_MAX * 1e9:
            return {}
        return {RowKind.PROCESS: pageless_row(process.facts)}

    def _encode(
        self, job: LocalJob, rows: dict[RowKind, Rows], now_ns: int, detail: bool, last: bool
    ) -> None:
        flags = BatchFlag.SUSPECT if detail else BatchFlag.NONE
        flags |= BatchFlag.LAST if last else BatchFlag.NONE
        dropped = sum(self._drops[reason] for reason in FRAME_DROPS)
        if dropped != self._dropped_at:
            flags |= BatchFlag.DROPPED
            self._dropped_at = dropped
        for shard in range(job.shards):
            job.seq[shard] = job.seq.get(shard, self._seq_base) + 1
        unix_ns = int(self._clock.unix_s() * 1e9)
        sample = Sample(job.job, job.attempt, self._settings.node, job.shards, now_ns, unix_ns, flags)
        for shard, data in encode_sample(sample, rows, job.seq, self._drops):
            self.bytes_encoded += len(data)
            self._push(f"{job.job}:{shard}", data)

    def _note_running(self, job: LocalJob, parts: list[Mapping[RowKind, Rows]]) -> None:
        if job.state is JobState.STARTING and any(
            (part[RowKind.STATE]["completed"] > 0).any() for part in parts if RowKind.STATE in part
        ):
            job.state = JobState.RUNNING

    def _look_for_silence(self, process: Process) -> None:
        if process.pid or process.connection is not None or process.view is None or process.exit:
            return
        beat_ns = int(process.view.process["native_beat_ns"])
        if self._clock.monotonic_ns() - beat_ns > INVISIBLE_GONE_S * 1e9:
            self._roster.ended(process)
