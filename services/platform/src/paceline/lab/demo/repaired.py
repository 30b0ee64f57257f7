"""What `paceline demo --fault kill` runs: a small DDP job whose result has to come back to the bit.

Momentum, dropout and drawn samples are in it because each would give away a step that was lost or run
twice. What protects it are the lines with `session` in them, but for the one that records.
"""

import argparse
import random
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from paceline.trainer import Session
from paceline.trainer.testing.record import record_end, record_step

WIDTH = 64
SAMPLES = 10_000


def main() -> None:
    """Entry of one rank, or of a standby."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument(
        "--pause", type=float, required=True, help="seconds that an accelerator would compute"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(7)
    layers = (
        torch.nn.Linear(WIDTH, WIDTH),
        torch.nn.ReLU(),
        torch.nn.Dropout(0.1),
        torch.nn.Linear(WIDTH, 1),
    )
    model = DistributedDataParallel(torch.nn.Sequential(*layers))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    torch.manual_seed(1000 + dist.get_rank())
    random.seed(2000 + dist.get_rank())
    session = Session.open(model=model, optimizer=optimizer)
    for step in session.steps(arguments.steps):
        with session.step(step):
            samples = [random.randrange(SAMPLES) for _ in range(8)]
            data = torch.tensor(samples, dtype=torch.float32)[:, None].expand(-1, WIDTH) / SAMPLES
            loss = (model(data) - data.mean(1, keepdim=True)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            time.sleep(arguments.pause)
            if session.live:
                record_step(dist.get_rank(), step, loss.item(), samples)
    record_end(dist.get_rank(), model.state_dict(), optimizer.state_dict())


if __name__ == "__main__":
    main()
