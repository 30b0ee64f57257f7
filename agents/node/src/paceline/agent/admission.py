"""Who may register as which rank: one pure decision with a named reason."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from paceline.contracts.agent_socket import Hello

ENTRIES_PER_PROCESS_MAX = 4  # ended processes are remembered while their job lives


@dataclass(frozen=True)
class PeerCredentials:
    """SO_PEERCRED. `pid` is 0 where the peer lives in a pid namespace that we cannot see."""

    pid: int
    uid: int
    gid: int


@dataclass(frozen=True)
class Holder:
    """The process that holds a rank now."""

    pid: int  # as the agent sees it; as the process sees itself where the agent cannot
    pid_start: int
    uid: int
    alive: bool


class Admission(str, Enum):
    """Why a process was let in or refused."""

    ACCEPTED = "accepted"
    RECONNECTED = "reconnected"
    REPLACED = "replaced"  # the rank's earlier process is gone
    NODE_FULL = "node_full"
    PID_MISMATCH = "pid_mismatch"
    START_MISMATCH = "start_mismatch"
    FOREIGN_JOB = "foreign_job"
    RANK_TAKEN = "rank_taken"
    WORLD_MISMATCH = "world_mismatch"
    NO_PAGE = "no_page"
    BAD_PAGE = "bad_page"

    @property
    def is_accepted(self) -> bool:
        return self in (Admission.ACCEPTED, Admission.RECONNECTED, Admission.REPLACED)


@dataclass(frozen=True)
class Situation:
    """All that the decision looks at."""

    peer: PeerCredentials
    own_pid: int | None  # pid of the peer in its own namespace, None where it cannot be read
    start_ticks: int  # of peer.pid as /proc says, 0 where it cannot be read
    job_owner_uid: int | None  # who registered a living attempt of this job first
    attempt_owner_uid: int | None  # who registered this attempt first, living or not
    attempt_world_size: int | None
    holder: Holder | None
    processes: int  # living
    entries: int  # living and ended
    processes_max: int


def decide_admission(hello: Hello, now: Situation) -> tuple[Admission, str]:
    """The decision and the sentence that the refused process is told."""
    peer = now.peer
    if peer.pid and hello.pid not in (peer.pid, now.own_pid):
        return Admission.PID_MISMATCH, f"hello names pid {hello.pid}, the socket belongs to pid {peer.pid}"
    if peer.pid and now.start_ticks and hello.pid_start and hello.pid_start != now.start_ticks:
        return (
            Admission.START_MISMATCH,
            f"hello names start {hello.pid_start} of pid {peer.pid}, /proc says {now.start_ticks}",
        )
    for owner in (now.attempt_owner_uid, now.job_owner_uid):
        if owner is not None and owner != peer.uid:
            return (
                Admission.FOREIGN_JOB,
                f"job {hello.job!r} was registered by uid {owner}, this process has uid {peer.uid}; "
                "choose another PACELINE_JOB_ID",
            )
    if now.attempt_world_size is not None and now.attempt_world_size != hello.world_size:
        return (
            Admission.WORLD_MISMATCH,
            f"attempt {hello.attempt!r} has {now.attempt_world_size} ranks, hello says {hello.world_size}; "
            "a job of another size needs another attempt",
        )
    return _decide_rank(hello, now)


def _decide_rank(hello: Hello, now: Situation) -> tuple[Admission, str]:
    holder = now.holder
    pid = now.peer.pid or hello.pid
    if holder is not None and holder.alive:
        if (holder.pid, holder.pid_start) == (pid, hello.pid_start):
            return Admission.RECONNECTED, ""
        return (
            Admission.RANK_TAKEN,
            f"rank {hello.rank} of job {hello.job!r} attempt {hello.attempt!r} is held by pid {holder.pid}",
        )
    if now.processes >= now.processes_max or now.entries >= ENTRIES_PER_PROCESS_MAX * now.processes_max:
        return (
            Admission.NODE_FULL,
            f"this agent observes {now.processes} processes and remembers {now.entries}, its bound; "
            "raise PACELINE_AGENT_PROCESSES_MAX",
        )
    return (Admission.REPLACED if holder is not None else Admission.ACCEPTED), ""


def job_owner(owners: Mapping[tuple[str, str], int], living: set[tuple[str, str]], job: str) -> int | None:
    """uid of the living attempts of `job`, None where none lives here."""
    for (name, attempt), uid in owners.items():
        if name == job and (name, attempt) in living:
            return uid
    return None
