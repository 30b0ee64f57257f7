"""Records what the first steps' operations bring, on the rank that was chosen for its role."""

import hashlib
import logging
import threading
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, TypeVar

from paceline.trainer.groups.registry import Groups
from paceline.trainer.protection.memory import memory_of
from paceline.trainer.sandbox.errors import NotRecorded
from paceline.trainer.sandbox.recording import Call, GroupRecording, Output, Recording, signature_of

log = logging.getLogger("paceline")
LIMIT_BYTES = 1 << 30
STEPS = 2  # DDP rebuilds its buckets in its second step; fewer would leave a standby at another sequence
CALLS_MAX = 1_000_000
Role = TypeVar("Role", bound=Hashable)


def choose_recorders(roles: Mapping[int, Role]) -> dict[Role, int]:
    """The lowest rank of each role (for example first, middle, last stage); the others need not record."""
    chosen: dict[Role, int] = {}
    for rank in sorted(roles):
        chosen.setdefault(roles[rank], rank)
    return chosen


class Recorder:
    """Made by `record`; never raises into the training: what it cannot keep ends the recording."""

    def __init__(self, groups: Groups, role: str, limit_bytes: int, steps: int) -> None:
        self._groups = groups
        self._role = role
        self._limit_bytes = limit_bytes
        self._steps = steps
        self._lock = threading.Lock()
        self._calls: dict[int, list[list[Any]]] = {}  # by id of the group: [signature, outputs]
        self._blobs: list[bytes] = []
        self._known: dict[bytes, int] = {}
        self._bytes = 0
        self._number = 0
        self.steps = 0
        self.failure = ""

    def begin(self, group: Any, name: str, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
        """The call is about to be handed on; a function for the scratch tensors of its result, or None."""
        if self.steps >= self._steps or self.failure:
            return None
        try:
            entry: list[Any] = [signature_of(name, arguments, keywords), None]
            with self._lock:
                self._calls.setdefault(id(group), []).append(entry)
                self._number += 1
            if self._number > CALLS_MAX:
                self._stop(f"more than {CALLS_MAX} calls in {self._steps} steps")
            return lambda tensors: self._keep(entry, tensors)
        except Exception as error:
            self._stop(repr(error))
            return None

    def _keep(self, entry: list[Any], tensors: Sequence[Any]) -> None:
        if self.failure:
            return
        try:
            entry[1] = tuple(self._output(tensor) for tensor in tensors)
        except Exception as error:
            self._stop(repr(error))

    def _output(self, tensor: Any) -> Output:
        data = _raw(tensor)
        digest = hashlib.sha256(data).digest()
        with self._lock:
            blob = self._known.get(digest)
            if blob is None:
                if self._bytes + len(data) > self._limit_bytes:
                    raise NotRecorded(f"more than {self._limit_bytes} bytes in {self._steps} steps")
                blob = self._known[digest] = len(self._blobs)
                self._blobs.append(data)
                self._bytes += len(data)
        return Output(str(tensor.dtype).removeprefix("torch."), tuple(map(int, tensor.shape)), blob)

    def _stop(self, reason: str) -> None:
        self.failure = reason
        with self._lock:
            self._calls, self._blobs, self._known = {}, [], {}
        log.warning("paceline records no first steps here (%s); standbys of this role stay cold", reason)

    def end_step(self) -> bool:
        """After each step; True once enough are recorded, and nothing is recorded any more."""
        if self.steps < self._steps:
            self.steps += 1
        if self.steps >= self._steps:
            self.stop()
        return self.steps >= self._steps

    def stop(self) -> None:
        """Record nothing any more."""
        if self._groups.recorder is self:
            self._groups.recorder = None

    def calls(self) -> dict[str, list[str]]:
        """What was called so far: signatures by the key of the group."""
        held = {id(group): self._groups.spec(index).key for index, group in self._groups.living().items()}
        with self._lock:
            return {
                held[group]: [str(entry[0]) for entry in entries]
                for group, entries in self._calls.items()
                if group in held
            }

    def recording(self) -> Recording:
        """NotRecorded where a step is missing, an operation has not ended, or there was too much."""
        if self.failure:
            raise NotRecorded(self.failure)
        if self.steps < self._steps:
            raise NotRecorded(f"{self.steps} of {self._steps} steps are recorded; call end_step() after each")
        with self._lock:
            found = [self._group(index, group) for index, group in self._groups.living().items()]
            return Recording(
                self._role, self._groups.rank, self._groups.size, self.steps, tuple(found), tuple(self._blobs)
            )

    def _group(self, index: int, group: Any) -> GroupRecording:
        key = self._groups.spec(index).key
        calls = []
        for signature, outputs in self._calls.get(id(group), []):
            if outputs is None:
                raise NotRecorded(
                    f"{signature} of group {key} has not ended: wait for it before the end of a step"
                )
            calls.append(Call(signature, outputs))
        return GroupRecording(key, group.rank(), group.size(), tuple(calls))


def record(groups: Groups, role: str = "", limit_bytes: int = LIMIT_BYTES, steps: int = STEPS) -> Recorder:
    """Record every operation of this rank from now on, `steps` steps long.

    Call it after `install` and before `init_process_group`: what DDP does when it is made belongs to it.
    """
    recorder = Recorder(groups, role, limit_bytes, steps)
    groups.recorder = recorder
    return recorder


def _raw(tensor: Any) -> bytes:
    """The bytes of a dense tensor on the host, in row-major order, whatever its dtype (bfloat16 too)."""
    dense = tensor.detach().contiguous()
    return bytes(memory_of(dense))
