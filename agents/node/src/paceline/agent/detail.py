"""How much detail the probes of a job are asked for: by a signed command, or by this agent's own rule where
an operation stands still. Always for a bounded time, then back to the default (docs/adr/0037)."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from paceline.agent.pages import PageView
from paceline.agent.processes import Process
from paceline.agent.registry import JobKey
from paceline.agent.settings import AgentSettings
from paceline.contracts.codes import DetailLevel
from paceline.contracts.detail import DETAIL_S_MAX, KERNEL_EVENTS, LEVELS, STEP_EVENTS, DetailReport
from paceline.runtime.logging import get_logger
from paceline.runtime.metrics import count

HOUR_NS = 3_600_000_000_000
DEFAULT = DetailLevel.ROUNDS
log = get_logger(__name__)


class Why(str, Enum):
    """Why a job is at its level, and why the own rule did what it did."""

    QUIET = "quiet"
    STANDS_STILL = "stands_still"  # raised by this sample
    GOES_ON = "goes_on"  # still standing, within the bound
    HOLDS = "holds"  # moves again: what follows is seen in detail for a while
    SPENT = "spent"  # stood still for longer than the bound
    OFTEN = "often"  # raised too often in the last hour
    OFF = "off"  # the rule is not used
    COMMAND = "command"

    @property
    def raises(self) -> bool:
        return self in (Why.STANDS_STILL, Why.GOES_ON, Why.HOLDS)


@dataclass(frozen=True)
class DetailPolicy:
    """The own rule: `level` DEFAULT turns it off."""

    level: DetailLevel = DetailLevel.EDGES
    hold_ns: int = 60_000_000_000  # behind the last sample in which something stood still
    total_ns: int = 600_000_000_000  # in one go
    per_hour_max: int = 6
    standing_ns: int = 3_000_000_000

    @classmethod
    def of(cls, settings: AgentSettings) -> "DetailPolicy":
        return cls(
            LEVELS[settings.detail_level],
            int(settings.detail_hold_s * 1e9),
            int(settings.detail_s_max * 1e9),
            settings.detail_per_hour_max,
            int(settings.suspect_s * 1e9),
        )


@dataclass(frozen=True)
class OwnRule:
    """What the rule remembers of one job."""

    began_ns: tuple[int, ...] = ()  # of raises within the last hour
    until_ns: int = 0
    spent: bool = False  # the bound was reached and it stands still since


@dataclass(frozen=True)
class Asked:
    """The command in force for one job."""

    level: DetailLevel
    until_ns: int


def is_standing(view: PageView, now_ns: int, limit_ns: int) -> bool:
    """Whether an operation of this process stands still for `limit_ns` or longer.

    Where no source shows completion, the last operation of every communicator looks open for ever: there only
    a process that has entered nothing at all meanwhile counts.
    """
    if view.process["finished"]:
        return False
    before_ns, heads = now_ns - limit_ns, view.heads
    if 0 < heads.observed_round_ns <= before_ns:
        return True
    return 0 < heads.round_ns <= before_ns and heads.entered_ns <= before_ns


def decide_own(rule: OwnRule, now_ns: int, policy: DetailPolicy, *, standing: bool) -> tuple[OwnRule, Why]:
    """The rule after one sample, and why."""
    if policy.level <= DEFAULT:
        return OwnRule(), Why.OFF
    recent = tuple(began for began in rule.began_ns if now_ns - began < HOUR_NS)
    in_force = now_ns < rule.until_ns
    if not standing:
        rest = replace(rule, began_ns=recent, spent=False)
        return rest, Why.HOLDS if in_force else Why.QUIET
    if rule.spent:
        return replace(rule, began_ns=recent), Why.SPENT
    if in_force and recent:
        end_ns = recent[-1] + policy.total_ns
        if now_ns >= end_ns:
            return OwnRule(recent, now_ns, spent=True), Why.SPENT
        return OwnRule(recent, min(now_ns + policy.hold_ns, end_ns + 1)), Why.GOES_ON
    if len(recent) >= policy.per_hour_max:
        return OwnRule(recent, 0), Why.OFTEN
    return OwnRule((*recent, now_ns), now_ns + policy.hold_ns), Why.STANDS_STILL


def decide_level(why: Why, asked: Asked | None, now_ns: int, policy: DetailPolicy) -> tuple[DetailLevel, Why]:
    """The level of a job: a command's, unless the own rule wants more."""
    own = policy.level if why.raises else DEFAULT
    if asked is None or now_ns >= asked.until_ns:
        return own, why
    if why.raises and own > asked.level:
        return own, why
    return asked.level, Why.COMMAND


