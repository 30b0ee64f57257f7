"""One process of a job whose ranks are replaced as planned: a rank that trains, or the one outside.

At each switch the process outside takes the place of a rank, and that one is outside next, so that one
job shows many switches. Training is an Adam step over `state_bytes` of parameters and moments, with the
vote in the gradients' all-reduce. Prints one JSON object (tests/bench/planned_switch.py reads it).
"""

import hashlib
import importlib
import json
import os
import random
import statistics
import sys
import time
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise
from typing import Any

import torch

from paceline.trainer.groups import Groups, RebuildFailed, install, join_store
from paceline.trainer.groups.backends import GlooRebuild
from paceline.trainer.groups.install import maker
from paceline.trainer.groups.swappable import refusing
from paceline.trainer.switch import Member, Replacement, derive_topology, plan_switch
from paceline.trainer.switch.agree import Decision
from paceline.trainer.switch.errors import PrepareFailed, SwitchCancelled
from paceline.trainer.switch.members import Joining, PlannedSwitch, SwitchOrder

# As torch is here: without its stubs for what is not exported.
dist: Any = importlib.import_module("torch.distributed")
STEADY_STEPS = 10  # before a switch, whose median is the steady step


@dataclass(frozen=True)
class Settings:
    ranks: int = 4
    switches: int = 1
    every: int = 20  # steps from one switch to the next
    state_bytes: int = 4 << 20
    step_ms: float = 20.0  # of work that needs no processor
    connect_ms: float = 0.0
    timeout_s: float = 60.0
    seed: int = 0
    foreground_every: int = 0  # each n-th switch stops training while it prepares
    fault: str = ""  # late | dead | other_tensors | other_plan, at the first switch

    @property
    def steps(self) -> int:
        return self.every * (self.switches + 1)

    def leaver(self, switch: int) -> int:
        return random.Random(f"{self.seed}/{switch}").randrange(self.ranks)

    def foreground(self, switch: int) -> bool:
        return bool(self.foreground_every) and switch % self.foreground_every == self.foreground_every - 1


class SlowConnects(GlooRebuild):
    """Every connection takes `connect_s` longer: the look-up of a peer's address is delayed."""

    def __init__(self, connect_s: float) -> None:
        super().__init__()
        self._connect_s = connect_s

    def build(self, store: Any, rank: int, size: int, *rest: Any) -> Any:
        slow = _SlowStore(store, f"/{rank}", self._connect_s) if self._connect_s else store
        return super().build(slow, rank, size, *rest)


class _SlowStore(dist.Store):  # type: ignore[misc]
    def __init__(self, inner: Any, own: str, delay_s: float) -> None:
        super().__init__()
        self._inner, self._own, self._delay_s = inner, own, delay_s

    def set(self, key: str, value: Any) -> None:
        self._inner.set(key, value)

    def get(self, key: str) -> bytes:
        if not key.endswith(self._own):
            time.sleep(self._delay_s)
        return bytes(self._inner.get(key))

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        self._inner.wait(keys, *(() if timeout is None else (timeout,)))

    def add(self, key: str, value: int) -> int:
        return int(self._inner.add(key, value))


class Outside:
    """Groups of a process that has no rank yet: they refuse everything."""

    def build(self, store: Any, rank: int, size: int, *rest: Any) -> Any:
        return refusing(rank, size)


