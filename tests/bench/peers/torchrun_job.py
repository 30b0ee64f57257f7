"""DDP under `torchrun --max-restarts`: every fifth step a checkpoint, from which all begin again."""

import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.bench.peers.ground import STEPS_MAX, Ground, make_model, wrap_ddp

CHECKPOINT_STEPS = 5


def main() -> None:
    ground = Ground(int(os.environ["RANK"]))
    life = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    if life:
        ground.disarm()
    model, optimizer = make_model()
    dist.init_process_group("gloo")
    ground.watch(model)
    wrapped = wrap_ddp(ground, model)
    file = Path(ground.folder) / "checkpoint.pt"
    start = 0
    if file.exists():
        saved: dict[str, Any] = torch.load(file)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        start = saved["step"] + 1
    ground.await_gate()
    for step in range(start, STEPS_MAX):
        ground.train(step, wrapped, optimizer)
        if ground.rank == 0 and step % CHECKPOINT_STEPS == CHECKPOINT_STEPS - 1:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            torch.save(state, file.with_suffix(".new"))
            file.with_suffix(".new").replace(file)
        ground.record(step, life, dist.get_world_size())


if __name__ == "__main__":
    main()
