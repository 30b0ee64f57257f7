"""DDP by torchft with one process a replica group, as its own example has it.

`--spares`: a group that dies is replaced by one that has trained along without weight
(`FIXED_WITH_SPARES`); without it the group is started again and heals from a neighbour.
"""

import importlib
import os
import sys
from datetime import timedelta
from typing import Any

import torch.distributed

from tests.bench.peers.ground import NAME_VARIABLE, STEPS_MAX, Ground, make_model

ACTIVE = 4
dist: Any = torch.distributed
torchft: Any = importlib.import_module("torchft")


def main() -> None:
    has_spares = "--spares" in sys.argv
    name = int(os.environ[NAME_VARIABLE])
    ground = Ground(name)
    model, optimizer = make_model()

    def load_state(state: Any) -> None:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])

    def state_dict() -> Any:
        return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}

    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    modes = importlib.import_module("torchft.manager").WorldSizeMode
    manager = torchft.Manager(
        pg=torchft.ProcessGroupGloo(timeout=timedelta(seconds=5)),
        load_state_dict=load_state,
        state_dict=state_dict,
        min_replica_size=ACTIVE if has_spares else 1,
        world_size_mode=modes.FIXED_WITH_SPARES if has_spares else modes.DYNAMIC,
        timeout=timedelta(seconds=30),
        rank=0, world_size=1, store_addr="127.0.0.1", store_port=store.port,
        hostname="127.0.0.1",
        replica_id=f"replica_{name}",
    )  # fmt: skip
    ground.watch(model)
    wrapped = torchft.DistributedDataParallel(manager, model)
    issue = manager.allreduce

    def allreduce(*arguments: Any, **keywords: Any) -> Any:
        work = issue(*arguments, **keywords)
        ground.reach("in_collective")
        return work

    manager.allreduce = allreduce
    managed = torchft.Optimizer(manager, optimizer)
    ground.await_gate()
    while manager.current_step() < STEPS_MAX:
        step = manager.current_step()
        ground.train(step, wrapped, managed)
        if manager.current_step() > step and manager.participating_rank() is not None:
            done = manager.current_step() - 1  # a group that has healed begins further on
            ground.record(done, manager._quorum_id, manager.num_participants())


if __name__ == "__main__":
    main()
