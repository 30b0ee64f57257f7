"""A DDP job with everything that has to come back to the bit: momentum, dropout, scheduler, sample ids."""

import argparse
import os
import random
import time
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from paceline.trainer import Session
from paceline.trainer.testing.record import record_end, record_step

WIDTH = 32


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--width", type=int, default=WIDTH)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds that each step takes longer")
    parser.add_argument("--checkpoint", help="file to start from and to save to every fifth step")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(7)
    width = arguments.width
    layers = [
        module for _ in range(arguments.layers) for module in (torch.nn.Linear(width, width), torch.nn.ReLU())
    ]
    model = DistributedDataParallel(
        torch.nn.Sequential(*layers, torch.nn.Dropout(0.1), torch.nn.Linear(width, 1))
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
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
    session = Session.open(**protected)
    for step in session.steps(arguments.steps, start):
        with session.step(step):
            samples = [random.randrange(10_000) for _ in range(8)]
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
                record_step(dist.get_rank(), step, loss.item(), samples)
    record_end(dist.get_rank(), model.state_dict(), optimizer.state_dict())


if __name__ == "__main__":
    main()
