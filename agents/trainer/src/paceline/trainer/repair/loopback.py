"""Groups of a standby: they take part in nothing and send nothing.

What a collective would bring from others is this process's own input; values do not matter, since the
state is restored before the first real step, but shapes, allocations and DDP's bucket order do.
"""

import importlib
from typing import Any

from paceline.trainer.groups.work import FinishedWork


class LoopbackBackend:
    """`Builds` groups that answer by themselves, with any rank and size."""

    def build(
        self, store: Any, rank: int, size: int, generation: int, timeout_s: float, operation_timeout_s: float
    ) -> Any:
        torch = importlib.import_module("torch")
        return LoopbackGroup(torch)


class LoopbackGroup:
    def __init__(self, torch: Any) -> None:
        self._torch = torch

    def _over(self) -> FinishedWork:
        return FinishedWork(self._torch)

    def _get_backend(self, _device: Any) -> Any:
        return self

    def allreduce(self, tensors: Any, *_: Any) -> Any:
        return self._over()

    allreduce_coalesced = broadcast = reduce = send = recv = recv_anysource = allreduce

    def barrier(self, *_: Any) -> Any:
        return self._over()

    def allgather(self, outputs: Any, inputs: Any, *_: Any) -> Any:
        for parts, own in zip(outputs, inputs, strict=True):
            for part in parts:
                part.copy_(own)
        return self._over()

    def _allgather_base(self, output: Any, own: Any, *_: Any) -> Any:
        output.view(-1, own.numel()).copy_(own.reshape(1, -1).expand(output.numel() // own.numel(), -1))
        return self._over()

    all_gather_single = _allgather_base

    def _reduce_scatter_base(self, output: Any, own: Any, *_: Any) -> Any:
        output.view(-1).copy_(own.reshape(-1)[: output.numel()])
        return self._over()

    reduce_scatter_single = _reduce_scatter_base

    def reduce_scatter(self, outputs: Any, inputs: Any, *_: Any) -> Any:
        for output, parts in zip(outputs, inputs, strict=True):
            output.copy_(parts[0])
        return self._over()

    def gather(self, outputs: Any, inputs: Any, *_: Any) -> Any:
        return self.allgather(outputs, inputs) if outputs else self._over()

    def scatter(self, outputs: Any, inputs: Any, *_: Any) -> Any:
        for output, parts in zip(outputs, inputs, strict=False):
            output.copy_(parts[0])
        return self._over()

    def alltoall(self, outputs: Any, inputs: Any, *_: Any) -> Any:
        for output, own in zip(outputs, inputs, strict=True):
            output.copy_(own)
        return self._over()

    def alltoall_base(self, output: Any, own: Any, *_: Any) -> Any:
        output.view(-1).copy_(own.reshape(-1)[: output.numel()])
        return self._over()

    all_to_all_single = alltoall_base
