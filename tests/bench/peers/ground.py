"""The same small training for every peer: model, step, fault, and what is written down.

Runs in a peer's own environment, so it needs torch and the standard library alone. A worker waits for a
file before its first step, so that nobody's start counts; its fault comes once, in its first life.
"""

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

FOLDER_VARIABLE = "PEER_FOLDER"
FAULT_VARIABLE = "PEER_FAULT"  # {"rank", "step", "phase"}
NAME_VARIABLE = "PEER_NAME"  # number of a process, where its rank is another matter
GATE = "gate"
FAULT_TIME = "fault-time"
WIDTH, LAYERS = 32, 3
PAUSE_S = 0.05  # of each step, as in `recovery`
STEPS_MAX = 2000  # a job ends because the bench ends it
GATE_S_MAX = 120.0


def make_model() -> tuple[Any, Any]:
    """The model of `repaired.py` and its optimizer."""
    torch.set_num_threads(1)
    torch.manual_seed(7)
    layers = [part for _ in range(LAYERS) for part in (torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU())]
    model = torch.nn.Sequential(*layers, torch.nn.Dropout(0.1), torch.nn.Linear(WIDTH, 1))
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)


class Ground:
    """Of one process. `life` of a record counts what the peer counts: restarts, iterations, quorums."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.folder = Path(os.environ[FOLDER_VARIABLE])
        self._fault: dict[str, Any] = json.loads(os.environ.get(FAULT_VARIABLE, "{}"))
        self._file = (self.folder / f"steps-{os.getpid()}.jsonl").open("a", buffering=1)
        self._step = 0

    def await_gate(self) -> None:
        """Say that this process is ready, and wait for the others."""
        (self.folder / f"ready-{os.getpid()}").touch()
        until = time.monotonic() + GATE_S_MAX
        while not (self.folder / GATE).exists() and time.monotonic() < until:
            time.sleep(0.005)

    def disarm(self) -> None:
        """This life of the process is not its first."""
        self._fault = {}

    def reach(self, phase: str) -> None:
        """The training thread is at `phase` of its step; it may end here."""
        if self._fault.get("rank") != self.rank or self._fault["step"] != self._step:
            return
        if self._fault["phase"] == phase:
            (self.folder / FAULT_TIME).write_text(f"{time.monotonic():.6f}")
            os.kill(os.getpid(), signal.SIGKILL)

    def watch(self, model: Any) -> None:
        """Reach `backward` where a gradient in the middle is made."""

        def hook(gradient: Any) -> Any:
            self.reach("backward")
            return gradient

        parameters = list(model.parameters())
        parameters[len(parameters) // 2].register_hook(hook)

    def train(self, step: int, model: Any, optimizer: Any) -> None:
        """One step up to the optimizer, its pause included."""
        self._step = step
        self.reach("forward")
        draw = torch.Generator().manual_seed(step * 64 + self.rank)
        data = torch.rand(8, 1, generator=draw).expand(-1, WIDTH)
        optimizer.zero_grad()
        loss = (model(data) - data.mean(1, keepdim=True)).square().mean()
        loss.backward()
        self.reach("optimizer")
        optimizer.step()
        time.sleep(PAUSE_S)

    def record(self, step: int, life: int, world: int) -> None:
        """The step counts: `world` ranks have given their gradients to it."""
        entry = {"at_s": time.monotonic(), "step": step, "life": life, "world": world, "rank": self.rank}
        self._file.write(json.dumps(entry) + "\n")
        self.reach("snapshot")


def wrap_ddp(ground: Ground, model: Any) -> Any:
    """DDP that reaches `in_collective` once its all-reduce was handed to the backend."""
    wrapped = torch.nn.parallel.DistributedDataParallel(model)
    world = dist.get_world_size()

    def hook(_: object, bucket: Any) -> Any:
        future: Any = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
        ground.reach("in_collective")
        return future.then(lambda done: done.value()[0].div_(world))

    hook.__annotations__.clear()  # DDP takes its own types or none
    wrapped.register_comm_hook(None, hook)
    return wrapped
