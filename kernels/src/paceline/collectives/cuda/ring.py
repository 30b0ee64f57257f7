"""Launches the kernels on GPUs of this process. Needs CuPy and a GPU; it has never been run on one.

The ranks of a ring may be blocks on one GPU, or on several that can reach each other's arrays through
host memory: links lie in pinned memory, so this measures the probe and not the wires.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from paceline.collectives.cuda.compiler import CupyNvrtc, KernelCache, cache_folder
from paceline.collectives.cuda.memory import Member, RingMemory, Shape, mark_of
from paceline.collectives.cuda.sources import KERNELS
from paceline.contracts.codes import Algorithm, DType, Function, Protocol, ReduceOp, Source, TransferState
from paceline.contracts.layout import PAGE_BYTES
from paceline.probe.writer import Page

REGISTER_MAPPED = 0x02  # cudaHostRegisterMapped
THREADS = 256


@dataclass(eq=False)
class GpuMember:
    """One rank: its page, pinned and mapped, and its slot there."""

    page: Page
    slot: int
    ticket: int = -1


class GpuRing:
    """All ranks of one communicator as blocks of one grid on the current GPU.

    `pages`: one per rank, in ring order; they stay the caller's and must outlive `close`. The grid must be
    resident as a whole, so it has at most one block per multiprocessor.
    """

    def __init__(self, pages: Sequence[Page], comm: int, shape: Shape, tag: int = 1) -> None:
        cupy = importlib.import_module("cupy")
        runtime = cupy.cuda.runtime
        device = cupy.cuda.Device()
        if shape.size > int(device.attributes["MultiProcessorCount"]):
            raise ValueError(
                f"size is {shape.size}, expected at most one rank for each multiprocessor of the GPU"
            )
        # CuPy has no cudaHostGetDevicePointer: both sides must see the page at one address.
        if not device.attributes.get("CanUseHostPointerForRegisteredMem", 1):
            raise ValueError("this GPU sees registered host memory at another address; it is not supported")
        self._cupy, self._shape, self._tag, self._round = cupy, shape, tag, 0
        cubin = KernelCache(cache_folder(), CupyNvrtc()).cubin(f"sm_{device.compute_capability}")
        module = cupy.cuda.function.Module()
        module.load(cubin)
        self._kernels = [module.get_function(name) for name in KERNELS]
        self._pinned = cupy.cuda.alloc_pinned_memory(shape.bytes)
        block = np.frombuffer(self._pinned, np.uint8, shape.bytes)
        self._memory = RingMemory(block, int(self._pinned.ptr), shape)
        self._members: list[GpuMember] = []
        for rank, page in enumerate(pages):
            runtime.hostRegister(page.address, PAGE_BYTES, REGISTER_MAPPED)
            self._members.append(GpuMember(page, open_slot(page, comm, rank, shape.size)))

    def run(self, arrays: Sequence[Any], root: int = -1) -> None:
        """Sum of the float32 CuPy `arrays` in place, or with `root` its array to all. Does not wait."""
        self._round += 1
        count = int(arrays[0].size)
        for member in self._members:
            member.ticket = enter(member.page, member.slot, root, count)
        places = [
            Member(int(array.data.ptr), member.page.address, member.slot)
            for array, member in zip(arrays, self._members, strict=True)
        ]
        self._memory.prepare(places, count, mark_of(self._tag, self._round), root=max(root, 0))
        arguments = (np.uint64(self._memory.work_address()),)
        self._kernels[root >= 0]((self._shape.size,), (THREADS,), arguments)
        for member in self._members:
            member.page.returned(member.ticket)

    def finish(self) -> None:
        """Wait for the kernel, and say that the operation is over. One operation at a time."""
        self._cupy.cuda.get_current_stream().synchronize()
        for member in self._members:
            member.page.complete(member.ticket)

    def close(self) -> None:
        """Stop what still runs, and give the pages back to their owners."""
        self._memory.stop()
        self._cupy.cuda.get_current_stream().synchronize()
        for member in self._members:
            member.page.close_communicator(member.slot)
            self._cupy.cuda.runtime.hostUnregister(member.page.address)
        self._members.clear()


def open_slot(page: Page, comm: int, rank: int, size: int) -> int:
    """A slot whose first edge row is the link to the next rank, the second that from the one before."""
    slot = page.open_communicator(comm, 0, rank, size, rank, Source.KERNEL)
    for direction, peer in enumerate(((rank + 1) % size, (rank - 1) % size)):
        page.progress(slot, direction, peer, 0, 0, 0, 0, 0, 0, 0, 0, TransferState.IDLE)
    return int(slot)


def enter(page: Page, slot: int, root: int, count: int) -> int:
    """Ticket of the next operation, of `count` float32: an all-reduce with `root` -1, else a broadcast."""
    function = Function.ALL_REDUCE if root < 0 else Function.BROADCAST
    ticket = page.enter(slot, function, DType.FLOAT32, ReduceOp.SUM, root, count, 4 * count, count)
    page.describe(ticket, Algorithm.RING, Protocol.SIMPLE, 1)
    return int(ticket)
