"""The state of one stall episode: what is suspected, when to publish again, when it is over."""

from dataclasses import dataclass, field

import numpy as np

from paceline.analysis.detection.arrays import SECOND_NS, U64
from paceline.analysis.detection.members import Members
from paceline.analysis.detection.reasons import Reason
from paceline.analysis.detection.stall import NO_HEAD, StallView

TRACKED_MAX = 1024  # stalled communicators followed one by one; more add nothing to the verdict
_FREQUENT_S, _OFTEN_S = 15, 60  # publish every second, then every 5 s, then every 15 s


@dataclass
class Tracked:
    """One suspected communicator."""

    round: int  # 0 for point-to-point
    reason: Reason
    calm_ticks: int = 0


@dataclass
class Suspicion:
    """Empty while the job is healthy."""

    since_ns: int = 0
    tracked: dict[int, Tracked] = field(default_factory=dict)
    process_dead: bool = False
    dead_calm_ticks: int = 0  # ticks in a row in which no process was dead any more
    host_wait: bool = False
    first: tuple[int, int] = (0, 0)  # (communicator, round) that opened the episode
    published_ns: int = 0
    digest: int = 0

    @property
    def active(self) -> bool:
        return bool(self.tracked) or self.process_dead or self.host_wait

    @property
    def is_calm(self) -> bool:
        """Everything suspected has moved on, only not yet often enough to say that it is over."""
        if self.host_wait or (self.process_dead and self.dead_calm_ticks == 0):
            return False
        return all(entry.calm_ticks > 0 for entry in self.tracked.values())

    def note(self, members: Members, view: StallView, now_ns: int) -> int:
        """Add what is stalled now; how many communicators are beyond the bound."""
        stalls = view.stalls()
        refused = max(len(stalls) - TRACKED_MAX, 0)
        for index in stalls[:TRACKED_MAX]:
            comm = int(members.comms[index])
            known = self.tracked.get(comm)
            head = view.head[index]
            stalled_round = 0 if head == NO_HEAD else int(head)
            if known is None:
                if len(self.tracked) >= TRACKED_MAX:
                    refused += 1
                    continue
                self._open((comm, stalled_round), now_ns)
                self.tracked[comm] = Tracked(stalled_round, Reason(int(view.reason[index])))
            else:
                known.reason, known.calm_ticks = Reason(int(view.reason[index])), 0
                known.round = max(known.round, stalled_round)
        return refused

    def note_process(
        self, now_ns: int, *, dead: bool, revived: bool, host_wait: bool, calm_ticks_min: int
    ) -> None:
        """Processes that died in disorder (over again: `revived`), host waits beyond the backstop.

        A death is forgotten after `calm_ticks_min` ticks in which every process was there again.
        """
        if dead or host_wait:
            self._open((0, 0), now_ns)
        self.dead_calm_ticks = self.dead_calm_ticks + 1 if self.process_dead and revived else 0
        self.process_dead = (self.process_dead or dead) and self.dead_calm_ticks < calm_ticks_min
        if not self.process_dead:
            self.dead_calm_ticks = 0
        self.host_wait = host_wait

    def settle(self, members: Members, view: StallView, calm_ticks_min: int) -> None:
        """Forget communicators that left their stalled round behind for `calm_ticks_min` ticks."""
        for comm, tracked in list(self.tracked.items()):
            tracked.calm_ticks = tracked.calm_ticks + 1 if self._moved(members, view, comm, tracked) else 0
            if tracked.calm_ticks >= calm_ticks_min:
                del self.tracked[comm]

    def due(self, digest: int, now_ns: int) -> bool:
        """Whether to publish at this tick: at once on change, else less and less often."""
        age_s = (now_ns - self.since_ns) // SECOND_NS
        wait_s = 1 if age_s < _FREQUENT_S else 5 if age_s < _OFTEN_S else 15
        if digest == self.digest and self.published_ns and now_ns - self.published_ns < wait_s * SECOND_NS:
            return False
        self.digest, self.published_ns = digest, now_ns
        return True

    def _open(self, first: tuple[int, int], now_ns: int) -> None:
        if not self.active:
            self.first, self.since_ns, self.published_ns = first, now_ns, 0

    @staticmethod
    def _moved(members: Members, view: StallView, comm: int, tracked: Tracked) -> bool:
        index = int(members.find_communicators(_one(comm))[0])
        if index < 0 or not view.live[index] or view.stalled[index]:
            return False
        if tracked.round == 0:
            return int(view.idle_ms[index]) < 2000 or view.age_ms[index] == 0
        head = view.head[index]
        return int(view.advanced[index]) >= tracked.round and (head == NO_HEAD or int(head) > tracked.round)


def _one(comm: int) -> U64:
    return np.array([comm], np.uint64)
