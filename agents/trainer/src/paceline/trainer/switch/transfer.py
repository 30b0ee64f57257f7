"""The leaver's state to its joiner, 1 to 1, as raw bytes on a group of these two.

Both describe their tensors to one another while training goes on; in the switch only a header, the
bytes and their checksums travel, from and into the tensors' own memory. Nothing is unpickled.
"""

import importlib
import json
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from paceline.trainer.protection.checksum import DIGEST_BYTES, checksum
from paceline.trainer.protection.memory import memory_of
from paceline.trainer.switch.errors import PrepareFailed, SwitchCancelled, TransferFailed

MANIFEST_BYTES_MAX = 16 << 20
TENSORS_MAX = 100_000
MAGIC = 0x70616365
_STATE, _CANCEL = 1, 2
_ACCEPTED, _REFUSED = 1, 0
LEAVER, JOINER = 0, 1  # ranks in the group of two


def manifest_of(tensors: Mapping[str, Any]) -> bytes:
    """Names, shapes and types, in order of names; equal on both sides or the state does not fit.

    PrepareFailed for a tensor that is not contiguous CPU memory: it has no bytes to send as they are.
    """
    if len(tensors) > TENSORS_MAX:
        raise PrepareFailed(f"{len(tensors)} tensors, at most {TENSORS_MAX} are handed over")
    rows = []
    for name, tensor in sorted(tensors.items()):
        if tensor.device.type != "cpu" or not tensor.is_contiguous():
            raise PrepareFailed(f"tensor {name!r} is not contiguous memory of the host: stage it there first")
        rows.append([name, str(tensor.dtype), list(tensor.shape)])
    return json.dumps(rows, separators=(",", ":")).encode()


class Pair:
    """One end of a group of two; `limit_s` bounds every single send and receive.

    `manifest`: JSON rows [name, ...] of what the leaver has to give and the joiner has room for.
    """

    def __init__(self, group: Any, place: int, manifest: bytes, limit_s: float) -> None:
        self._torch = importlib.import_module("torch")
        self._group = group
        self._peer = 1 - place
        self._limit = timedelta(seconds=limit_s)
        self._manifest = manifest

    # while training goes on

    def offer(self, digest: str) -> None:
        """The leaver's: PrepareFailed where the joiner holds other tensors or another plan."""
        manifest = digest.encode() + b"\n" + self._manifest
        self._send_bytes(manifest)
        if int(self._receive(1)[0]) != _ACCEPTED:
            raise PrepareFailed("the joiner holds other tensors, or was prepared for another plan")

    def accept(self, digest: str) -> None:
        """The joiner's answer to `offer`; PrepareFailed says what differs."""
        theirs = self._receive_bytes()
        mine = digest.encode() + b"\n" + self._manifest
        self._send(_ACCEPTED if theirs == mine else _REFUSED)
        if theirs != mine:
            raise PrepareFailed(_difference(theirs, mine))

    def cancel(self) -> None:
        """Tell the joiner that it does not take place."""
        self._send(MAGIC, _CANCEL, -1)

    def await_state(self, wait_s: float) -> int:
        """The leaver's word: the step after which its state was taken. SwitchCancelled, TransferFailed."""
        magic, kind, step = (int(value) for value in self._receive(3, timedelta(seconds=wait_s)))
        if magic != MAGIC or kind not in (_STATE, _CANCEL):
            raise TransferFailed(f"unknown message {magic:#x} of kind {kind} from the leaver")
        if kind == _CANCEL:
            raise SwitchCancelled("the leaver says that the switch does not take place")
        return step

    def announce(self, step: int) -> None:
        """The state after `step` follows."""
        self._send(MAGIC, _STATE, step)

    # raw pieces

    def _send(self, *values: int) -> None:
        self._group.send([self._torch.tensor(values, dtype=self._torch.int64)], self._peer, 0).wait(
            self._limit
        )

    def _receive(self, count: int, limit: timedelta | None = None) -> Any:
        values = self._torch.zeros(count, dtype=self._torch.int64)
        self._group.recv([values], self._peer, 0).wait(limit or self._limit)
        return values

    def _send_bytes(self, content: bytes) -> None:
        self._send(len(content))
        self._group.send([self._bytes_tensor(content)], self._peer, 0).wait(self._limit)

    def _bytes_tensor(self, content: bytes) -> Any:
        return self._torch.frombuffer(bytearray(content), dtype=self._torch.uint8)

    def _receive_bytes(self) -> bytes:
        size = int(self._receive(1)[0])
        if not 0 < size <= MANIFEST_BYTES_MAX:
            raise PrepareFailed(
                f"the peer announces a manifest of {size} bytes, at most {MANIFEST_BYTES_MAX}"
            )
        tensor = self._torch.zeros(size, dtype=self._torch.uint8)
        self._group.recv([tensor], self._peer, 0).wait(self._limit)
        return bytes(memory_of(tensor))


