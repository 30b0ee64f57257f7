"""How a restore moves bytes between the members: over a torch group, or between threads in tests."""

import queue
import threading
from collections.abc import Sequence
from typing import Any, Protocol

from paceline.trainer.protection.errors import ProtectionError
from paceline.trainer.protection.memory import memory_of

PAYLOAD_BYTES_MAX = 16 << 20
# Of one message: gloo gives each as long as the group had to connect (20 s), and of messages of 850 MB two in
# three were seen to stand still for all of it.
PIECE_BYTES = 32 << 20
TAG = 0x504C  # of point-to-point messages; both sides number them by the order of their plan


class Exchange(Protocol):
    """Moves bytes between the members of a new generation. Collective calls, in the same order on all.

    Raises whatever its group raises when the generation ends meanwhile.
    """

    rank: int
    size: int

    def gather(self, payload: bytes) -> list[bytes]:
        """Everybody's payload, by rank, to everybody."""
        ...

    def move(self, sends: Sequence[tuple[int, Any]], receives: Sequence[tuple[int, Any]]) -> None:
        """Send and receive flat uint8 CPU tensors, (peer, tensor) in an order that both sides agree on."""
        ...


class GroupExchange:
    """Over a torch process group with CPU tensors (gloo), also one that dist does not know.

    Waiting is the group's: one that polls and ends with its generation does so here as well.
    """

    def __init__(self, group: Any) -> None:
        self._group = group
        self.rank, self.size = int(group.rank()), int(group.size())

    def gather(self, payload: bytes) -> list[bytes]:
        import torch

        length = torch.tensor([len(payload)], dtype=torch.int64)
        lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        self._group.allgather([lengths], [length]).wait()
        sizes = [int(each) for each in lengths]
        if max(sizes) > PAYLOAD_BYTES_MAX:
            raise ProtectionError(f"an announcement of {max(sizes)} bytes, at most {PAYLOAD_BYTES_MAX}")
        mine = torch.zeros(max(1, *sizes), dtype=torch.uint8)
        memory_of(mine)[: len(payload)] = payload
        all_payloads = [torch.zeros_like(mine) for _ in sizes]
        self._group.allgather([all_payloads], [mine]).wait()
        return [bytes(memory_of(each)[:size]) for each, size in zip(all_payloads, sizes, strict=True)]

    def move(self, sends: Sequence[tuple[int, Any]], receives: Sequence[tuple[int, Any]]) -> None:
        """Piece by piece: the first one of each tensor, the second one of each, ... A member waits in a round
        only for members that have not come to it yet, so nobody waits for ever."""
        largest = max((data.numel() for _, data in (*sends, *receives)), default=0)
        for start in range(0, largest, PIECE_BYTES):
            end = start + PIECE_BYTES
            works = [
                begin([data[start:end]], peer, TAG)
                for begin, tensors in ((self._group.send, sends), (self._group.recv, receives))
                for peer, data in tensors
                if data.numel() > start
            ]
            for work in works:
                work.wait()


class MemoryExchange:
    """An exchange between threads of one process, for tests; `Hub.exchange(rank)` makes it."""

    def __init__(self, hub: "Hub", rank: int) -> None:
        self._hub, self.rank, self.size = hub, rank, hub.size

    def gather(self, payload: bytes) -> list[bytes]:
        return self._hub.gather(self.rank, payload)

    def move(self, sends: Sequence[tuple[int, Any]], receives: Sequence[tuple[int, Any]]) -> None:
        for peer, data in sends:
            self._hub.post(self.rank, peer, data)
        for peer, data in receives:
            data.copy_(self._hub.take(peer, self.rank))


class Hub:
    """What the threads of a MemoryExchange meet in."""

    def __init__(self, size: int, timeout_s: float = 30.0) -> None:
        self.size = size
        self._timeout_s = timeout_s
        self._barrier = threading.Barrier(size, timeout=timeout_s)
        self._payloads = [b""] * size
        self._boxes = {(a, b): queue.Queue[Any]() for a in range(size) for b in range(size)}

    def exchange(self, rank: int) -> MemoryExchange:
        return MemoryExchange(self, rank)

    def gather(self, rank: int, payload: bytes) -> list[bytes]:
        self._payloads[rank] = payload
        self._barrier.wait()
        everybody = list(self._payloads)
        self._barrier.wait()
        return everybody

    def post(self, source: int, target: int, data: Any) -> None:
        self._boxes[source, target].put(data.clone())

    def take(self, source: int, target: int) -> Any:
        return self._boxes[source, target].get(timeout=self._timeout_s)
