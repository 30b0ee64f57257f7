"""How a process and a job ended: pure, from what is known and honest about what is not."""

import signal
from collections.abc import Sequence
from dataclasses import dataclass

from paceline.agent.process import exit_code_of
from paceline.contracts.codes import ExitKind
from paceline.contracts.registry import JobState

CANCEL_SIGNALS = (signal.SIGTERM, signal.SIGINT)
CANCEL_WINDOW_S = 10.0


@dataclass(frozen=True)
class Exit:
    """The end of one process. `code` is the exit status or minus the signal, None where unknown."""

    kind: ExitKind
    code: int | None
    reason: str  # for people: what is known and from where
    told_to_stop: bool = False


@dataclass(frozen=True)
class Ended:
    """One local rank for the judgement of its job; `at_ns` is the agent's own clock."""

    rank: int
    exit: Exit
    at_ns: int


def explain_exit(
    wait_status: int | None, goodbye: str | None, goodbye_message: str, page_finished: bool
) -> Exit:
    """Best knowledge first: the kernel's status, the process's own goodbye, the page."""
    said_stop = goodbye == "terminated"
    message = f": {goodbye_message}" if goodbye_message else ""
    if wait_status is not None:
        return _from_status(exit_code_of(wait_status), goodbye, message)
    if goodbye == "finished":
        return Exit(ExitKind.CLEAN, None, "said goodbye without an error; exit status not readable")
    if goodbye == "error":
        return Exit(ExitKind.ERROR, None, f"said goodbye after an error{message}; exit status not readable")
    if said_stop:
        return Exit(ExitKind.SIGNAL, None, f"said goodbye when told to stop{message}", told_to_stop=True)
    if page_finished:
        return Exit(ExitKind.CLEAN, None, "its page says it ended without an error; exit status not readable")
    return Exit(ExitKind.UNKNOWN, None, "ended without a goodbye; exit status not readable")


def _from_status(code: int, goodbye: str | None, message: str) -> Exit:
    if code == 0:
        return Exit(ExitKind.CLEAN, 0, "exited with status 0", told_to_stop=goodbye == "terminated")
    if code > 0:
        # A shell or a handler turns signal N into status 128 + N.
        told = goodbye == "terminated" or code - 128 in CANCEL_SIGNALS
        return Exit(ExitKind.ERROR, code, f"exited with status {code}{message}", told_to_stop=told)
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return Exit(ExitKind.SIGNAL, code, f"killed by {name}", told_to_stop=-code in CANCEL_SIGNALS)


def is_cancelled(ended: Sequence[Ended], stopping: Sequence[tuple[int, int]], local_ranks: int) -> bool:
    """Whether most local ranks were told to stop within the window, and none had failed before.

    `stopping` are (rank, ns) of living processes that said they are being terminated. A launcher
    also terminates the others after one rank has failed: then the failure comes first.
    """
    told = sorted([(e.at_ns, e.rank) for e in ended if e.exit.told_to_stop] + [(ns, r) for r, ns in stopping])
    if not told:
        return False
    failed = [
        e.at_ns
        for e in ended
        if not e.exit.told_to_stop and e.exit.kind in (ExitKind.ERROR, ExitKind.SIGNAL, ExitKind.UNKNOWN)
    ]
    window_ns = int(CANCEL_WINDOW_S * 1e9)
    # The newest window: an early lone termination does not count for later ones.
    newest = told[-1][0]
    within = {rank for ns, rank in told if newest - ns <= window_ns}
    first = min(ns for ns, rank in told if rank in within)
    return len(within) * 2 > local_ranks and not any(ns <= first for ns in failed)


def judge_end(ended: Sequence[Ended], cancelled: bool) -> tuple[JobState, str]:
    """State and reason of a job whose local processes have all ended."""
    if cancelled:
        return JobState.CANCELLED, "most ranks were told to stop within 10 s"
    bad = sorted((e for e in ended if e.exit.kind is not ExitKind.CLEAN), key=lambda e: (e.at_ns, e.rank))
    if not ended:
        return JobState.FINISHED, "its processes went on under another name"
    if not bad:
        unread = sum(e.exit.code is None for e in ended)
        if unread:
            text = f"all {len(ended)} local ranks ended without an error"
            return JobState.ENDED, f"{text}; exit status of {unread} not readable"
        return JobState.FINISHED, f"all {len(ended)} local ranks exited with status 0"
    first = bad[0]
    others = f"; {len(bad) - 1} more did not end in order" if len(bad) > 1 else ""
    return JobState.FAILED, f"rank {first.rank} {first.exit.reason}{others}"
