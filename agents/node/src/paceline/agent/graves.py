"""Registry keys of ended jobs, on disk until their time is over; then each gets a tombstone.

The registry topic is compacted: what nobody deletes is read at every start of every service, for ever.
"""

from heapq import nsmallest
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from paceline.agent.state_file import StateFile

KEYS_MAX = 50_000  # at most 12 MB on disk
AT_ONCE_MAX = 100  # tombstones of one sample

_ADAPTER = TypeAdapter(dict[str, float])


class Graves:
    """Keys and when they may go, unix s. A key that is published again is in use again."""

    def __init__(self) -> None:
        self.changes = 0
        self._due: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._due)

    def dig(self, keys: list[str], due_unix_s: float) -> None:
        """`keys` may go at `due_unix_s`."""
        self._due |= dict.fromkeys(keys, due_unix_s)
        self.changes += 1

    def keep(self, key: str) -> None:
        """`key` is in use."""
        if self._due.pop(key, None) is not None:
            self.changes += 1

    def take_due(self, now_unix_s: float) -> list[str]:
        """Keys whose time is over, removed, at most AT_ONCE_MAX; beyond KEYS_MAX the earliest go early."""
        if not self._due:
            return []
        keys = [key for key, due in self._due.items() if due <= now_unix_s][:AT_ONCE_MAX]
        if not keys and len(self._due) > KEYS_MAX:
            keys = nsmallest(AT_ONCE_MAX, self._due, key=self._due.__getitem__)
        for key in keys:
            self.keep(key)
        return keys

    def dump(self) -> bytes:
        return _ADAPTER.dump_json(self._due)

    def load(self, data: bytes) -> None:
        """What an earlier agent dumped; ValidationError for anything else."""
        self._due = _ADAPTER.validate_json(data) | self._due


class GravesFile:
    """Keeps `graves` on disk."""

    def __init__(self, path: Path, graves: Graves) -> None:
        self.file = StateFile(path)
        self._graves = graves
        self._saved_changes = 0

    def save(self) -> None:
        """Write the keys if they changed; what failed is tried again."""
        if self._graves.changes == self._saved_changes:
            return
        changes, failures = self._graves.changes, self.file.failures
        self.file.write(self._graves.dump())
        if self.file.failures == failures:
            self._saved_changes = changes

    def restore(self) -> None:
        """Take over what an earlier agent left; what cannot be read is counted and left."""
        data = self.file.read()
        try:
            if data:
                self._graves.load(data)
        except ValidationError:
            self.file.failures += 1
