"""Carries out the programs of one operation: one thread, non-blocking sockets, bounded waits."""

import select
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from paceline.collectives.host.errors import TimedOutError
from paceline.collectives.host.links import Operation, ReceiveLink, SendLink
from paceline.collectives.host.meter import ChannelState, Meter, News
from paceline.collectives.host.schedule import Edge, Program, Schedule, Step

# Counters and waits on the page are at most so old while an operation stands still.
WAIT_MS = 50
# Nothing tells when the last slices are acknowledged.
DRAIN_MS = 1
Floats = npt.NDArray[np.float32]


@dataclass
class _Cursor:
    """Where a program stands."""

    program: Program
    sends: frozenset[Edge]  # of all its steps
    at: int = 0

    @property
    def step(self) -> Step | None:
        return self.program[self.at] if self.at < len(self.program) else None


class Engine:
    """Owns the links. `run` is called by one thread at a time."""

    def __init__(
        self,
        sends: Iterable[SendLink],
        receives: Iterable[ReceiveLink],
        meter: Meter,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._sends = {link.edge: link for link in sends}
        self._receives = {link.edge: link for link in receives}
        self._meter = meter
        self._monotonic_ns = monotonic_ns
        self._moved_ns = 0  # last step of the operation
        self._poll = select.poll()
        links: list[SendLink | ReceiveLink] = [*self._sends.values(), *self._receives.values()]
        self._by_fd = {link.sock.fileno(): link for link in links}
        for fd in self._by_fd:
            self._poll.register(fd, select.POLLIN)
        self._watched = set(self._by_fd)  # registered
        self._writing: set[int] = set()  # of these, for POLLOUT too

    def run(self, schedule: Schedule, array: Floats, number: int, timeout_s: float) -> None:
        """All-reduce `array` in place as round `number`; HostCollectiveError where it cannot go on."""
        limit_ns = self._monotonic_ns() + int(timeout_s * 1e9)
        for edge, send in self._sends.items():
            send.begin(schedule.fill.get(edge, 0))
        for edge, receive in self._receives.items():
            receive.begin_receiving(schedule.fill.get(edge, 0), schedule.counts.get(edge, 0))
        operation = Operation(number, array.size)
        self._moved_ns = self._monotonic_ns()
        cursors = [_Cursor(*each) for each in zip(schedule.programs, schedule.sends, strict=True)]
        while True:
            for cursor in cursors:
                self._advance(cursor, array, operation)
            for send in self._sends.values():
                send.collect()
            draining = self._undelivered(cursors)
            blocked = self._blocked(cursors) | draining
            self._tell(blocked)
            if not blocked and all(cursor.step is None for cursor in cursors):
                self._rest()
                return
            self._check(blocked)
            if self._monotonic_ns() >= limit_ns:
                raise TimedOutError(f"round {number} is not over after {timeout_s:g} s")
            self._wait(blocked, DRAIN_MS if draining else WAIT_MS)

    def close(self) -> None:
        for link in self._by_fd.values():
            link.close()
        self._by_fd.clear()

    def _advance(self, cursor: _Cursor, array: Floats, operation: Operation) -> None:
        """As many steps as can be made now."""
        while (step := cursor.step) is not None and not self._missing(step):
            part = array[step.start : step.stop]
            for edge in step.receives:
                payload = self._receives[edge].take(operation, part.nbytes)
                incoming = np.frombuffer(payload, np.float32)
                if step.reduce:
                    part += incoming
                else:
                    part[:] = incoming
            if step.sends:
                outgoing = part.tobytes()
                for edge in step.sends:
                    self._sends[edge].post(operation, outgoing)
            cursor.at += 1
            self._moved_ns = 0  # now; the clock is read once it waits

    def _missing(self, step: Step) -> list[Edge]:
        """What this step waits for."""
        missing = [edge for edge in step.receives if not self._receives[edge].is_ready]
        missing += [edge for edge in step.sends if not self._sends[edge].credit]
        return missing

    def _blocked(self, cursors: list[_Cursor]) -> set[Edge]:
        return {edge for cursor in cursors if cursor.step is not None for edge in self._missing(cursor.step)}

    def _undelivered(self, cursors: list[_Cursor]) -> set[Edge]:
        """What a program waits for at its end: a link that was cut then holds up its sender, too."""
        ended = [cursor.sends for cursor in cursors if cursor.step is None]
        return {edge for sends in ended for edge in sends if not self._sends[edge].is_delivered}

    def _wait(self, blocked: set[Edge], timeout_ms: int) -> None:
        self._watch_writes()
        before_ns = self._monotonic_ns()
        self._moved_ns = self._moved_ns or before_ns
        events = self._poll.poll(timeout_ms)
        waited_ns = self._monotonic_ns() - before_ns
        for edge in blocked:
            self._link(edge).waited(waited_ns, before_ns - self._moved_ns)
        for fd, _ in events:
            link = self._by_fd[fd]
            link.on_readable()
            if isinstance(link, SendLink):
                link.flush()
            if link.closed:
                self._poll.unregister(fd)  # else it would be ready for ever
                self._watched.discard(fd)

    def _watch_writes(self) -> None:
        """Wake up for a socket that takes data again, and only while there is some."""
        for send in self._sends.values():
            fd = send.sock.fileno()
            if fd in self._watched and bool(send.unwritten) != (fd in self._writing):
                self._writing ^= {fd}
                wanted = select.POLLIN | select.POLLOUT if send.unwritten else select.POLLIN
                self._poll.modify(fd, wanted)

    def _check(self, blocked: set[Edge]) -> None:
        for edge in blocked:
            self._link(edge).check()

    def _link(self, edge: Edge) -> SendLink | ReceiveLink:
        return self._sends.get(edge) or self._receives[edge]

    def _tell(self, blocked: set[Edge]) -> None:
        """Bring the page up to date."""
        for link in self._by_fd.values():
            waiting = link.edge in blocked
            if link.news or waiting != link.waiting:
                state = ChannelState.WAITING if waiting else ChannelState.MOVING
                self._meter.advanced(link.edge, link.news, state)
                link.news, link.waiting = News(), waiting

    def _rest(self) -> None:
        for link in self._by_fd.values():
            self._meter.advanced(link.edge, News(), ChannelState.IDLE)