class Transfer(Pair):
    """Of the tensors themselves, from and into their own memory."""

    def __init__(self, group: Any, place: int, tensors: Mapping[str, Any], limit_s: float) -> None:
        super().__init__(group, place, manifest_of(tensors), limit_s)
        self._tensors = [tensor for _, tensor in sorted(tensors.items())]

    @property
    def payload_bytes(self) -> int:
        return sum(tensor.numel() * tensor.element_size() for tensor in self._tensors)

    # in the switch

    def hand_over(self, step: int) -> int:
        """Send the state after `step`; the bytes sent. The tensors must not change meanwhile."""
        self.announce(step)
        works = [self._group.send([view], self._peer, 0) for view in self._views()]
        sums = b"".join(_checksum(view) for view in self._views())  # while the bytes are under way
        trailer = self._bytes_tensor(sums or b"-")
        for work in (*works, self._group.send([trailer], self._peer, 0)):
            work.wait(self._limit)
        return self.payload_bytes

    def take_over(self, wait_s: float) -> int:
        """Receive the state; the step after which it was taken. SwitchCancelled, TransferFailed."""
        step = self.await_state(wait_s)
        views = self._views()
        works = [self._group.recv([view], self._peer, 0) for view in views]
        sums = []
        for work, view in zip(works, views, strict=True):
            work.wait(self._limit)
            sums.append(_checksum(view))
        theirs = self._torch.zeros(max(1, len(views) * DIGEST_BYTES), dtype=self._torch.uint8)
        self._group.recv([theirs], self._peer, 0).wait(self._limit)
        sent = bytes(memory_of(theirs))
        bad = [
            at for at, mine in enumerate(sums) if sent[at * DIGEST_BYTES : (at + 1) * DIGEST_BYTES] != mine
        ]
        if bad:
            raise TransferFailed(
                f"{len(bad)} of {len(views)} tensors arrived damaged; nothing of them may be used"
            )
        return step

    def _views(self) -> list[Any]:
        return [
            tensor.detach().reshape(-1).view(self._torch.uint8) for tensor in self._tensors if tensor.numel()
        ]


def _checksum(view: Any) -> bytes:
    aligned = view if view.storage_offset() % 8 == 0 else view.clone()  # it is read as words
    return bytes.fromhex(checksum(aligned))


def _difference(theirs: bytes, mine: bytes) -> str:
    """In words, for whoever has to make the standby fit."""
    their_plan, _, their_rows = theirs.partition(b"\n")
    my_plan, _, my_rows = mine.partition(b"\n")
    if their_plan != my_plan:
        return f"the leaver follows plan {their_plan[:12]!r}, this joiner {my_plan[:12]!r}"
    try:
        has = {row[0]: row[1:] for row in json.loads(their_rows)}
    except (ValueError, TypeError, IndexError):
        return "the leaver's manifest cannot be read"
    holds = {row[0]: row[1:] for row in json.loads(my_rows)}
    names = sorted(name for name in {*has, *holds} if has.get(name) != holds.get(name))
    shown = "; ".join(f"{name}: leaver {has.get(name)}, joiner {holds.get(name)}" for name in names[:3])
    return f"{len(names)} tensors differ ({shown})"
