"""One observed training process: its page, its state, and how it ended."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from paceline.agent.exits import Exit, explain_exit
from paceline.agent.pages import PageView
from paceline.agent.process import ProcessReading, ProcReader, read_exit_status
from paceline.agent.registry import JobKey
from paceline.agent.rows import Facts, RowMemory
from paceline.agent.socket_server import Connection
from paceline.contracts.agent_socket import Goodbye, Hello
from paceline.contracts.codes import DetailLevel, ExitKind, ProcessState


class Page(Protocol):
    """A mapped probe page. `read` raises PageFault and nothing else."""

    def read(self) -> PageView: ...

    def beat(self) -> None: ...

    def request_detail(self, level: DetailLevel) -> None: ...

    def close(self) -> None: ...


SWITCHES_EVERY = 5  # looks: no verdict rests on them
OpenPage = Callable[[int, int], Page]  # page fd, control fd: both belong to the page; raises PageFault


@dataclass(eq=False)
class Process:
    """A registered process. `pid` is 0 where the agent cannot see it."""

    key: JobKey
    hello: Hello
    uid: int
    pid: int
    pidfd: int | None
    page: Page | None
    connection: Connection | None
    memory: RowMemory = field(default_factory=RowMemory)
    view: PageView | None = None
    reading: ProcessReading = field(default_factory=lambda: ProcessReading(ProcessState.UNKNOWN))
    goodbye: Goodbye | None = None
    stopping_ns: int | None = None
    wait_status: int | None = None
    frozen_beats: int | None = None  # native beats when it was stopped, None while it is not
    exit: Exit | None = None
    pageless_ns: int | None = None  # when a sample first found no page
    detail: tuple[Page, DetailLevel] | None = None  # what was last asked for, through which page
    looks: int = 0

    @property
    def rank(self) -> int:
        return self.hello.rank

    @property
    def shown_pid(self) -> int:
        """The pid for people and records: the node's own where the agent sees it."""
        return self.pid or self.hello.pid

    @property
    def detail_asked(self) -> DetailLevel | None:
        """The level asked for through the page it has now, None before that."""
        return self.detail[1] if self.detail is not None and self.detail[0] is self.page else None

    def request_detail(self, level: DetailLevel) -> None:
        """Ask through the control page, once for each page and level: an earlier agent may have asked for
        another."""
        if self.page is None or self.detail_asked == level:
            return
        self.page.request_detail(level)
        self.detail = (self.page, level)

    @property
    def facts(self) -> Facts:
        end = self.exit
        return Facts(
            rank=self.rank,
            pid=self.shown_pid,
            pid_start=self.hello.pid_start,
            state=ProcessState.GONE if end else self.reading.state,
            cpu_ms=self.reading.cpu_ms,
            context_switches=self.reading.voluntary_switches,
            exit_kind=end.kind if end else ExitKind.NONE,
            exit_code=(end.code or 0) if end else 0,
        )

    def observe(self, proc: ProcReader) -> bool:
        """Take a new reading of `/proc`; whether the process still lives."""
        if self.pid == 0:
            return True
        is_due = self.looks == 0 or (self.looks + self.rank) % SWITCHES_EVERY == 0
        self.looks += 1
        known = None if is_due else self.reading.voluntary_switches
        reading = proc.read(self.pid, keep=True, switches=known)
        reused = self.hello.pid_start and reading.start_ticks and reading.start_ticks != self.hello.pid_start
        if reading.state is ProcessState.ZOMBIE and not reused:
            self.wait_status = reading.wait_status
        if reused or reading.state in (ProcessState.ZOMBIE, ProcessState.GONE):
            # The times of the last reading of the living process stay.
            return False
        self.reading = reading
        return True

    def conclude(self) -> Exit:
        """Explain the end from all that is known by now."""
        if self.wait_status is None and self.pidfd is not None:
            self.wait_status = read_exit_status(self.pidfd)
        finished = bool(self.view is not None and self.view.process["finished"])
        reason = self.goodbye.reason if self.goodbye else None
        message = self.goodbye.message[:300] if self.goodbye else ""
        self.exit = explain_exit(self.wait_status, reason, message, finished)
        return self.exit
