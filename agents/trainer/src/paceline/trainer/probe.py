"""What the trainer needs of a probe page and of the agent, and how both are made.

The page is `paceline.probe.writer.Page`; Protocols keep the hook testable without a machine that
grants memfds and without an agent.
"""

from collections.abc import Callable
from typing import Protocol

from paceline.contracts.agent_socket import Goodbye, Hello, Message


class ProbePage(Protocol):
    """The writer of one process; every method may be called from any thread and none raises."""

    @property
    def page_fd(self) -> int: ...
    @property
    def control_fd(self) -> int: ...
    def open_communicator(
        self, comm: int, instance: int, comm_rank: int, nranks: int, global_rank: int, sources: int, /
    ) -> int: ...
    def close_communicator(self, slot: int, /) -> None: ...
    def add_flags(self, slot: int, flags: int, /) -> None: ...
    def enter(
        self,
        slot: int,
        function: int,
        dtype: int,
        reduce_op: int,
        peer: int,
        count: int,
        nbytes: int,
        signature_count: int,
        /,
    ) -> int: ...
    def returned(self, ticket: int, /) -> None: ...
    def complete(self, ticket: int, failed: bool, /) -> None: ...
    def settler(self, ticket: int, followed: dict[int, bool], /) -> Callable[[object], None]: ...
    def set_identity(
        self, job: str, attempt: str, global_rank: int, world_size: int, local_rank: int, /
    ) -> None: ...
    def set_phase(self, phase: int, name: str, /) -> None: ...
    def set_step(self, step: int, /) -> None: ...
    def set_host_wait(self, kind: int, name: str, rank: int, /) -> None: ...
    def beat(self) -> None: ...
    def count_error(self) -> None: ...
    def finish(self) -> None: ...


class Link(Protocol):
    """The connection to the agent; no method waits for the agent longer than it says."""

    def hello(self, hello: Hello) -> None: ...
    def send(self, message: Message) -> None: ...
    def close(self, goodbye: Goodbye, timeout_s: float) -> None: ...


class ProbeFactory(Protocol):
    """Makes the page and the link; OSError where the machine refuses, ImportError without the probe."""

    def page(
        self, job: str, attempt: str, rank: int, world_size: int, local_rank: int, framework: str
    ) -> ProbePage: ...
    def link(self, socket_path: str, page: ProbePage, hello: Hello) -> Link: ...


class NoLink:
    """Where there is no agent to talk to."""

    def hello(self, hello: Hello) -> None:
        return None

    def send(self, message: Message) -> None:
        return None

    def close(self, goodbye: Goodbye, timeout_s: float) -> None:
        return None


class NativeProbe:
    """The real thing: a sealed memfd and the unix socket of the agent."""

    def page(
        self, job: str, attempt: str, rank: int, world_size: int, local_rank: int, framework: str
    ) -> ProbePage:
        from paceline.probe.writer import Page

        return Page.create(job, attempt, rank, world_size, local_rank, framework)

    def link(self, socket_path: str, page: ProbePage, hello: Hello) -> Link:
        from paceline.probe.connection import AgentConnection

        connection = AgentConnection(socket_path, page.page_fd, page.control_fd, hello)
        connection.start()
        return connection
