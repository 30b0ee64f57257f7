"""Trains DDP, ZeroRedundancyOptimizer and FSDP2 toys; each time one rank forgets everything and is restored.

Every kind runs twice with the same seeds: undisturbed, and with the loss after some steps. Prints one line a
kind: its name, the restored step, where the optimizer came from, and whether the end is bitwise the same.
"""

import hashlib
import os
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from paceline.trainer.protection import (
    GroupExchange,
    Member,
    Protected,
    Protector,
    ShardIdentity,
    exchange,
    restore,
)

LOST_AFTER, STEPS, VICTIM = 4, 7, 1
exchange.PIECE_BYTES = 1000  # so that tensors of a few kB move in several pieces, the last one shorter


class Toy:
    """One kind's objects on one rank, `seed` only matters until a restore."""

    def __init__(self, kind: str, seed: int) -> None:
        torch.manual_seed(seed)
        self.kind = kind
        size = dist.get_world_size()
        self.model: Any = torch.nn.Sequential(
            torch.nn.Linear(16, 32), torch.nn.BatchNorm1d(32), torch.nn.Dropout(0.2), torch.nn.Linear(32, 6)
        )
        if kind == "fsdp2":
            self.model = fully_shard(self.model, mesh=init_device_mesh("cpu", (size,)))
        parameters = self.model.parameters()
        if kind == "zero":
            self.optimizer: Any = ZeroRedundancyOptimizer(parameters, torch.optim.AdamW, lr=0.02)
        else:
            self.optimizer = torch.optim.AdamW(parameters, lr=0.02)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, STEPS + 1)
        self.data = torch.Generator().manual_seed(7 + dist.get_rank())
        objects = {
            "model": self.model,
            "optimizer": self.optimizer,
            "scheduler": self.scheduler,
            "data": self.data,
        }
        self.protector = Protector(Protected(objects, replicas=1 if kind == "fsdp2" else size))
        self.wrap()

    def wrap(self) -> None:
        """DDP anew, as its buckets would differ between an old and a fresh wrapper."""
        self.forward = self.model
        if self.kind != "fsdp2":
            self.forward = DistributedDataParallel(self.model, init_sync=False, broadcast_buffers=False)

    def step(self, step: int) -> None:
        self.protector.begin_step()
        self.optimizer.zero_grad()
        batch = torch.randn(8, 16, generator=self.data)
        self.forward(batch).square().mean().backward()
        self.optimizer.step()
        self.scheduler.step()
        self.protector.end_step(step)

    def fingerprint(self) -> str:
        digest = hashlib.sha256()
        for value in self.model.state_dict().values():
            local = value.to_local() if hasattr(value, "to_local") else value
            digest.update(local.contiguous().numpy().tobytes())
        inner = self.optimizer.optim if self.kind == "zero" else self.optimizer
        for index, values in sorted(inner.state_dict()["state"].items()):
            for name, value in sorted(values.items()):
                local = value.to_local() if hasattr(value, "to_local") else value
                digest.update(f"{index}{name}".encode() + local.contiguous().numpy().tobytes())
        digest.update(repr((self.optimizer.param_groups[0]["lr"], self.scheduler.last_epoch)).encode())
        digest.update(self.data.get_state().numpy().tobytes() + torch.get_rng_state().numpy().tobytes())
        return digest.hexdigest()


def members(toy: Toy) -> list[Member]:
    endpoints: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(endpoints, toy.protector.endpoint)
    return [Member(rank, endpoint, f"node-{rank}") for rank, endpoint in enumerate(endpoints)]


def train(kind: str, disturbed: bool) -> tuple[str, str]:
    rank = dist.get_rank()
    identity, key = ShardIdentity(f"job-{kind}", rank), b"secret" * 6
    toy = Toy(kind, seed=1)
    torch.manual_seed(50 + rank)
    toy.protector.join(identity, members(toy), key, 1)
    said = ""
    step = 0
    while step < STEPS:
        toy.step(step)
        step += 1
        if disturbed and step == LOST_AFTER:
            disturbed = False
            toy.protector.before_write()
            dist.barrier()
            if rank == VICTIM:
                toy.protector.close()
                toy = Toy(kind, seed=999)
                torch.manual_seed(12345)
            report = restore(
                toy.protector,
                identity,
                members(toy),
                key,
                2,
                GroupExchange(dist.distributed_c10d._get_default_group()),
            )
            toy.wrap()
            step = report.step + 1
            said = f"step={report.step} replayed={report.replayed} "
            said += f"own={report.bytes_own} shared={report.bytes_shared}"
    result = toy.fingerprint()
    toy.protector.before_write()
    status = toy.protector.status()[0]
    dist.barrier()
    toy.protector.close()
    return result, f"{said} {status}"


def main() -> None:
    dist.init_process_group("gloo")
    for kind in sys.argv[1:]:
        undisturbed, _ = train(kind, disturbed=False)
        repaired, said = train(kind, disturbed=True)
        print(f"{kind} rank={dist.get_rank()} same={undisturbed == repaired} {said}", flush=True)
    dist.barrier()
    os._exit(0)


main()
