"""What the engine of the live system says of recordings (`paceline run --record`), in its own classes."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone

from paceline.analysis.detection import Gate
from paceline.analysis.detection.arrays import SECOND_NS
from paceline.analysis.diagnosis.answer import Ground
from paceline.analysis.diagnosis.case import Case
from paceline.analysis.diagnosis.recorded import Recording, replay
from paceline.analysis.diagnosis.rules import ends, live
from paceline.analysis.diagnosis.rules.finding import Finding
from paceline.analysis.facts import Membership, Origin, RecordedSamples
from paceline.analysis.judge import Judgement
from paceline.analysis.replay import Span
from paceline.contracts.registry import JobState
from paceline.contracts.verdicts import Action, ActionKind, Owner, SubReason, VerdictClass

OPEN_S_MIN = 5.0  # a wait at the end of a recording that is worth a word: the floor of a stall
EARLY_S = 30.0  # in the first steps, where detection waits for two minutes, a wait of this age is judged
EARLY_TRUST = 0.8
PAST_S_MIN = 30.0  # what was slow or stood still for less, and then went on, is not what people ask about
_ENDS = ("dead", "frozen", "lost_node", "hardware", "mismatch_behind_death")
_CALM = (VerdictClass.NONE, VerdictClass.INCONCLUSIVE)
_MEMO = "recording"


@dataclass(frozen=True)
class _Answer:
    """What decides, and when it was judged."""

    judgement: Judgement
    judged_ns: int
    since_ns: int
    until_ns: int | None = None  # it went on after that


def decided(case: Case) -> Finding | None:
    """What stood still or was slow to the end of the recording; anything, where there is nothing else."""
    recording = _recording(case)
    if recording is None:
        return None
    answer = _unsolved(recording)
    if answer is not None:
        return _with_logs(case, _finding(case, recording, answer))
    if any(not isinstance(fact, (RecordedSamples, Membership)) for fact in case.facts):
        return None
    return past(case) or undecided(case) or calm(case)


def past(case: Case) -> Finding | None:
    """What was slow or stood still for a while and went on."""
    recording = _recording(case)
    if recording is None:
        return None
    spans = [
        span
        for span in recording.replayed.spans
        if span.progressed
        and span.verdict.verdict_class not in _CALM
        and _length_s(recording, span) >= PAST_S_MIN
    ]
    if not spans:
        return None
    longest = max(spans, key=lambda span: _length_s(recording, span))
    answer = _Answer(longest.judgement, longest.judged_ns, _since_ns(longest), longest.ended_ns)
    return _finding(case, recording, answer)


def undecided(case: Case) -> Finding | None:
    """Something stands still, and the recording does not say why."""
    recording = _recording(case)
    if recording is None:
        return None
    for span in reversed(recording.replayed.spans):
        if not span.progressed and span.verdict.verdict_class is VerdictClass.INCONCLUSIVE:
            return _finding(case, recording, _Answer(span.judgement, span.judged_ns, _since_ns(span)))
    last = recording.replayed.last
    if last.verdict.verdict_class is VerdictClass.INCONCLUSIVE:
        return _finding(case, recording, _Answer(last, recording.last_ns, recording.last_ns))
    return _cut_short(case, recording, last)


def _cut_short(case: Case, recording: Recording, last: Judgement) -> Finding | None:
    """Ranks wait where the recording ends, for too short a time to say that they would have waited on."""
    verdict = last.verdict
    if not _is_early_wait(recording, last):
        return None
    since_ns = recording.last_ns - int(verdict.stalled_s * SECOND_NS)
    found = _finding(case, recording, _Answer(last, recording.last_ns, since_ns))
    return replace(
        found,
        reason="recorded_cut_short",
        verdict_class=VerdictClass.INCONCLUSIVE,
        sub_reason=SubReason.MISSING_EVIDENCE,
        roots=(),
        owner=Owner.UNKNOWN,
        action=Action(ActionKind.COLLECT, "", "let it wait longer before it is ended"),
        confidence=round(verdict.confidence * verdict.stalled_s / EARLY_S / 2, 3),
        summary=f"The recording ends {verdict.stalled_s:.0f} s into a wait in the first steps of the job, "
        f"where this may be normal; if it is not: {verdict.summary}",
        would_decide=(f"a recording of at least {EARLY_S:.0f} s of the wait",),
    )


def calm(case: Case) -> Finding | None:
    """The recording shows the whole job, and nothing that stood still or was slow."""
    recording = _recording(case)
    if recording is None:
        return None
    job = recording.replayed.job
    over = job is not None and job.state.is_orderly_end
    how = job.state.value if job is not None and job.state is not JobState.STARTING else "running"
    count = len(recording.replayed.spans)
    before = f"; {count} shorter waits or slow spells were over before" if count else ""
    return Finding(
        reason="recorded_calm",
        verdict_class=VerdictClass.NONE,
        victims=(),
        owner=Owner.UNKNOWN,
        action=Action(ActionKind.NONE, "", "the samples show no communication fault"),
        confidence=0.9 if over else 0.6,
        grounds=(_scope(case, recording),),
        summary=f"Nothing stands still or is slow where the recording ends, at {_clock(recording.last_ns)} "
        f"UTC; the job is {how}{before}",
    )


def notes(case: Case) -> tuple[str, ...]:
    """What the recordings lack."""
    recording = _recording(case)
    if recording is None:
        return ()
    found = list(recording.notes)
    if recording.left_out:
        found.append(
            f"{recording.left_out} samples before {_clock(recording.first_ns)} UTC were not replayed"
        )
    if recording.unreadable:
        found.append(f"{recording.unreadable} recorded samples could not be read")
    return tuple(found)


def _recording(case: Case) -> Recording | None:
    """Replayed once for each case."""
    parts = case.of(RecordedSamples)
    if not parts:
        return None
    if _MEMO not in case.memo:
        case.memo[_MEMO] = replay(parts)
    found = case.memo[_MEMO]
    assert found is None or isinstance(found, Recording)
    return found


def _unsolved(recording: Recording) -> _Answer | None:
    """A stall first: it explains the death of who was killed for it. Then how it ended, then slowness."""
    spans = [s for s in recording.replayed.spans if not s.progressed and s.verdict.verdict_class not in _CALM]
    stalls = [span for span in spans if not span.slow]
    if stalls:
        return _Answer(stalls[-1].judgement, stalls[-1].judged_ns, _since_ns(stalls[-1]))
    last = _last(recording)
    if last is not None:
        return last
    slow = [span for span in spans if span.slow]
    return _Answer(slow[-1].judgement, slow[-1].judged_ns, _since_ns(slow[-1])) if slow else None


def _last(recording: Recording) -> _Answer | None:
    """The newest state, where it says what needs no limit; and a long wait in the first steps."""
    last = recording.replayed.last
    verdict = last.verdict
    if verdict.verdict_class in _CALM or verdict.verdict_class.is_slow:
        return None
    since_ns = recording.last_ns - int(verdict.stalled_s * SECOND_NS)
    if last.stage in _ENDS or verdict.verdict_class is VerdictClass.H2:
        return _Answer(last, recording.last_ns, since_ns)
    if not _is_early_wait(recording, last) or verdict.stalled_s < EARLY_S:
        return None
    trusted = replace(verdict, confidence=round(verdict.confidence * EARLY_TRUST, 3))
    return _Answer(replace(last, verdict=trusted), recording.last_ns, since_ns)


def _is_early_wait(recording: Recording, last: Judgement) -> bool:
    """Later the limits of detection are short, and a wait that no signal has reported is a usual one."""
    verdict = last.verdict
    waits = verdict.verdict_class not in _CALM and not verdict.verdict_class.is_slow
    return waits and recording.replayed.gates == {Gate.WARMUP} and verdict.stalled_s >= OPEN_S_MIN


def _finding(case: Case, recording: Recording, answer: _Answer) -> Finding:
    verdict = answer.judgement.verdict
    places = _places(recording, answer.judged_ns, {root.node for root in verdict.roots if root.node})
    until = f" until {_clock(answer.until_ns)} UTC, and is over" if answer.until_ns is not None else ""
    verb = "is slow" if verdict.verdict_class.is_slow else "stands"
    when = f"it {verb} since {_clock(answer.since_ns)} UTC{until}; judged at {_clock(answer.judged_ns)} UTC"
    said = [Ground(each.rule, each.statement, places, each.supports) for each in verdict.evidence]
    grounds = (*said[:1], Ground("recorded", when, places), *said[1:], _scope(case, recording))
    found = live.finding_of(case, answer.judgement, grounds)
    if answer.until_ns is None:
        return found
    return replace(found, summary=f"{found.summary}; over since {_clock(answer.until_ns)} UTC")


def _with_logs(case: Case, found: Finding) -> Finding:
    """Logs say why a process died, and with it whose it is and what to do."""
    if found.verdict_class is not VerdictClass.DEAD_PROCESS:
        return found
    for rule in (ends.own_failure, ends.killed):
        said = rule(case)
        if said is not None and _ranks(said) & _ranks(found):
            words = f"{found.summary} ({said.grounds[0].statement})"
            return replace(found, owner=said.owner, action=said.action, summary=words)
    return found


def _ranks(finding: Finding) -> set[int]:
    return {rank for root in finding.roots for rank in (root.rank, *root.ranks) if rank is not None}


def _scope(case: Case, recording: Recording) -> Ground:
    ranks = len(case.ranks_named)
    of = f" of {case.world_size}" if case.world_size else ""
    files = sorted({part.origin.file for part in case.of(RecordedSamples)})
    return Ground(
        "recording",
        f"{recording.samples} samples of {ranks}{of} ranks, {_clock(recording.first_ns)} to "
        f"{_clock(recording.last_ns)} UTC, job {recording.job}, attempt {recording.run}",
        tuple(Origin(file) for file in files[:4]),
    )


def _places(recording: Recording, judged_ns: int, nodes: Sequence[str] | set[str]) -> tuple[Origin, ...]:
    """The samples that were newest when it was judged, of the nodes that are named, else of all."""
    known = recording.places.get(judged_ns, recording.newest)
    mine = [known[node] for node in sorted(nodes) if node in known]
    return tuple(mine or [known[node] for node in sorted(known)])[:4]


def _since_ns(span: Span) -> int:
    return span.opened_ns - (0 if span.slow else int(span.first_stalled_s * SECOND_NS))


def _length_s(recording: Recording, span: Span) -> float:
    ended = recording.last_ns if span.ended_ns is None else span.ended_ns
    return (ended - _since_ns(span)) / SECOND_NS


def _clock(time_ns: int | None) -> str:
    """`2026-11-30 02:10:05`; the day always: a recording may be read weeks later."""
    try:
        moment = datetime.fromtimestamp((time_ns or 0) // SECOND_NS, timezone.utc)
    except (OverflowError, OSError, ValueError):
        return "an unknown time"
    return moment.strftime("%Y-%m-%d %H:%M:%S")
