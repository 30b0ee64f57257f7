"""A DDP job of three ranks, one of which is killed; a standby that was warmed up in the sandbox goes on.

Argument: a folder. The standby is in a network namespace without a device that is up, where there is one
to enter, until it is promoted. Says as JSON what it did, sent and cost.
"""

import ctypes
import json
import os
import signal
import statistics
import sys
import time
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
SIZE, VICTIM, WIDTH = 3, 1, 96
CLONE_NEWNET = 0x40000000


class Training:
    """Several buckets of DDP, so that its rebuild of them in the second step matters."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        layers = [torch.nn.Linear(WIDTH, WIDTH) for _ in range(4)]
        self.model = torch.nn.parallel.DistributedDataParallel(
            torch.nn.Sequential(*layers), bucket_cap_mb=0.05
        )
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)

    def step(self, number: int) -> float:
        began = time.perf_counter()
        data = torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(number * SIZE + dist.get_rank()))
        self.optimizer.zero_grad()
        self.model(data).square().mean().backward()
        self.optimizer.step()
        return (time.perf_counter() - began) * 1e3

    def state(self) -> list[torch.Tensor]:
        momenta = [self.optimizer.state[p]["momentum_buffer"] for p in self.model.parameters()]
        return [*(p.data for p in self.model.parameters()), *momenta]

    def digest(self) -> float:
        return float(sum(tensor.double().abs().sum() for tensor in self.state()))


def member(line: Line, rank: int, folder: str, steps: int) -> None:
    groups = rebuildable.install("test")
    recorder = sandbox.record(groups, role="any") if rank == VICTIM else None
    server, endpoint = rebuildable.host_store("127.0.0.1")
    line.tell(endpoint=endpoint)
    store = c10d.PrefixStore("first", rebuildable.join_store(line.hear("first")))
    dist.init_process_group("gloo", store=store, rank=rank, world_size=SIZE)
    training = Training()
    took_ms = []
    for number in range(steps):
        took_ms.append(training.step(number))
        if recorder is not None and not recorder.end_step() and number == 1:
            raise AssertionError("two steps are enough")
        if recorder is not None and number == 1:
            sandbox.save(recorder.recording(), Path(folder) / "recording")
            line.tell(recorded=training.digest())
    line.tell(steady=took_ms)
    line.hear("go")
    if rank == VICTIM:
        signal.raise_signal(signal.SIGKILL)
    try:
        while True:
            dist.barrier()
    except rebuildable.GenerationEnded as error:
        line.tell(raised=str(error))
    promote(line, groups, training, rank)
    del server


def promote(line: Line, groups: Any, training: Training, rank: int) -> None:
    at = line.hear("rebuild")
    report = groups.rebuild(1, 0, rebuildable.join_store(at), rank, SIZE, GUARD_S)
    for tensor in training.state():
        dist.broadcast(tensor, 0)
    recorder = sandbox.record(groups, steps=1)
    took_ms = [training.step(100)]
    calls = recorder.calls()["world"]
    recorder.stop()
    took_ms += [training.step(101 + number) for number in range(6)]
    line.tell(
        calls=calls,
        took_ms=took_ms,
        digest=training.digest(),
        rebuild_ms=report.rebuild_ms,
        swap_ms=report.swap_ms,
        rank=dist.get_rank(),
    )


def packets() -> dict[str, int]:
    """Packets of every interface of this namespace, and what IP was asked to send."""
    folder = Path("/proc/thread-self/net")  # the namespace is this thread's
    lines = (folder / "dev").read_text().splitlines()[2:]
    counts = {name.split(":")[0].strip(): name.split(":")[1].split() for name in lines}
    said = {
        f"{name} {way}": int(count[at])
        for name, count in counts.items()
        for way, at in (("in", 1), ("out", 9))
    }
    rows = [row.split() for row in (folder / "snmp").read_text().splitlines() if row.startswith("Ip:")]
    said["ip out"] = int(dict(zip(rows[0], rows[1], strict=True))["OutRequests"])
    return said


def standby(line: Line, folder: str, steps: int) -> None:
    home = os.open("/proc/self/ns/net", os.O_RDONLY)
    alone = ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET) == 0
    path = Path(folder) / "recording"
    line.hear("recorded")
    groups = rebuildable.install("test")
    recording = sandbox.load(path)
    replay = sandbox.stay_outside(groups, recording)
    dist.init_process_group("gloo", store=c10d.HashStore(), rank=recording.rank, world_size=recording.size)
    began = time.perf_counter()
    training = Training()
    took_ms = [training.step(number) for number in range(steps)]
    said = {"alone": alone, "packets": packets() if alone else {}, "left": replay.left}
    said |= {"digest": training.digest(), "warm_ms": (time.perf_counter() - began) * 1e3, "steps_ms": took_ms}
    if alone:
        ctypes.CDLL(None).setns(home, CLONE_NEWNET)
    line.tell(warm=said, bytes=recording.bytes)
    promote(line, groups, training, VICTIM)


def main() -> None:
    folder = sys.argv[1]
    with Ranks() as ranks:
        members = [ranks.fork(member, rank, folder, 20) for rank in range(SIZE)]
        late = ranks.fork(standby, folder, 2)
        endpoints = [child.hear("endpoint") for child in members]
        for child in members:
            child.tell(first=endpoints[0])
        said: dict[str, Any] = {"recorded": members[VICTIM].hear("recorded")}
        said["mode"] = oct(os.stat(Path(folder) / "recording").st_mode & 0o777)
        late.tell(recorded=True)
        steady = [child.hear("steady") for child in members]
        said["first_ms"], said["steady_ms"] = steady[0][0], statistics.median(steady[0][5:])
        said["warm"] = late.hear("warm")
        for child in members:
            child.tell(go=True)
        victim = members.pop(VICTIM)
        os.waitpid(victim.pid, 0)
        said["raised"] = [child.hear("raised") for child in members]
        everybody = [*members, late]
        for child in everybody:
            child.tell(rebuild=endpoints[0])
        for name in ("calls",):
            said[name] = [child.hear_all(name) for child in everybody]
    json.dump(said, sys.stdout)
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
