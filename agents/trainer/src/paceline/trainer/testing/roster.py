"""What a `LocalController` knows of a job, and what it decides; pure, times are given.

The platform's remediator decides with incidents, policies and a database. This one has the rules that
tests of a training script need: fence, then a standby, else a cold joiner, else an explicit fallback.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from paceline.contracts.recovery import ChildExit, Member, SupervisorHello

RETRIES_MAX = 2  # in place; the next transient within RETRIES_WITHIN_S replaces whoever caused it
UNNAMED_MAX = 3  # further ones where nothing names who causes them
RETRIES_WITHIN_S = 600.0
ATTEMPTS_MAX = 3  # of one generation
FRUITLESS_MAX = 5  # generations in a row in which no step was done


@dataclass
class Known:
    """One supervisor."""

    hello: SupervisorHello
    exit: ChildExit | None = None

    @property
    def alive(self) -> bool:
        return self.exit is None and self.hello.child_pid > 0

    @property
    def standby(self) -> bool:
        return self.hello.rank < 0


@dataclass(frozen=True)
class Plan:
    """The members of the next generation, whom to fence first, and why; or, without members, the end."""

    members: tuple[Member, ...]
    store: str
    reason: str
    fence: tuple[str, ...] = ()
    retry: bool = False
    fallback: str = ""


@dataclass
class Recovery:
    """One that is under way; times are of the controller's clock."""

    plan: Plan
    generation: int
    attempt_no: int
    lost: tuple[int, ...]
    fencing: set[str]
    deadline_s: float
    sent: bool = False
    orders: set[str] = field(default_factory=set)  # of the newest attempt
    restored: set[str] = field(default_factory=set)  # members that have answered it
    stepped: set[int] | None = None


@dataclass
class Transients:
    """Transient errors of one job, for the rule of three."""

    seen_s: list[float] = field(default_factory=list)

    def is_permanent(self, now_s: float) -> bool:
        """Count one more; whether it is one too many."""
        self.seen_s = [at for at in self.seen_s if now_s - at < RETRIES_WITHIN_S]
        self.seen_s.append(now_s)
        return len(self.seen_s) > RETRIES_MAX

    @property
    def hopeless(self) -> str:
        """Why another retry cannot help, where nobody was named; empty where it may."""
        count = len(self.seen_s)
        return f"{count} transients, nothing names the cause" if count > RETRIES_MAX + UNNAMED_MAX else ""


def members_of(known: Sequence[Known], world_size: int) -> dict[int, Known]:
    """Who has which rank now: of several that claim one, the one of the newest generation."""
    found: dict[int, Known] = {}
    for one in sorted(known, key=lambda one: (one.hello.generation, one.alive)):
        if 0 <= one.hello.rank < world_size:
            found[one.hello.rank] = one
    return found


def plan_retry(by_rank: dict[int, Known], attempt_no: int = 0) -> Plan:
    """The same members once more."""
    members = tuple(_member(rank, one) for rank, one in sorted(by_rank.items()))
    return Plan(members, _store(by_rank, attempt_no), "transient: the same members once more", retry=True)


def plan_replacement(
    by_rank: dict[int, Known], lost: Sequence[int], standbys: Sequence[Known], attempt_no: int = 0
) -> Plan:
    """Replace the ranks `lost`: by ready standbys, else by a fresh process under the same supervisor.

    `by_rank` are the members of the generation that broke. The store is that of a survivor, of another
    one at each attempt.
    """
    survivors = {rank: one for rank, one in by_rank.items() if rank not in lost}
    if not survivors:
        return Plan((), "", "", fallback="no member is left")
    ready = sorted(
        (one for one in standbys if one.alive and one.hello.ready), key=lambda one: one.hello.member
    )
    members = {rank: _member(rank, one) for rank, one in survivors.items()}
    fence: list[str] = []
    how = "a standby"
    for rank in sorted(lost):
        gone = by_rank.get(rank)
        if gone is not None and gone.alive:
            fence.append(gone.hello.member)
        if ready:
            members[rank] = _member(rank, ready.pop(0))
        elif gone is not None:
            members[rank] = _member(rank, gone)
            how = "a fresh process"
        else:
            return Plan((), "", "", fallback=f"rank {rank} is lost and nothing can take its place")
    reason = f"rank {','.join(map(str, sorted(lost)))} is lost: {how} takes its place"
    ordered = tuple(members[rank] for rank in sorted(members))
    return Plan(ordered, _store(survivors, attempt_no), reason, tuple(fence))


def _store(survivors: dict[int, Known], attempt_no: int) -> str:
    stores = [one.hello.store for _, one in sorted(survivors.items()) if one.hello.store]
    return stores[attempt_no % len(stores)] if stores else ""


def _member(rank: int, one: Known) -> Member:
    return Member(rank, one.hello.member, one.hello.replica, one.hello.failure_domain)
