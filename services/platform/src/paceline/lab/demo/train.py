"""What one rank of the demo runs: data, pipeline and tensor parallel training on 8 gloo ranks.

Rank = dp * 4 + pp * 2 + tp. Groups: the world, four tensor, four pipeline and four data groups. The
step is padded with a sleep to `PACELINE_DEMO_STEP_S`: it stands for the time an accelerator would
compute, and keeps eight ranks from taking the whole machine. Runs under `paceline demo` and under any
launcher that sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT.
"""

import os
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn import functional

from paceline import trainer as paceline
from paceline.lab.demo.faults import FaultPage, RankFaults
from paceline.lab.demo.model import BATCH, LENGTH, WIDTH, Stage, TensorGroup, make_batch

DP, PP, TP = 2, 2, 2
WORLD_SIZE = DP * PP * TP
MICROBATCHES = 2
LEARNING_RATE = 0.3
FAULTS_VARIABLE = "PACELINE_DEMO_FAULTS"
STEPS_VARIABLE = "PACELINE_DEMO_STEPS"
STEP_VARIABLE = "PACELINE_DEMO_STEP_S"
COMPILE_VARIABLE = "PACELINE_DEMO_COMPILE_S"  # a pause in front of the first step, as a compiler makes
STEP_S = 0.2
WORLD_REDUCE_ROOT_STEP = 1  # another operation: the broadcast names the next rank as its root


