"""A step of DDP, of DDP with ZeroRedundancyOptimizer and of FSDP2 is cut off at each of its operations.

Two ranks, observed by the hook. After each cut the groups are rebuilt, the state is that before the step
and the step is run again. Says as JSON whether the parameters are bitwise those without a cut.
"""

import copy
import json
import os
import sys
import threading
import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from zygote import GUARD_S, Line, Ranks  # type: ignore[import-not-found]

from paceline.contracts.codes import FrameFlag
from paceline.probe.reader import PageReader
from paceline.trainer import attach, process
from paceline.trainer import groups as rebuildable

warnings.simplefilter("ignore")
WIDTH, BEFORE, CUTS_MAX = 8, 3, 12


class Training:
    def __init__(self, kind: str) -> None:
        torch.manual_seed(0)
        self.kind = kind
        layers = [torch.nn.Linear(WIDTH, WIDTH) for _ in range(2)]
        self.model: Any = torch.nn.Sequential(*layers)
        if kind == "fsdp2":
            for layer in layers:
                fully_shard(layer)
            fully_shard(self.model)
        else:
            self.model = torch.nn.parallel.DistributedDataParallel(self.model, bucket_cap_mb=0.0003)
        parameters = self.model.parameters()
        if kind == "zero":
            self.optimizer: Any = ZeroRedundancyOptimizer(parameters, torch.optim.Adam, lr=0.01)
        else:
            self.optimizer = torch.optim.Adam(parameters, lr=0.01)

    def step(self, number: int) -> None:
        data = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(number * 2 + dist.get_rank()))
        self.optimizer.zero_grad()
        self.model(data).square().mean().backward()
        self.optimizer.step()

    def own(self) -> dict[str, Any]:
        inner = self.optimizer.optim if self.kind == "zero" else self.optimizer
        return copy.deepcopy({"model": self.model.state_dict(), "optimizer": inner.state_dict()})

    def load(self, state: dict[str, Any]) -> None:
        inner = self.optimizer.optim if self.kind == "zero" else self.optimizer
        self.model.load_state_dict(copy.deepcopy(state["model"]))
        inner.load_state_dict(copy.deepcopy(state["optimizer"]))

    def digest(self) -> list[str]:
        tensors = [getattr(p, "_local_tensor", p).detach() for p in self.model.parameters()]
        return [float(tensor.double().sum()).hex() for tensor in tensors]


class Cut:
    """In place of a recorder: ends the generation at one operation, on one rank."""

    def __init__(self, groups: Any, at: int) -> None:
        self._groups, self._at, self.count = groups, at, 0

    def begin(self, *_: Any) -> None:
        if self.count == self._at:
            self._groups.abort(self._groups.generation, "cut off")
        self.count += 1


def rank_of(line: Line, rank: int, kind: str) -> None:
    groups = rebuildable.install("test")
    attach(name="cuts")
    server, endpoint = rebuildable.host_store("127.0.0.1")
    line.tell(endpoint=endpoint)
    at = line.hear("at")
    dist.init_process_group("gloo", store=rebuildable.join_store(at), rank=rank, world_size=2)
    training = Training(kind)
    for number in range(BEFORE):
        training.step(number)
    state = training.own()
    training.step(BEFORE)
    expected = training.digest()
    found = []
    for cut in range(CUTS_MAX):
        training.load(state)
        if not cut_off(line, groups, training, rank, cut):
            break
        groups.rebuild(groups.generation + 1, 0, rebuildable.join_store(at), rank, 2, GUARD_S)
        rebuildable.forget_interrupted_step([training.model])
        training.load(state)
        training.step(BEFORE)
        found.append(training.digest() == expected)
    line.tell(found=found, frames=frames(), left=groups.report().left_groups)
    line.hear("end")
    del server


def cut_off(line: Line, groups: Any, training: Training, rank: int, cut: int) -> bool:
    """Whether the step had so many operations."""
    control = threading.Thread(target=lambda: groups.abort(line.hear("abort"), "the controller says so"))
    groups.recorder = Cut(groups, cut) if rank == 1 else None
    try:
        control.start()
        training.step(BEFORE)
        groups.check()
    except RuntimeError as error:
        if groups.ended_by(error) is None:
            raise
    groups.recorder = None
    ended = groups.ended
    line.tell(ended=ended, generation=groups.generation)
    control.join()
    line.tell(over=True)
    return bool(line.hear("again"))


def frames() -> list[list[int]]:
    """[instance, closed, open operations] of each frame of the page."""
    current = process.current()
    assert current is not None
    session = current.session
    assert session is not None
    snapshot = PageReader(session.page.page_fd, session.page.control_fd).read()
    closed = int(FrameFlag.CLOSED)
    return [
        [int(frame["instance"]), int(bool(int(frame["flags"]) & closed)), int(frame["open_ops"])]
        for frame in snapshot.frames
    ]


def run(kind: str) -> dict[str, Any]:
    with Ranks() as ranks:
        members = [ranks.fork(rank_of, rank, kind) for rank in range(2)]
        endpoints = [child.hear("endpoint") for child in members]
        for child in members:
            child.tell(at=endpoints[0])
        for _ in range(CUTS_MAX):
            first = members[1].hear_all("ended")
            for child in members:
                child.tell(abort=first["generation"] if first["ended"] else -1)
            members[0].hear("ended")
            for child in members:
                child.hear("over")
                child.tell(again=first["ended"])
            if not first["ended"]:
                break
        said = [child.hear_all("found") for child in members]
        for child in members:
            child.tell(end=True)
        return {"found": [one["found"] for one in said], "frames": [one["frames"] for one in said]}


def main() -> None:
    json.dump({kind: run(kind) for kind in sys.argv[1:]}, sys.stdout)
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
