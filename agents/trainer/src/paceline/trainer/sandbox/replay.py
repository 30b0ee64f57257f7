"""Process groups that refuse to communicate and serve what was recorded."""

import importlib
import threading
from collections.abc import Sequence
from typing import Any

from paceline.trainer.groups.install import maker
from paceline.trainer.groups.registry import Groups
from paceline.trainer.groups.scratch import OPERATIONS
from paceline.trainer.groups.work import FinishedWork
from paceline.trainer.sandbox.errors import SequenceChanged
from paceline.trainer.sandbox.recording import Call, GroupRecording, Recording, signature_of


class ReplayGroup:
    """Stands for the inner group of a SwappableGroup: no socket, no store, no other rank.

    Each operation has to be the one that the recorded rank made at this place, else SequenceChanged;
    sends and barriers bring nothing, everything else brings the recorded tensors.
    """

    def __init__(self, recorded: GroupRecording, blobs: Sequence[bytes]) -> None:
        self._torch = importlib.import_module("torch")
        self._recorded = recorded
        self._blobs = blobs
        self._lock = threading.Lock()
        self._next = 0

    @property
    def served(self) -> int:
        """Calls answered so far."""
        return self._next

    @property
    def left(self) -> int:
        """Recorded calls that were not made yet."""
        return len(self._recorded.calls) - self._next

    def serve(self, name: str, arguments: Sequence[Any], keywords: dict[str, Any]) -> FinishedWork:
        got = signature_of(name, arguments, keywords)
        with self._lock:
            number, calls = self._next, self._recorded.calls
            if number >= len(calls):
                raise SequenceChanged(self._recorded.key, number, "nothing more", got)
            call = calls[number]
            if call.signature != got:
                raise SequenceChanged(self._recorded.key, number, call.signature, got)
            self._next += 1
        written = arguments[0] if arguments else next(iter(keywords.values()), None)
        self._fill(call, _flat(written) if call.outputs else [])
        return FinishedWork(self._torch)

    def _fill(self, call: Call, tensors: Sequence[Any]) -> None:
        torch = self._torch
        for output, tensor in zip(call.outputs, tensors, strict=True):
            data = self._blobs[output.blob]
            if data:
                dtype = getattr(torch, output.dtype)
                tensor.copy_(torch.frombuffer(bytearray(data), dtype=dtype).view(output.shape))

    def monitored_barrier(self, *arguments: Any, **keywords: Any) -> None:
        """Nobody is waited for."""

    def _get_backend(self, device: Any) -> Any:
        return self

    supports_coalescing = supports_splitting = False


def _served(name: str) -> Any:
    def method(self: ReplayGroup, *arguments: Any, **keywords: Any) -> FinishedWork:
        return self.serve(name, arguments, keywords)

    return method


def _flat(value: Any) -> list[Any]:
    if isinstance(value, (list, tuple)):
        return [tensor for part in value for tensor in _flat(part)]
    return [value]


for _name in OPERATIONS:
    setattr(ReplayGroup, _name, _served(_name))


class ReplayBackend:
    """`Builds` for a standby: its i-th group serves what the recorded rank's i-th group brought."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self.groups: list[ReplayGroup] = []

    def build(
        self, store: Any, rank: int, size: int, generation: int, timeout_s: float, operation_timeout_s: float
    ) -> ReplayGroup:
        number, recorded = len(self.groups), self.recording.groups
        got = f"rank {rank} of {size}"
        if number >= len(recorded):
            raise SequenceChanged(f"number {number}", 0, "no further group", f"a group as {got}")
        found = recorded[number]
        if (found.rank, found.size) != (rank, size):
            raise SequenceChanged(
                found.key, 0, f"a group as rank {found.rank} of {found.size}", f"one as {got}"
            )
        self.groups.append(ReplayGroup(found, self.recording.blobs))
        return self.groups[-1]

    @property
    def left(self) -> int:
        """Recorded calls that this standby has not made yet; 0: it is where the recorded rank was."""
        return sum(group.left for group in self.groups)


def stay_outside(groups: Groups, recording: Recording) -> ReplayBackend:
    """Keep this process out of the job until it is promoted: every group it makes replays `recording`.

    Call it after `install` and before `init_process_group(rank=recording.rank, world_size=recording.size,
    store=HashStore())`.
    """
    made = maker()
    if made is None or made.groups is not groups:
        raise RuntimeError("call paceline.trainer.groups.install first")
    backend = ReplayBackend(recording)
    made.stay_outside(backend)
    return backend


def rehearse(groups: Groups, recording: Recording) -> ReplayBackend:
    """Let the groups of a standby replay another role's recording, as that role's rank, from its first call.

    So one general standby is warmed up for the first, a middle and the last stage in turn.
    """
    backend = ReplayBackend(recording)
    groups.rehearse(backend, recording.rank)
    return backend
