"""DDP in `nvidia_resiliency_ext.inprocess.Wrapper` with one reserve rank, as its guide has it.

State is kept in the memory of each rank after every step; after a restart it comes from a rank that has
the newest one. `--tuned`: intervals of 50 ms instead of 1 s, and the first step's work is done once before
the job begins, without communication, so that the reserve rank is warm.
"""

import copy
import importlib
import os
import sys
import traceback
from datetime import timedelta
from typing import Any

import torch
import torch.distributed

from tests.bench.peers.ground import STEPS_MAX, Ground, make_model, wrap_ddp

ACTIVE = 4
TUNED_S = 0.05
GROUP_TIMEOUT = timedelta(seconds=5)
dist: Any = torch.distributed
inprocess: Any = importlib.import_module("nvidia_resiliency_ext.inprocess")
memory: dict[str, Any] = {"step": -1}


def warm_up() -> None:
    """Torch's first step of a process costs a second; a reserve rank can spend it before it is needed."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    model, optimizer = make_model()
    wrapped = torch.nn.parallel.DistributedDataParallel(model)
    wrapped(torch.zeros(8, 32)).mean().backward()
    optimizer.step()
    state = [copy.deepcopy(optimizer.state_dict())]
    dist.broadcast_object_list(state, src=0)
    dist.destroy_process_group()


def keep(step: int, model: Any, optimizer: Any) -> None:
    state = copy.deepcopy([model.state_dict(), optimizer.state_dict()])
    memory.update(step=step, state=state)


def restore(model: Any, optimizer: Any) -> int:
    """The newest state that any rank has; the step to go on with."""
    steps = [torch.zeros(1, dtype=torch.long) for _ in range(dist.get_world_size())]
    dist.all_gather(steps, torch.tensor([memory["step"]]))
    known = [int(step) for step in steps]
    newest = max(known)
    if newest < 0:
        return 0
    state: list[Any] = [memory.get("state")]
    dist.broadcast_object_list(state, src=known.index(newest))
    model.load_state_dict(state[0][0])
    optimizer.load_state_dict(state[0][1])
    memory.update(step=newest, state=state[0])
    return newest + 1


def train(base_store: Any, call_wrapper: Any = None) -> None:
    """One life of a rank. Where it ends by an error it lets go of its connections: a neighbour that was not
    hit itself would wait for them, and gloo cannot be aborted from another thread."""
    life = call_wrapper.iteration
    ground = Ground(int(os.environ["RANK"]))
    if life:
        ground.disarm()
    store, world = dist.PrefixStore(str(life), base_store), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", timeout=GROUP_TIMEOUT, store=store, rank=ground.rank, world_size=world)
    try:
        run_steps(ground, call_wrapper, life)
    except BaseException as error:
        traceback.clear_frames(error.__traceback__)  # they hold DDP, and DDP holds the group
        if dist.is_initialized():
            dist.destroy_process_group()
        raise


def run_steps(ground: Ground, call_wrapper: Any, life: int) -> None:
    model, optimizer = make_model()
    ground.watch(model)
    wrapped = wrap_ddp(ground, model)
    start = restore(model, optimizer)
    if not life:
        ground.await_gate()
    for step in range(start, STEPS_MAX):
        ground.train(step, wrapped, optimizer)
        with call_wrapper.atomic():
            keep(step, model, optimizer)
        ground.record(step, life, dist.get_world_size())


def main() -> None:
    is_tuned = "--tuned" in sys.argv
    if is_tuned:
        warm_up()
    port = int(os.environ["MASTER_PORT"])
    is_host = os.environ["RANK"] == "0"
    base_store = dist.TCPStore("127.0.0.1", port + 1, is_master=is_host, wait_for_workers=False)
    assignment = importlib.import_module("nvidia_resiliency_ext.inprocess.rank_assignment")
    options: dict[str, Any] = {}
    if is_tuned:
        for name in ("monitor_thread", "monitor_process", "heartbeat", "progress_watchdog"):
            options[f"{name}_interval"] = timedelta(seconds=TUNED_S)
        options["last_call_wait"] = timedelta(seconds=TUNED_S)
    wrapper = inprocess.Wrapper(
        store_kwargs={"timeout": timedelta(seconds=60)},
        rank_assignment=inprocess.Compose(assignment.MaxActiveWorldSize(ACTIVE), assignment.FillGaps()),
        **options,
    )
    train.__annotations__["call_wrapper"] = inprocess.CallWrapper  # the wrapper fills it by its type
    wrapper(train)(base_store)


if __name__ == "__main__":
    main()
