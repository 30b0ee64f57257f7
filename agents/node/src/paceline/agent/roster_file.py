"""The roster on disk, so that a restarted agent knows a process that cannot say hello again.

A frozen process does not reconnect, and one that died while there was no agent never will: the next
agent finds both here, checks pid and start time against `/proc`, and reports what it sees.
"""

from pathlib import Path

from pydantic import TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from paceline.agent.process import open_pidfd
from paceline.agent.processes import Process
from paceline.agent.roster import Roster
from paceline.agent.state_file import StateFile
from paceline.agent.wire import MessageError, check_hello, is_complete
from paceline.contracts.agent_socket import Hello


@dataclass(frozen=True)
class SavedProcess:
    hello: Hello
    uid: int
    pid: int  # as the agent sees it
    started_unix_s: float  # of its job


_ADAPTER = TypeAdapter(list[SavedProcess])


class RosterFile:
    """The living processes of a roster, on disk."""

    def __init__(self, path: Path) -> None:
        self.file = StateFile(path)
        self._saved: list[tuple[Hello, int, int, float]] | None = None

    def save(self, roster: Roster) -> None:
        """Write the living processes that the agent can see, if they changed."""
        living = [
            (p.hello, p.uid, p.pid, roster.jobs[p.key].started_unix_s)
            for p in roster.processes.values()
            if p.exit is None and p.pid
        ]
        if living == self._saved:  # at once: they are the same objects
            return
        failures = self.file.failures
        self.file.write(_ADAPTER.dump_json([SavedProcess(*process) for process in living]))
        self._saved = living if self.file.failures == failures else None

    def restore(self, roster: Roster, processes_max: int) -> int:
        """Enter what an earlier agent observed, without pages; returns how many."""
        count = 0
        for saved in self._load()[:processes_max]:
            hello = saved.hello
            key = (hello.job, hello.attempt)
            if (key, hello.rank) in roster.processes:
                continue
            pidfd = open_pidfd(saved.pid)
            process = Process(key, hello, saved.uid, saved.pid, pidfd, None, None)
            roster.join(process, key, hello).started_unix_s = saved.started_unix_s
            roster.watch(process)
            count += 1
        return count

    def _load(self) -> list[SavedProcess]:
        data = self.file.read()
        if not data:
            return []
        try:
            found = _ADAPTER.validate_json(data)
        except ValidationError:
            self.file.failures += 1
            return []
        return [saved for saved in found if saved.pid > 0 and _is_valid(saved.hello)]


def _is_valid(hello: Hello) -> bool:
    try:
        check_hello(hello)
    except MessageError:
        return False
    return is_complete(hello)
