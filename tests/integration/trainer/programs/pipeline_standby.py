"""A pipeline of three stages and one general standby, which takes the place of each stage in turn.

Argument: a folder. Says as JSON the final parameters of a run without a fault and of one run per victim.
"""

import json
import os
import signal
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from zygote import GUARD_S, Line, Ranks  # type: ignore[import-not-found]

from paceline.trainer import groups as rebuildable
from paceline.trainer import sandbox

warnings.simplefilter("ignore")
c10d: Any = dist  # its stores are not in its type stubs
SIZE, WIDTH, STEPS, LOST_AT = 3, 16, 8, 5
ROLES = ("first", "middle", "last")


class Stage:
    def __init__(self, rank: int) -> None:
        self.rank = rank
        torch.manual_seed(rank)
        self.module = torch.nn.Linear(WIDTH, WIDTH)
        self.optimizer = torch.optim.SGD(self.module.parameters(), lr=0.01, momentum=0.9)

    def step(self, number: int) -> None:
        self.optimizer.zero_grad()
        if self.rank == 0:
            given = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(number))
        else:
            given = torch.zeros(4, WIDTH)
            dist.recv(given, self.rank - 1)
            given.requires_grad_()
        out = self.module(given)
        if self.rank == SIZE - 1:
            out.square().mean().backward()
        else:
            dist.send(out.detach(), self.rank + 1)
            gradient = torch.zeros(4, WIDTH)
            dist.recv(gradient, self.rank + 1)
            out.backward(gradient)
        if self.rank > 0 and given.grad is not None:
            dist.send(given.grad, self.rank - 1)
        self.optimizer.step()
        dist.barrier()

    def state(self) -> dict[str, Any]:
        return {"module": self.module.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load(self, path: Path) -> None:
        state = torch.load(path)
        self.module.load_state_dict(state["module"])
        self.optimizer.load_state_dict(state["optimizer"])

    def parameters(self) -> list[str]:
        return [float(value).hex() for p in self.module.parameters() for value in p.flatten()]


def member(line: Line, rank: int, folder: Path, victim: int) -> None:
    groups = rebuildable.install("test")
    recorder = sandbox.record(groups, role=ROLES[rank]) if victim < 0 else None
    server, endpoint = rebuildable.host_store("127.0.0.1")
    line.tell(endpoint=endpoint)
    store = c10d.PrefixStore("first", rebuildable.join_store(line.hear("first")))
    dist.init_process_group("gloo", store=store, rank=rank, world_size=SIZE)
    stage = Stage(rank)
    for number in range(STEPS if victim < 0 else LOST_AT):
        stage.step(number)
        if recorder is not None and recorder.end_step() and number == 1:
            sandbox.save(recorder.recording(), folder / ROLES[rank])
    torch.save(stage.state(), folder / f"state{rank}")
    if victim >= 0:
        line.tell(saved=True)
        line.hear("go")
        if rank == victim:
            signal.raise_signal(signal.SIGKILL)
        lose(line, groups, stage)
        finish(line, groups, stage, rank)
    line.tell(parameters=stage.parameters())
    line.hear("end")
    del server


def lose(line: Line, groups: Any, stage: Stage) -> None:
    def serve() -> None:
        line.hear("abort")  # who is no neighbour of the victim would wait for one that waits
        groups.abort(0, "the controller says so")

    control = threading.Thread(target=serve)
    control.start()
    try:
        stage.step(LOST_AT)
    except RuntimeError as error:
        if groups.ended_by(error) is None:
            raise
    else:
        raise AssertionError("a step without the victim")
    control.join()


def finish(line: Line, groups: Any, stage: Stage, rank: int) -> None:
    at = line.hear("rebuild")
    groups.rebuild(1, 0, rebuildable.join_store(at), rank, SIZE, GUARD_S)
    stage.load(Path(line.hear("folder")) / f"state{rank}")
    for number in range(LOST_AT, STEPS):
        stage.step(number)


def standby(line: Line, folder: Path, victim: int) -> None:
    groups = rebuildable.install("test")
    recordings = {role: sandbox.load(folder / role) for role in ROLES}
    first = sandbox.stay_outside(groups, recordings["middle"])
    dist.init_process_group("gloo", store=c10d.HashStore(), rank=1, world_size=SIZE)
    assert first.left > 0
    left = {}
    for role in ("first", "last", "middle"):
        replay = sandbox.rehearse(groups, recordings[role])
        stage = Stage(dist.get_rank())
        stage.step(0)
        stage.step(1)
        left[role] = replay.left
    changed = []
    sandbox.rehearse(groups, recordings["middle"])
    for call in (
        lambda: dist.all_reduce(torch.zeros(4)),
        lambda: dist.recv(torch.zeros(5), 0),
        lambda: dist.new_group([0, 1]),
    ):
        try:
            call()
            changed.append("accepted")
        except sandbox.SequenceChanged as error:
            changed.append(str(error))
    line.tell(left=left, changed=changed)
    stage = Stage(victim)
    finish(line, groups, stage, victim)
    line.tell(parameters=stage.parameters())
    line.hear("end")


def run(folder: Path, victim: int) -> dict[str, Any]:
    with Ranks() as ranks:
        members = [ranks.fork(member, rank, folder, victim) for rank in range(SIZE)]
        endpoints = [child.hear("endpoint") for child in members]
        for child in members:
            child.tell(first=endpoints[0])
        said: dict[str, Any] = {}
        if victim >= 0:
            said = replace(ranks, members, endpoints, folder, victim)
        said["parameters"] = [child.hear("parameters") for child in members]
        for child in members:
            child.tell(end=True)
        return said


def replace(
    ranks: Ranks, members: list[Any], endpoints: list[str], folder: Path, victim: int
) -> dict[str, Any]:
    late = ranks.fork(standby, folder, victim)
    said = dict(late.hear_all("left"))
    for child in members:
        child.hear("saved")
    for child in members:
        child.tell(go=True)
    os.waitpid(members[victim].pid, 0)
    for rank, child in enumerate(members):
        if rank != victim:
            child.tell(abort=True)
    members[victim] = late
    at = next(endpoint for rank, endpoint in enumerate(endpoints) if rank != victim)
    for child in members:
        child.tell(rebuild=at)
        child.tell(folder=str(folder))
    return said


def main() -> None:
    folder = Path(sys.argv[1])
    json.dump({str(victim): run(folder, victim) for victim in (-1, 0, 1, 2)}, sys.stdout)
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
