"""A DDP job with everything that has to come back to the bit: momentum, dropout, scheduler, sample ids."""

import argparse
import itertools
import os
import random
import time
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data.distributed import DistributedSampler

from paceline.trainer import Session
from paceline.trainer.testing.record import record_end, record_step

WIDTH = 32


class Samples:
    """Of one rank: drawn from its own random numbers, or by torch's sampler, which is told its rank once."""

    def __init__(self, by_sampler: bool) -> None:
        samples: Any = range(10_000)  # all that a sampler asks of a data set is its length
        self.sampler: Any = DistributedSampler(samples, seed=3) if by_sampler else None

    def draw(self, step: int) -> list[int]:
        if self.sampler is None:
            return [random.randrange(10_000) for _ in range(8)]
        self.sampler.set_epoch(step)
        return list(itertools.islice(self.sampler, 8))


def wrap(kind: str, model: Any) -> Any:
    if kind in ("ddp", "zero"):
        return DistributedDataParallel(model)
    if kind == "stages":  # two of them, whose ranks alternate
        size = dist.get_world_size()
        groups = [dist.new_group(list(range(stage, size, 2))) for stage in range(2)]
        return DistributedDataParallel(model, process_group=groups[dist.get_rank() % 2])
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = None  # all ranks
    if kind == "hsdp":
        mesh = init_device_mesh("cpu", (dist.get_world_size() // 2, 2), mesh_dim_names=("copies", "pieces"))
    for layer in model:
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def optimize(kind: str, model: Any) -> Any:
    if kind == "zero":
        return ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-2)
    return torch.optim.AdamW(model.parameters(), lr=1e-2)


def own(state: Any) -> Any:
    """`state` with the local pieces of what is cut."""
    if isinstance(state, dict):
        return {name: own(value) for name, value in state.items()}
    return getattr(state, "_local_tensor", state)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--width", type=int, default=WIDTH)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds that each step takes longer")
    parser.add_argument("--checkpoint", help="file to start from and to save to every fifth step")
    parser.add_argument("--kind", choices=("ddp", "zero", "stages", "fsdp2", "hsdp"), default="ddp")
    parser.add_argument("--sampler", action="store_true", help="and the rank is asked once, at the start")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(7 + (dist.get_rank() % 2 if arguments.kind == "stages" else 0))
    width = arguments.width
    layers = [
        module for _ in range(arguments.layers) for module in (torch.nn.Linear(width, width), torch.nn.ReLU())
    ]
    model = wrap(
        arguments.kind, torch.nn.Sequential(*layers, torch.nn.Dropout(0.1), torch.nn.Linear(width, 1))
    )
    optimizer = optimize(arguments.kind, model)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.9)
    torch.manual_seed(1000 + dist.get_rank())
    random.seed(2000 + dist.get_rank())

    start = 0
    protected: dict[str, Any] = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
    if arguments.checkpoint and os.path.exists(arguments.checkpoint):
        saved = torch.load(arguments.checkpoint)
        start = saved.pop("step") + 1
        for name, thing in protected.items():
            thing.load_state_dict(saved[name])
    samples_of_rank = Samples(arguments.sampler)
    rank = dist.get_rank()
    if samples_of_rank.sampler is not None:
        protected["sampler"] = samples_of_rank.sampler
    session = Session.open(**protected)

    def promote(given: int) -> None:
        nonlocal rank
        rank = given

    if os.environ.get("PACELINE_ROLE") == "standby" or not arguments.sampler:
        session.on_promote(promote)
    for step in session.steps(arguments.steps, start):
        with session.step(step):
            samples = samples_of_rank.draw(step)
            data = torch.tensor(samples, dtype=torch.float32)[:, None].expand(-1, width) / 10_000
            loss = (model(data) - data.mean(1, keepdim=True)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            time.sleep(arguments.pause)
            if arguments.checkpoint and step % 5 == 4 and dist.get_rank() == 0:
                state = {name: thing.state_dict() for name, thing in protected.items()}
                torch.save({**state, "step": step}, arguments.checkpoint)
            if session.live:
                record_step(rank, step, loss.item(), samples)
    inner = optimizer.optim if arguments.kind == "zero" else optimizer
    record_end(rank, own(model.state_dict()), own(inner.state_dict()))


if __name__ == "__main__":
    main()