class DetailControl:
    """Writes the control pages of the jobs of this node. One event loop owns it; nothing waits."""

    def __init__(self, policy: DetailPolicy) -> None:
        self.raised: Counter[str] = Counter()  # by reason
        self._policy = policy
        self._rules: dict[JobKey, OwnRule] = {}
        self._asked: dict[JobKey, Asked] = {}
        self._levels: dict[JobKey, tuple[DetailLevel, Why]] = {}

    def level_of(self, key: JobKey) -> tuple[DetailLevel, Why]:
        return self._levels.get(key, (DEFAULT, Why.QUIET))

    @property
    def raised_jobs(self) -> int:
        """Jobs whose probes are asked for another level than the default."""
        return sum(level != DEFAULT for level, _ in self._levels.values())

    def ask(
        self, key: JobKey, level: DetailLevel, seconds: float, now_ns: int, processes: Iterable[Process]
    ) -> DetailReport:
        """Obey a command that was checked: from now on, and at most DETAIL_S_MAX."""
        living = [process for process in processes if process.page is not None]
        report = _report(living, level, self.level_of(key)[0])
        until_ns = now_ns + int(min(seconds, DETAIL_S_MAX) * 1e9)
        self._asked[key] = Asked(level, until_ns)
        why = Why.HOLDS if now_ns < self._rules.get(key, OwnRule()).until_ns else Why.QUIET
        self._settle(key, living, why, now_ns)
        return report

    def update(self, key: JobKey, processes: Sequence[Process], now_ns: int) -> None:
        """After a look at all pages of a job."""
        living = [process for process in processes if process.page is not None]
        views = [process.view for process in living if process.view is not None]
        standing = any(is_standing(view, now_ns, self._policy.standing_ns) for view in views)
        rule, why = decide_own(self._rules.get(key, OwnRule()), now_ns, self._policy, standing=standing)
        self._rules[key] = rule
        self._settle(key, living, why, now_ns)

    def forget(self, known: Iterable[JobKey]) -> None:
        """Jobs that are no more."""
        keep = set(known)
        for table in (self._rules, self._asked, self._levels):
            for key in [key for key in table if key not in keep]:
                del table[key]

    def _settle(self, key: JobKey, processes: Iterable[Process], why: Why, now_ns: int) -> None:
        asked = self._asked.get(key)
        if asked is not None and now_ns >= asked.until_ns:
            del self._asked[key]
            asked = None
        level, reason = decide_level(why, asked, now_ns, self._policy)
        before, _ = self.level_of(key)
        self._levels[key] = (level, reason)
        if level != before:
            self.raised[reason.value if level > before else "back"] += 1
            count("paceline.agent.detail_changes", level=level.name.lower(), reason=reason.value)
            log.info("detail_changed", job=key[0], level=level.name.lower(), reason=reason.value)
        for process in processes:
            process.request_detail(level)


def _report(living: Sequence[Process], level: DetailLevel, before: DetailLevel) -> DetailReport:
    headers = [process.view.process for process in living if process.view is not None]
    plugins = [header for header in headers if header["nccl_events"]]
    events = [int(header["nccl_events"]) for header in plugins]
    return DetailReport(
        processes=len(living),
        level=level,
        before_processes=sum(process.detail_asked == before for process in living),
        before=before,
        plugin=len(plugins),
        tier=min((int(header["nccl_tier"]) for header in plugins), default=0),
        kernels=sum(bool(bits & KERNEL_EVENTS) for bits in events),
        steps=sum(bool(bits & STEP_EVENTS) for bits in events),
        lowered=sum(int(header["nccl_lowered"]) for header in plugins),
        own_us=sum(int(header["nccl_own_ns"]) for header in plugins) // 1000,
    )
