"""A small language model, split over tensor and pipeline ranks the way large ones are.

Each token is embedded, passes residual blocks whose hidden layer is split over the tensor-parallel
group (column, then row; one all_reduce forward, one backward) and is turned into logits by the last
stage. Shapes: tokens (batch, length) int64, activations (batch * length, WIDTH) float32.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

VOCABULARY = 32
WIDTH = 32
HIDDEN = 128
BLOCKS_PER_STAGE = 2
BATCH = 8
LENGTH = 16


@dataclass(frozen=True)
class TensorGroup:
    """The ranks that share each layer; `before` is called in front of each of their operations."""

    group: dist.ProcessGroup
    size: int
    before: Callable[[], None]

    def all_reduce(self, value: torch.Tensor) -> None:
        self.before()
        dist.all_reduce(value, group=self.group)


class _Enter(torch.autograd.Function):
    """Identity forward, all_reduce of the gradient backward: the input is shared by the group."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, tensor: TensorGroup) -> torch.Tensor:
        ctx.tensor = tensor
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        gradient = gradients[0].contiguous()
        ctx.tensor.all_reduce(gradient)
        return gradient, None


class _Leave(torch.autograd.Function):
    """All_reduce forward, identity backward: each member computed a part of the sum."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, tensor: TensorGroup) -> torch.Tensor:
        value = value.contiguous().clone()
        tensor.all_reduce(value)
        return value

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradients[0], None


class Block(nn.Module):
    """A residual MLP block; this rank holds HIDDEN / tp of its hidden units."""

    def __init__(self, tensor: TensorGroup) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, HIDDEN // tensor.size)
        self.down = nn.Linear(HIDDEN // tensor.size, WIDTH, bias=False)
        self._tensor = tensor

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        inner: torch.Tensor = _Enter.apply(self.norm(value), self._tensor)  # type: ignore[no-untyped-call]
        part = self.down(functional.gelu(self.up(inner)))
        whole: torch.Tensor = _Leave.apply(part, self._tensor)  # type: ignore[no-untyped-call]
        return value + whole


class Stage(nn.Module):
    """One pipeline stage: the first embeds, the last gives logits."""

    def __init__(self, *, first: bool, last: bool, tensor: TensorGroup) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH) if first else None
        self.blocks = nn.ModuleList(Block(tensor) for _ in range(BLOCKS_PER_STAGE))
        self.head = nn.Linear(WIDTH, VOCABULARY) if last else None

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        if self.embedding is not None:
            value = self.embedding(value.reshape(-1))
        for block in self.blocks:
            value = block(value)
        return self.head(value) if self.head is not None else value


def make_batch(generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens of a noisy linear congruence and their successors, each (BATCH, LENGTH) int64."""
    rows = [torch.randint(VOCABULARY, (BATCH,), generator=generator)]
    for _ in range(LENGTH):
        noise = (torch.rand(BATCH, generator=generator) < 0.1).long()
        rows.append((rows[-1] * 5 + 3 + noise) % VOCABULARY)
    sequence = torch.stack(rows, dim=1)
    return sequence[:, :-1], sequence[:, 1:]
