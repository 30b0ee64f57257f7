"""Nothing to alarm anybody: work that had ended, pauses that were announced; and what cannot be decided."""

from collections.abc import Sequence

import numpy as np

from paceline.analysis.diagnosis.answer import Blame, Ground
from paceline.analysis.diagnosis.case import Case, is_before
from paceline.analysis.diagnosis.rules.finding import (
    Finding,
    complaining,
    main_operation,
    operation_text,
    origins_of,
    ranks_text,
)
from paceline.analysis.diagnosis.slow_rows import judge_rows
from paceline.analysis.diagnosis.slow_shifts import SCORE_MIN, find_shift, lower_noise, period_of
from paceline.analysis.facts import (
    DeviceEvent,
    Fact,
    FlightDump,
    GlooFailure,
    GroupStatus,
    HostKill,
    NetworkFailure,
    PhaseKind,
    PhaseSeen,
    ProcessEnd,
    ProcessFault,
    ProgressSeen,
    SampleRow,
    WatchdogStuck,
    WorkTimeout,
)
from paceline.contracts.verdicts import Action, ActionKind, Owner, RootKind, SubReason, VerdictClass

_PHASES_SHOWN = 16
_REQUESTS = (1, 2, 15)  # hang-up, interrupt, terminate: somebody asked for the end
_ROWS_MIN = 20
_PROGRESS_MIN = 2  # one step says that it was reached, not that steps go on
_SERIES_MIN = 8  # steps whose noise can be told
_FASTER = 0.3  # a job that became so much faster was slow before
_LONG = 1.5
_LOST = 0.05  # of the time, in long steps that nothing explains
_EVEN = 1.03  # longest over shortest step of a job that nothing slows


def finished(case: Case) -> Finding | None:
    """The work had ended when a watchdog complained: teardown, not a hang of the job."""
    ends = [fact for fact in case.of(PhaseSeen) if fact.kind is PhaseKind.FINISHED]
    stuck = case.of(WatchdogStuck)
    if not ends or complaining(case):
        return None
    after: list[Fact] = [*stuck]
    return Finding(
        reason="finished",
        verdict_class=VerdictClass.NONE,
        roots=(Blame(RootKind.NONE, name="the job had finished"),),
        victims=(),
        phase="teardown after the work was finished",
        owner=Owner.FRAMEWORK,
        action=Action(ActionKind.NONE, "", "count the job as a success"),
        confidence=0.85,
        grounds=(
            Ground("finished", ends[0].text[:160] or "the work was finished", (ends[0].origin,)),
            *(
                (Ground("teardown", f"{len(stuck)} watchdogs stuck afterwards", origins_of(after)),)
                if stuck
                else ()
            ),
        ),
        summary="The job had finished"
        + ("; watchdogs that got stuck while it released its resources" if stuck else ""),
    )


def announced(case: Case) -> Finding | None:
    """Progress goes on after every pause, and the pauses were announced."""
    phases, steps = case.of(PhaseSeen), case.of(ProgressSeen)
    troubled = bool(complaining(case) or _has(case, ProcessFault, WatchdogStuck, GroupStatus))
    if troubled or not steps or any(not end.clean for end in case.of(ProcessEnd)):
        return None
    if len({step.done for step in steps}) < _PROGRESS_MIN:
        return None
    times: dict[tuple[str, int | None], list[float]] = {}  # a bar over something else has another pace
    for step in steps:
        if step.step_s:
            times.setdefault((step.what, case.rank_of(step)), []).append(step.step_s)
    if not all(_is_even(paces, len(phases)) for paces in times.values()):
        return None
    last = steps[-1]
    pause = phases[-1] if phases and not phases[-1].ended else None
    if pause and pause.origin.file == last.origin.file and pause.origin.line > last.origin.line:
        return None
    names = ", ".join(sorted({phase.kind.value for phase in phases}))
    return Finding(
        reason="announced",
        verdict_class=VerdictClass.NONE,
        roots=(Blame(RootKind.NONE, name="no fault"),),
        victims=(),
        phase=names or "training",
        action=Action(ActionKind.NONE, "", "these pauses belong to the job"),
        confidence=0.8,
        grounds=(
            *(
                Ground("phase", phase.text[:120] or phase.kind.value, (phase.origin,))
                for phase in phases[:_PHASES_SHOWN]
            ),
            Ground("progress", f"steps go on: {last.what} {last.done}", (last.origin,)),
        ),
        summary=f"No incident: pauses are announced ({names}) and steps go on"
        if names
        else "No incident: steps go on",
    )


