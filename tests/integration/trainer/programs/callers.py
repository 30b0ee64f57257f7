"""Every way to reach a collective, once each, on real gloo; says as JSON what the page was told.

First 50 DDP steps without Paceline in the process, then the same steps with it.
"""

import json
import os
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch.distributed import all_reduce as imported_before
from torch.distributed import distributed_c10d
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from paceline.contracts.codes import Function
from paceline.probe.reader import PageReader
from paceline.trainer import attach, process
from paceline.trainer.probe import NativeProbe

STEPS = 50
FIELDS = ("comm", "instance", "nranks", "started", "completed", "open_ops")
seen: list[str] = []
said: dict[str, Any] = {"callers": {}}


class Spy:
    """The real page, with the functions of its operations written down."""

    def __init__(self, page: Any) -> None:
        self._page = page

    def __getattr__(self, name: str) -> Any:
        return getattr(self._page, name)

    def enter(self, *arguments: int) -> int:
        seen.append(Function(arguments[1]).name)
        return int(self._page.enter(*arguments))


class SpyProbe(NativeProbe):
    def page(self, *arguments: Any) -> Any:
        return Spy(super().page(*arguments))


def losses() -> list[str]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    parallel = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.05)
    data = torch.randn(STEPS, 4, 8, generator=torch.Generator().manual_seed(dist.get_rank()))
    found = []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = parallel(data[step]).square().mean()
        loss.backward()
        optimizer.step()
        found.append(float(loss).hex())
    return found


def call(name: str, action: Callable[[], object]) -> None:
    seen.clear()
    action()
    said["callers"][name] = list(seen)


def direct(rank: int, size: int) -> None:
    t = torch.ones(4)
    world: Any = dist.group.WORLD
    parts = [torch.ones(4) for _ in range(size)]
    call("all_reduce", lambda: dist.all_reduce(t))
    call("imported before", lambda: imported_before(t))
    call("async", lambda: dist.all_reduce(t, async_op=True).wait())
    call("method", lambda: world.allreduce([t]).wait())
    call("older method", lambda: world._allgather_base(torch.ones(4 * size), t).wait())
    call("broadcast", lambda: dist.broadcast(t, 0))
    call("reduce", lambda: dist.reduce(t, 1))
    call("all_gather", lambda: dist.all_gather(parts, t))
    call("all_gather_into_tensor", lambda: dist.all_gather_into_tensor(torch.ones(4 * size), t))
    call("reduce_scatter", lambda: dist.reduce_scatter(t, parts))
    call("reduce_scatter_tensor", lambda: dist.reduce_scatter_tensor(t, torch.ones(4 * size)))
    call("all_to_all_single", lambda: dist.all_to_all_single(torch.ones(4), t))
    call("all_to_all", lambda: dist.all_to_all([torch.ones(4) for _ in range(size)], parts))
    call("gather", lambda: dist.gather(t, parts if rank == 0 else None, 0))
    call("scatter", lambda: dist.scatter(t, parts if rank == 0 else None, 0))
    call("barrier", lambda: dist.barrier())
    call("monitored_barrier", lambda: dist.monitored_barrier())
    call("all_gather_object", lambda: dist.all_gather_object([None] * size, {"a": 1}))
    call("broadcast_object_list", lambda: dist.broadcast_object_list([1], 0))


def point_to_point(rank: int) -> None:
    t, other = torch.ones(4), 1 - rank
    call("send and recv", lambda: dist.send(t, 1) if rank == 0 else dist.recv(t, 0))
    call("recv from any", lambda: dist.recv(t) if rank == 0 else dist.send(t, 0))

    def batch() -> None:
        sends = dist.P2POp(dist.isend, t, other)
        receives = dist.P2POp(dist.irecv, torch.ones(4), other)
        for work in dist.batch_isend_irecv([sends, receives]):
            work.wait()

    call("batch_isend_irecv", batch)
    if rank == 0:
        received = torch.zeros(1)
        source = dist.recv(received)
        said["any source"] = [source, float(received)]
    else:
        dist.send(torch.full((1,), 7.0), 0)


def indirect() -> None:
    t = torch.ones(4)
    world: Any = dist.group.WORLD

    def coalesced() -> None:
        with distributed_c10d._coalescing_manager(async_ops=True) as works:
            dist.all_reduce(torch.ones(3))
            dist.all_reduce(torch.ones(3))
        works.wait()

    call("coalescing manager", coalesced)
    call("functional all_reduce", lambda: funcol.all_reduce(t, "sum", world).sum().item())
    call("functional all_gather", lambda: funcol.all_gather_tensor(t, 0, world).sum().item())
    call("functional reduce_scatter", lambda: funcol.reduce_scatter_tensor(t, "sum", 0, world).sum().item())
    pair = dist.new_group([0, 1], group_desc="tp_0")
    call("new_group", lambda: dist.all_reduce(t, group=pair))
    dist.destroy_process_group(pair)
    again = dist.new_group([0, 1], group_desc="tp_0")
    call("new_group again", lambda: dist.all_reduce(t, group=again))
    alone = dist.new_group([0])
    said["member of a group of rank 0"] = alone != dist.GroupMember.NON_GROUP_MEMBER


def parallel_models(size: int) -> None:
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    model(torch.ones(2, 4)).sum().backward()
    model(torch.ones(2, 4)).sum().backward()
    call("DDP step", lambda: model(torch.ones(2, 4)).sum().backward())
    mesh = init_device_mesh("cpu", (1, size), mesh_dim_names=("pp", "dp"))
    sharded = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
    fully_shard(sharded, mesh=mesh["dp"])
    call("FSDP2 step", lambda: sharded(torch.ones(2, 4)).sum().backward())
    tensor = distribute_tensor(torch.arange(8.0).reshape(4, 2), mesh["dp"], [Shard(0)])
    call("DTensor redistribute", lambda: tensor.redistribute(mesh["dp"], [Replicate()]).to_local())


def main() -> None:
    dist.init_process_group("gloo")
    said["plain losses"] = losses()
    dist.destroy_process_group()
    process.install(SpyProbe())
    attach(name="callers")
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    said["observed losses"] = losses()
    direct(rank, size)
    point_to_point(rank)
    indirect()
    parallel_models(size)
    current = process.current()
    assert current is not None
    session = current.session
    assert session is not None
    session.await_attempt(10)
    snapshot = PageReader(session.page.page_fd, session.page.control_fd).read()
    said["frames"] = [
        {
            name: int(frame[name])
            for name in ("comm", "instance", "nranks", "started", "completed", "open_ops")
        }
        for frame in snapshot.frames
    ]
    said["p2p"] = [int(frame["p2p_started"]) for frame in snapshot.frames]
    said["errors"] = [session.guard.errors, int(snapshot.process["errors"])]
    said["attempt"] = [session.hello.attempt, session.hello.attempt_source]
    said["steps"] = int(snapshot.process["step"])
    said["torch"] = torch.__version__
    said["seam"] = type(dist.group.WORLD).__name__
    dist.destroy_process_group()
    with open(os.environ["RESULT"] + str(rank), "w") as file:
        json.dump(said, file)


if __name__ == "__main__":
    main()