@dataclass(frozen=True)
class Coordinates:
    """Place of a rank in the mesh."""

    dp: int
    pp: int
    tp: int

    @classmethod
    def of(cls, rank: int) -> "Coordinates":
        return cls(dp=rank // (PP * TP), pp=rank // TP % PP, tp=rank % TP)

    @property
    def rank(self) -> int:
        return (self.dp * PP + self.pp) * TP + self.tp

    def as_dict(self) -> dict[str, int]:
        return {"dp": self.dp, "pp": self.pp, "tp": self.tp}


def group_ranks(kind: str) -> list[list[int]]:
    """Global ranks of every group of a kind (`tp`, `pp`, `dp`), in the order of their numbers."""
    members: dict[tuple[int, ...], list[int]] = {}
    for rank in range(WORLD_SIZE):
        place = Coordinates.of(rank).as_dict()
        key = tuple(value for name, value in place.items() if name != kind)
        members.setdefault(key, []).append(rank)
    return [members[key] for key in sorted(members)]


def make_groups(rank: int) -> dict[str, dist.ProcessGroup]:
    """This rank's group of each kind; every rank takes part in making all of them."""
    mine: dict[str, dist.ProcessGroup] = {}
    for kind in ("tp", "pp", "dp"):
        for number, ranks in enumerate(group_ranks(kind)):
            group = dist.new_group(ranks, group_desc=f"{kind}_{number}")
            if rank in ranks:
                mine[kind] = group
    return mine


class Trainer:
    """Model, optimiser and groups of one rank."""

    def __init__(self, rank: int, faults: RankFaults | None) -> None:
        self.rank = rank
        self.place = Coordinates.of(rank)
        self.groups = make_groups(rank)
        self._faults = faults
        self._first, self._last = self.place.pp == 0, self.place.pp == PP - 1
        torch.manual_seed(100 + self.place.pp * TP + self.place.tp)  # equal over the data group
        before = faults.before_each_operation if faults is not None else _nothing
        self.stage = Stage(
            first=self._first, last=self._last, tensor=TensorGroup(self.groups["tp"], TP, before)
        )
        self._data = torch.Generator().manual_seed(self.place.dp)
        self.synchronise_replicated()

    def synchronise_replicated(self) -> None:
        """What tensor ranks hold in common starts from the same values."""
        for name, parameter in self.stage.named_parameters():
            if ".up." not in name and ".down." not in name:
                dist.broadcast(parameter.data, src=self._peer(tp=0), group=self.groups["tp"])

    def _peer(self, *, pp: int | None = None, tp: int | None = None) -> int:
        place = self.place
        pp, tp = (place.pp if pp is None else pp), (place.tp if tp is None else tp)
        return Coordinates(place.dp, pp, tp).rank

    def step(self, number: int) -> float:
        """One optimiser step over MICROBATCHES microbatches; returns the mean loss of all ranks."""
        self.stage.zero_grad(set_to_none=True)
        batches = [make_batch(self._data) for _ in range(MICROBATCHES)]
        if self._faults is not None:
            self._faults.before_operation(number)
        total = self._forward_backward(batches)
        self._reduce_gradients()
        self._descend()
        return self._mean_loss(total)

    def _forward_backward(self, batches: list[tuple[torch.Tensor, torch.Tensor]]) -> float:
        """This stage's part; sends are asynchronous, for a blocking gloo send waits for its receive."""
        sends = []
        if self._first:
            outputs = []
            for index, (tokens, _) in enumerate(batches):
                outputs.append(self.stage(tokens))
                if index == 0 and self._faults is not None:
                    self._faults.after_operation()
                sends.append(dist.isend(outputs[-1].detach(), dst=self._peer(pp=1), group=self.groups["pp"]))
            for output in outputs:
                gradient = torch.empty_like(output)
                dist.recv(gradient, src=self._peer(pp=1), group=self.groups["pp"])
                # Not output.backward(gradient): that imports sympy, two CPU seconds per rank.
                (output * gradient).sum().backward()
            _finish(sends)
            return 0.0
        total = 0.0
        for index, (_, targets) in enumerate(batches):
            value = torch.empty(BATCH * LENGTH, WIDTH)
            dist.recv(value, src=self._peer(pp=0), group=self.groups["pp"])
            value.requires_grad_()
            loss = functional.cross_entropy(self.stage(value), targets.reshape(-1))
            if index == 0 and self._faults is not None:
                self._faults.after_operation()
            (loss / MICROBATCHES).backward()  # type: ignore[no-untyped-call]
            assert value.grad is not None
            sends.append(dist.isend(value.grad, dst=self._peer(pp=0), group=self.groups["pp"]))
            total += loss.item() / MICROBATCHES
        _finish(sends)
        return total

    def _reduce_gradients(self) -> None:
        gradients = [parameter.grad for parameter in self.stage.parameters() if parameter.grad is not None]
        flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
        dist.all_reduce(flat, group=self.groups["dp"])
        flat /= DP
        offset = 0
        for gradient in gradients:
            gradient.copy_(flat[offset : offset + gradient.numel()].view_as(gradient))
            offset += gradient.numel()

    def _descend(self) -> None:
        # By hand: constructing any torch.optim optimiser imports torch._dynamo, seconds of CPU per rank.
        with torch.no_grad():
            for parameter in self.stage.parameters():
                if parameter.grad is not None:
                    parameter.sub_(parameter.grad, alpha=LEARNING_RATE)

    def _mean_loss(self, loss: float) -> float:
        value = torch.tensor([loss, float(self._last)])
        if self._faults is not None and self._faults.calls_another():
            dist.broadcast(value, src=(self.rank + WORLD_REDUCE_ROOT_STEP) % WORLD_SIZE)
        else:
            dist.all_reduce(value)
        return float(value[0] / value[1])


def _nothing() -> None:
    """What a rank without faults does in front of an operation."""


def _finish(sends: list[dist.Work | None]) -> None:
    for send in sends:
        if send is not None:
            send.wait()


def train(rank: int, faults: RankFaults | None, steps: int, step_s: float) -> None:
    """Train until `steps` are done (0: until stopped)."""
    torch.set_num_threads(1)
    paceline.attach()
    dist.init_process_group("gloo", world_size=WORLD_SIZE, rank=rank)
    trainer = Trainer(rank, faults)
    time.sleep(float(os.environ.get(COMPILE_VARIABLE, "0")))
    number = 0
    while not steps or number < steps:
        started = time.monotonic()
        loss = trainer.step(number)
        number += 1
        paceline.step()
        time.sleep(max(0.0, step_s - (time.monotonic() - started)))
        if faults is not None:
            faults.finish_step(number, time.monotonic() - started, loss)
    dist.destroy_process_group()


def main() -> None:
    """Entry of one rank; the environment is that of any torch launcher."""
    rank = int(os.environ["RANK"])
    path = os.environ.get(FAULTS_VARIABLE)
    faults = None
    if path:
        faults = RankFaults(FaultPage(Path(path), WORLD_SIZE), rank, declare=paceline.phase)
    steps = int(os.environ.get(STEPS_VARIABLE, "0"))
    train(rank, faults, steps, float(os.environ.get(STEP_VARIABLE, STEP_S)))


if __name__ == "__main__":
    main()