def _is_even(paces: list[float], phases: int) -> bool:
    """No lasting change of the step time, and long steps are few, regular, or belong to announced phases."""
    if len(paces) < _SERIES_MIN:
        return max(paces) <= _EVEN * min(paces)
    series = np.array(paces[1:])  # the first one warms up
    usual = float(np.median(series))
    noise = lower_noise(series, usual)
    if find_shift(series, noise, (_EVEN - 1) * usual) or find_shift(series[::-1], noise, _FASTER * usual):
        return False
    long = np.flatnonzero(series > max(_LONG * usual, usual + SCORE_MIN * noise))
    lost = float((series[long] - usual).sum())
    return lost <= _LOST * float(series.sum()) or len(long) <= phases or period_of(long.tolist()) > 0


def cancelled(case: Case) -> Finding | None:
    """A scheduler or a person ended everybody: nobody died first, nobody hung."""
    ends = [end for end in case.of(ProcessEnd) if end.signal in _REQUESTS]
    if (
        not ends
        or complaining(case)
        or any(end.signal not in _REQUESTS for end in case.of(ProcessEnd) if not end.clean)
    ):
        return None
    return _cancelled(ends)


def _cancelled(ends: Sequence[ProcessEnd]) -> Finding:
    return Finding(
        reason="cancelled",
        verdict_class=VerdictClass.NONE,
        roots=(Blame(RootKind.NONE, name="the job was cancelled"),),
        victims=(),
        phase="cancelled from outside",
        action=Action(ActionKind.NONE, "", "look at the scheduler: limit, preemption or request"),
        confidence=0.75,
        grounds=(Ground("cancelled", ends[0].text[:160], origins_of(ends)),),
        summary=f"The job was ended from outside: {ends[0].text.strip()[:120]}",
    )


def cancelled_first(case: Case) -> Finding | None:
    """The end was asked for before anybody complained: all that comes afterwards is the teardown."""
    ends = [end for end in case.of(ProcessEnd) if end.signal in _REQUESTS and not end.called_first]
    facts: list[Fact] = [*case.of(WorkTimeout), *case.of(ProcessFault), *case.of(WatchdogStuck)]
    facts += [*case.of(NetworkFailure), *case.of(GlooFailure), *case.of(DeviceEvent), *case.of(HostKill)]
    facts += [end for end in case.of(ProcessEnd) if end.signal not in _REQUESTS and not end.clean]
    asked = [end for end in ends if facts and all(is_before(end, fact) for fact in facts)]
    return _cancelled(asked) if asked else None


def steady(case: Case) -> Finding | None:
    """Rows of steps in which nothing is slow, and nobody who complains."""
    rows = [row for row in case.of(SampleRow) if row.kind == "steps"]
    troubled = bool(complaining(case) or _has(case, ProcessFault, WatchdogStuck))
    if len(rows) < _ROWS_MIN or troubled or judge_rows(case.facts, case.rank_of) is None:
        return None
    return Finding(
        reason="steady",
        verdict_class=VerdictClass.NONE,
        roots=(Blame(RootKind.NONE, name="no fault"),),
        victims=(),
        phase="training steps",
        action=Action(ActionKind.NONE, "", "steps are even"),
        confidence=0.7,
        grounds=(Ground("steps", f"{len(rows)} rows of steps, none slow", origins_of(rows)),),
        summary="No incident: steps are even over ranks and time",
    )


def undecided(case: Case) -> Finding:
    """The last rule: says what is seen and what would decide."""
    communicator, operation = main_operation(case)
    waiting = complaining(case)
    late = list(case.of(ProcessFault))
    missing = ["flight recorder dumps of all ranks", "the logs of all ranks, not of one"]
    if waiting:
        missing.append("stacks (py-spy) of the ranks that do not complain")
    what = (
        f"{ranks_text(waiting)} waited in {operation_text(operation)}"
        if waiting and operation
        else f"{ranks_text(waiting)} lost or missed a peer"
        if waiting
        else "nothing in the input says that anybody waits"
    )
    dumps = case.of(FlightDump)
    return Finding(
        reason="undecided",
        verdict_class=VerdictClass.INCONCLUSIVE,
        sub_reason=SubReason.MISSING_EVIDENCE,
        roots=(Blame(RootKind.NONE, name="cannot be named from this input"),),
        communicator=communicator,
        operation=operation,
        action=Action(ActionKind.COLLECT, "", missing[0]),
        confidence=0.3,
        grounds=(
            *((Ground("waiting", what, origins_of(case.of(WorkTimeout))),) if waiting else ()),
            *(
                Ground("consequence", f"later: {fault.text.strip()[:120]}", (fault.origin,), supports=False)
                for fault in late[:4]
            ),
            *((Ground("dumps", f"{len(dumps)} dumps", origins_of(dumps)),) if dumps else ()),
        ),
        summary=f"Not decided: {what}; the cause is not in these files",
        would_decide=tuple(missing),
    )


def _has(case: Case, *kinds: type[Fact]) -> bool:
    return any(case.of(kind) for kind in kinds)