class Process:
    def __init__(self, settings: Settings, number: int, endpoint: str) -> None:
        self.settings = settings
        self.number = number
        self.rank = number if number < settings.ranks else -1
        self.endpoint = endpoint
        self.backend = SlowConnects(settings.connect_ms / 1e3)
        self.groups: Groups = install(job="bench", backend=self.backend)
        self.topology = derive_topology([Member(f"p{at}", f"m{at}") for at in range(settings.ranks)], rings=2)
        self.outside = Member(f"p{settings.ranks}", f"m{settings.ranks}")
        self.rows: list[dict[str, Any]] = []
        self.ends: list[float] = []  # of steps, this process's clock
        self.switch: PlannedSwitch | None = None
        self.number_of_switch = 0
        values = max(1, settings.state_bytes // 12)
        torch.manual_seed(1)
        self.tensors = {
            name: torch.randn(values) * scale for name, scale in (("p", 1.0), ("m", 0.0), ("v", 0.0))
        }

    def connect(self) -> Any:
        return join_store(self.endpoint)

    def init(self) -> None:
        timeout = timedelta(seconds=60)
        if self.rank >= 0:
            store, rank = self.connect(), self.rank
        else:
            store, rank = dist.HashStore(), 0
            installed = maker()
            assert installed is not None
            installed.stay_outside(Outside())
        dist.init_process_group(
            "gloo", store=store, rank=rank, world_size=self.settings.ranks, timeout=timeout
        )

    # one step

    def step(self, step: int, vote: float) -> float:
        time.sleep(self.settings.step_ms / 1e3)
        p, m, v = self.tensors["p"], self.tensors["m"], self.tensors["v"]
        bucket = torch.empty(p.numel() + 1)
        torch.mul(p, 1e-3, out=bucket[:-1])
        bucket[:-1].add_(((self.rank * 7 + step) % 13) * 0.01)
        bucket[-1] = vote
        dist.all_reduce(bucket)
        total = float(bucket[-1])
        gradient = bucket[:-1].div_(self.settings.ranks)
        m.mul_(0.9).add_(gradient, alpha=0.1)
        v.mul_(0.99).addcmul_(gradient, gradient, value=0.01)
        p.addcdiv_(m, v.sqrt().add_(1e-6), value=-1e-2)
        self.ends.append(time.monotonic())
        return total

    # switches

    def plan(self, switch: int) -> tuple[SwitchOrder, Any]:
        leaver = self.settings.leaver(switch)
        replacement = Replacement(self.topology.members[leaver].machine, (self.outside,))
        plan, after = plan_switch(self.topology, [replacement])
        digest = plan.digest()
        if (
            self.settings.fault == "other_plan"
            and switch == 0
            and self.rank == (leaver + 1) % self.settings.ranks
        ):
            digest = hashlib.sha256(b"other").hexdigest()
        order = SwitchOrder(
            self.topology.generation + 1, switch, leaver, self.settings.ranks, digest, self.settings.timeout_s
        )
        return order, after

    def moved(self, after: Any, leaver: int) -> None:
        self.outside, self.topology = self.topology.members[leaver], after

    def train(self, step: int) -> None:
        """Until the last step, or until this rank has left."""
        settings = self.settings
        while step < settings.steps:
            number = self.number_of_switch
            if self.switch is None and number < settings.switches and step >= settings.every * (number + 1):
                order, after = self.plan(number)
                self.switch = PlannedSwitch(self.groups, order, self.rank, self.connect, self.tensors)
                self.begun = step
                self.steady_s = self.median_step()
                self.switch.start()
                if settings.foreground(number):
                    self.stand_still()
            total = self.step(step, self.switch.vote() if self.switch is not None else 0.0)
            if self.switch is not None:
                self.decide(step, total, order, after)
                if self.rank < 0:
                    return
            step += 1

    def stand_still(self) -> None:
        assert self.switch is not None
        while self.switch.vote() == 0.0:
            time.sleep(0.001)

    def decide(self, step: int, total: float, order: SwitchOrder, after: Any) -> None:
        assert self.switch is not None
        decision = self.switch.decide(total)
        if decision is Decision.GO_ON:
            return
        switch, self.switch = self.switch, None
        row = {
            "switch": self.number_of_switch,
            "foreground": self.settings.foreground(self.number_of_switch),
            "decision": decision.name,
            "begun": self.begun,
            "step": step,
            "steady_s": self.steady_s,
            "prepare_s": switch.prepare_s,
            "error": repr(switch.error) if switch.error else "",
            "at": len(self.ends) - 1,
        }
        self.number_of_switch += 1
        if decision is Decision.SWITCH:
            stays = switch.switch(step)
            self.moved(after, order.leaver)
            if not stays:
                self.rank = -1
                return
        self.rows.append(row)

    def median_step(self) -> float:
        ends = self.ends[-STEADY_STEPS - 1 :]
        return statistics.median(b - a for a, b in pairwise(ends))

    def join(self) -> int:
        """Outside: the step after which training goes on, -1 where no switch is left."""
        while self.number_of_switch < self.settings.switches:
            number = self.number_of_switch
            order, after = self.plan(number)
            fault = self.settings.fault if number == 0 else ""
            self.number_of_switch += 1
            tensors = dict(self.tensors)
            if fault == "dead":
                continue
            if fault == "late":
                time.sleep(1.5)
            if fault == "other_tensors":
                tensors["p"] = torch.zeros(3)
            joining = Joining(self.groups, order, self.connect, tensors)
            try:
                joining.prepare()
                step = joining.take_over()
            except (PrepareFailed, RebuildFailed, SwitchCancelled) as error:
                self.rows.append({"switch": number, "joiner": repr(error)})
                continue
            self.rank = order.leaver
            self.moved(after, order.leaver)
            return step
        return -1

    def run(self) -> dict[str, Any]:
        self.init()
        step = 0
        while True:
            if self.rank < 0:
                step = self.join() + 1
                if step == 0:
                    break
                self.ends.append(time.monotonic())
            self.train(step)
            if self.rank >= 0:
                break
        return {"number": self.number, "rank": self.rank, "rows": self.finish_rows(), "state": self.state()}

    def finish_rows(self) -> list[dict[str, Any]]:
        """With the gap: from the end of the last step before the switch to that of the first after it."""
        for row in self.rows:
            at = row.pop("at", None)
            if at is None:
                continue
            before = at - 1 if row["foreground"] else at  # stood still before the step that decided
            if at + 1 < len(self.ends):
                row["gap_s"] = self.ends[at + 1] - self.ends[before]
                row["gap_steps"] = at + 1 - before
                row["preparing_s"] = [
                    b - a for a, b in zip(self.ends[: at + 1], self.ends[1 : at + 1], strict=False)
                ][-(row["step"] - row["begun"] + 1) :]
        return self.rows

    def state(self) -> str:
        if self.rank < 0:
            return ""
        content = b"".join(bytes(self.tensors[name].view(torch.uint8).tolist()) for name in ("p", "m", "v"))
        return hashlib.sha256(content).hexdigest()


def main() -> int:
    settings = Settings(**json.loads(sys.argv[1]))
    process = Process(settings, int(sys.argv[2]), sys.argv[3])
    answer = process.run()
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()
    os._exit(0)  # dead groups are left behind: their destructors wait for peers


if __name__ == "__main__":
    sys.exit(main())
