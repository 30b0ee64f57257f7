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
from paceline.agent.wire import MessageError, check_hello, is_complete
from paceline.contracts.agent_socket import Hello

FILE_BYTES_MAX = 8 << 20


@dataclass(frozen=True)
class SavedProcess:
    hello: Hello
    uid: int
    pid: int  # as the agent sees it
    started_unix_s: float  # of its job


_ADAPTER = TypeAdapter(list[SavedProcess])


class RosterFile:
    """Reads and writes one file; neither ever raises."""

    def __init__(self, path: Path) -> None:
        self.failures = 0
        self._path = path
        self._written = b""

    def save(self, roster: Roster) -> None:
        """Write the living processes that the agent can see, if they changed."""
        saved = [
            SavedProcess(p.hello, p.uid, p.pid, roster.jobs[p.key].started_unix_s)
            for p in roster.processes.values()
            if p.exit is None and p.pid
        ]
        data = _ADAPTER.dump_json(saved)
        if data == self._written:
            return
        self._written = data
        temporary = self._path.with_suffix(".new")
        try:
            temporary.write_bytes(data)
            temporary.replace(self._path)
        except OSError:
            self.failures += 1

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
        try:
            with open(self._path, "rb") as file:
                found = _ADAPTER.validate_json(file.read(FILE_BYTES_MAX))
        except FileNotFoundError:
            return []
        except (OSError, ValidationError):
            self.failures += 1
            return []
        return [saved for saved in found if saved.pid > 0 and _is_valid(saved.hello)]


def _is_valid(hello: Hello) -> bool:
    try:
        check_hello(hello)
    except MessageError:
        return False
    return is_complete(hello)
