"""From paths to answers: read, tell attempts apart, resolve identity, decide."""

from collections.abc import Callable, Sequence

from paceline.analysis.adapters.catalog import ADAPTERS
from paceline.analysis.adapters.inputs import Source
from paceline.analysis.adapters.reading import Adapters, Reading, read_inputs
from paceline.analysis.diagnosis.answer import Diagnosis, Seen
from paceline.analysis.diagnosis.attempts import split_attempts
from paceline.analysis.diagnosis.case import Case
from paceline.analysis.diagnosis.flight_fold import FoldAsRead
from paceline.analysis.diagnosis.rules import decide
from paceline.analysis.diagnosis.rules.finding import Finding, complaining
from paceline.analysis.facts import FlightDump, RecordedSamples
from paceline.contracts.verdicts import VICTIMS_MAX, Coverage, VerdictClass

NOTES_MAX = 50
Watch = Callable[[Reading, Source], None]
_EXPORTS = {
    "TORCH_FR_BUFFER_SIZE": "2000",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
    "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000",
    "NCCL_DEBUG": "INFO",
    "NCCL_DEBUG_SUBSYS": "INIT,NET,COLL",
}


def _unwatched(reading: Reading, source: Source) -> None:
    """Nobody looks."""


def diagnose(
    paths: Sequence[str],
    watch: Watch = _unwatched,
    adapters: Adapters = ADAPTERS,
) -> list[Diagnosis]:
    """One answer for each attempt, oldest first; the last is the main one.

    Raises `UnusableInput` where a path does not exist or nothing in it could be opened.
    """
    return diagnose_reading(read(paths, watch, adapters))


def read(paths: Sequence[str], watch: Watch = _unwatched, adapters: Adapters = ADAPTERS) -> Reading:
    """Facts of every file below `paths`, in bounded memory however many dumps there are."""
    return read_inputs(paths, adapters, watch, FoldAsRead())


def diagnose_reading(reading: Reading) -> list[Diagnosis]:
    """As `diagnose`, of what has been read."""
    return [answer(case, reading) for case in split_attempts(reading.facts)]


def answer(case: Case, reading: Reading) -> Diagnosis:
    """The diagnosis of one case."""
    finding = decide(case)
    undecided = finding.verdict_class is VerdictClass.INCONCLUSIVE
    calm = finding.verdict_class is VerdictClass.NONE
    return Diagnosis(
        verdict_class=finding.verdict_class,
        sub_reason=finding.sub_reason,
        roots=finding.roots,
        victims=() if calm else _victims(case, finding),
        communicator=finding.communicator,
        operation=finding.operation,
        phase=finding.phase,
        owner=finding.owner,
        action=finding.action,
        confidence=finding.confidence,
        seen=_seen(case, reading, finding.coverage),
        grounds=finding.grounds,
        summary=finding.summary,
        would_decide=finding.would_decide,
        export_next=dict(_EXPORTS) if undecided or finding.would_decide else {},
        attempt=case.attempt,
        attempts=case.attempts,
    )


def _victims(case: Case, finding: Finding) -> tuple[int, ...]:
    blamed = {root.rank for root in finding.roots} | {rank for root in finding.roots for rank in root.ranks}
    victims = complaining(case) if finding.victims is None else finding.victims
    return tuple(rank for rank in victims if rank not in blamed)[:VICTIMS_MAX]


def _seen(case: Case, reading: Reading, coverage: Coverage | None) -> Seen:
    notes = [*reading.skipped.notes, *_of_recordings(case)]
    notes += [f"{name}: nothing recognised" for name in reading.unread]
    if reading.facts_dropped:
        notes.append(f"{reading.facts_dropped} facts beyond the bound were dropped")
    dumps = {rank for dump in case.of(FlightDump) if (rank := case.rank_of(dump)) is not None}
    if dumps and case.world_size:
        missing = sorted(set(range(case.world_size)) - dumps)
        if missing:
            shown = ", ".join(map(str, missing[:16])) + (" ..." if len(missing) > 16 else "")
            notes.append(f"no dump of {len(missing)} of {case.world_size} ranks: {shown}")
    return Seen(
        ranks_expected=case.world_size if coverage is None else coverage.ranks_expected,
        ranks_reporting=len(case.ranks_named) if coverage is None else coverage.ranks_reporting,
        sources=tuple(sorted(reading.sources)),
        files_read=reading.files,
        files_skipped=reading.skipped.files,
        notes=tuple(notes[:NOTES_MAX]),
    )


def _of_recordings(case: Case) -> tuple[str, ...]:
    if not case.of(RecordedSamples):
        return ()
    from paceline.analysis.diagnosis.rules import recorded

    return recorded.notes(case)
