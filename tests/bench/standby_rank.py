"""The training script of `standby_step`: DDP under a Session, which writes down how long each step took.

Words: steps, width, layers, batch, seconds of pause in each step. Lines of JSON in the results folder,
one file a process: `[rank, step, live, seconds, stalled]`; `stalled` is what the protection held up of it.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from paceline.trainer import Session
from paceline.trainer.testing.job import RESULTS_VARIABLE


def main() -> None:
    steps, width, layers, batch = map(int, sys.argv[1:5])
    pause_s = float(sys.argv[5])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    parts: list[Any] = []
    for _ in range(layers):
        parts += [torch.nn.Linear(width, width), torch.nn.GELU()]
    model = DistributedDataParallel(torch.nn.Sequential(*parts), bucket_cap_mb=1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = torch.randn(batch, width)
    session = Session.open(model=model, optimizer=optimizer)
    protector = session._engine._protection.protector  # type: ignore[union-attr]
    path = Path(os.environ[RESULTS_VARIABLE]) / f"steps-{os.getpid()}.jsonl"
    with path.open("w", buffering=1) as file:
        for step in session.steps(steps):
            began, stalled = time.perf_counter(), protector.counters.stall_s
            with session.step(step):
                optimizer.zero_grad()
                time.sleep(pause_s)
                model(data).square().mean().backward()
                optimizer.step()
            took = time.perf_counter() - began
            row = [dist.get_rank(), step, session.live, took, protector.counters.stall_s - stalled]
            file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
