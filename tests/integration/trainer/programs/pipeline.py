"""A pipeline of three stages that are not alike, each on `--copies` ranks, two micro-batches a step.

With one copy a stage is a plain module; with more it is DDP's over a group of its own, as a script makes it.
"""

import argparse
import functools
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from paceline.trainer import Session
from paceline.trainer.testing.record import record_end, record_step

STAGES, WORDS, WIDTH, LENGTH, BATCH = 3, 50, 24, 6, 4


class Stage:
    """What one rank holds: the first knows words, the last the loss."""

    def __init__(self, number: int, group: Any) -> None:
        torch.manual_seed(number)
        layers: list[Any] = [
            torch.nn.Linear(WIDTH, WIDTH),
            torch.nn.Tanh(),
            torch.nn.Dropout(0.1),
        ]
        if number == 0:
            layers.insert(0, torch.nn.Embedding(WORDS, WIDTH))
        if number == STAGES - 1:
            layers.append(torch.nn.Linear(WIDTH, WORDS))
        self.number = number
        self.model: Any = torch.nn.Sequential(*layers)
        if group is not None:
            self.model = DistributedDataParallel(self.model, process_group=group)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)


class Rank:
    """One process's place: its stage, and which copy of the pipeline it belongs to."""

    def __init__(self, copies: int) -> None:
        self.copies = copies
        groups = [dist.new_group(range(number * copies, (number + 1) * copies)) for number in range(STAGES)]
        self.group = groups[dist.get_rank() // copies] if copies > 1 else None
        self.stage_of = functools.cache(lambda number: Stage(number, self.group))
        self.become(dist.get_rank())

    def become(self, rank: int) -> dict[str, Any]:
        self.number, self.copy = divmod(rank, self.copies)
        self.stage = self.stage_of(self.number)
        return {"model": self.stage.model, "optimizer": self.stage.optimizer}

    def rank_of(self, number: int) -> int:
        return number * self.copies + self.copy

    def step(self, samples: Any) -> float:
        """Each micro-batch there and back, then the optimizer; a number that tells what was computed."""
        self.stage.optimizer.zero_grad()
        said = 0.0
        for words in samples:
            given = None
            if self.number:
                given = torch.zeros(BATCH, LENGTH, WIDTH)
                dist.recv(given, self.rank_of(self.number - 1))
                given.requires_grad_()
            out: Any = self.stage.model(words if given is None else given)
            if self.number == STAGES - 1:
                loss: Any = torch.nn.functional.cross_entropy(out.flatten(0, 1), words.flatten())
                loss.backward()
                said += loss.item()
            else:
                said += out.detach().sum().item()
                dist.send(out.detach(), self.rank_of(self.number + 1))
                gradient = torch.zeros(BATCH, LENGTH, WIDTH)
                dist.recv(gradient, self.rank_of(self.number + 1))
                out.backward(gradient)
            if given is not None and given.grad is not None:
                dist.send(given.grad, self.rank_of(self.number - 1))
        self.stage.optimizer.step()
        return said


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--copies", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    mine = Rank(arguments.copies)
    torch.manual_seed(1000 + dist.get_rank())

    session = Session.open(model=mine.stage.model, optimizer=mine.stage.optimizer)
    session.on_place(mine.become, ranks=range(0, dist.get_world_size(), arguments.copies))
    for step in session.steps(arguments.steps):
        with session.step(step):
            draw = torch.Generator().manual_seed(step * 100 + mine.copy)
            samples = torch.randint(0, WORDS, (2, BATCH, LENGTH), generator=draw)
            said = mine.step(samples)
            if session.live:
                record_step(dist.get_rank(), step, said, samples.flatten().tolist())
    record_end(dist.get_rank(), mine.stage.model.state_dict(), mine.stage.optimizer.state_dict())


if __name__ == "__main__":
    main()
