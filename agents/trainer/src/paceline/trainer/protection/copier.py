"""The thread that takes snapshots out of the live tensors."""

import logging
import queue
import threading
from collections.abc import Callable
from typing import Any

from paceline.trainer.protection.checksum import checksum
from paceline.trainer.protection.identity import Part
from paceline.trainer.protection.memory import copy_memory, copy_to_host, memory_of
from paceline.trainer.protection.slots import Slot
from paceline.trainer.protection.state import Snapshot

log = logging.getLogger("paceline.protection")
CLOSE_S = 5.0


class Copier:
    """Runs one job at a time, in order. `failed` is told of an error; the thread goes on."""

    def __init__(self, failed: Callable[[str, BaseException], None]) -> None:
        self._failed = failed
        self._jobs: queue.Queue[Callable[[], None] | None] = queue.Queue(2)
        self._thread: threading.Thread | None = None

    def submit(self, job: Callable[[], None]) -> None:
        """Raises queue.Full when two jobs wait, which the gate before the optimizer's step rules out."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="paceline-copy", daemon=True)
            self._thread.start()
        self._jobs.put_nowait(job)

    def close(self) -> None:
        if self._thread is None:
            return
        try:
            self._jobs.put(None, timeout=CLOSE_S)
        except queue.Full:  # it hangs in a copy, and ends with the process
            return
        self._thread.join(CLOSE_S)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job()
            except Exception as error:
                self._failed("copy", error)


class Stream:
    """A stream of its own on the accelerator, where the state lives on one; nothing on a CPU."""

    def __init__(self, on_device: bool) -> None:
        self._stream: Any = None
        self._ready: Any = None
        if on_device:
            import torch

            self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def mark(self) -> None:
        """The live tensors are as they shall be copied once the work queued so far is done."""
        if self._stream is not None:
            import torch

            self._ready = torch.cuda.current_stream().record_event()

    def copy(self, snapshot: Snapshot, slot: Slot) -> None:
        """Copy a complete snapshot into the slot; it is there when this returns."""
        if self._stream is None:
            _copy(snapshot, slot)
            return
        import torch

        with torch.cuda.stream(self._stream):
            self._stream.wait_event(self._ready)
            _copy(snapshot, slot)
        self._stream.synchronize()


def _copy(snapshot: Snapshot, slot: Slot) -> None:
    contents = {part: slot.buffer(part).content() for part in Part}
    bases = {part: content.data_ptr() for part, content in contents.items()}
    for captured in snapshot.tensors:
        if captured.pointer:
            copy_memory(bases[captured.part] + captured.offset, captured.pointer, captured.bytes)
        elif captured.bytes:
            end = captured.offset + captured.bytes
            copy_to_host(captured.tensor, contents[captured.part][captured.offset : end])


def reserve(snapshot: Snapshot, slot: Slot) -> None:
    """Make room for a complete snapshot and put its header in place."""
    header, end = snapshot.header(), snapshot.ends[Part.OWN]
    own = slot.buffer(Part.OWN).reserve(end + len(header))
    memory_of(own)[end:] = header
    slot.buffer(Part.SHARED).reserve(snapshot.ends[Part.SHARED])


def checksums(slot: Slot) -> dict[Part, str]:
    """Of all parts that the slot names."""
    return {part: checksum(slot.buffer(part).content()) for part in slot.shards}
