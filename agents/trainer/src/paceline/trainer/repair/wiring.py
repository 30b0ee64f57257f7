"""Makes the process groups of a supervised process replaceable, and keeps a standby's to itself.

Called by torch's autoload, so before the script can make a group.
"""

import functools
import importlib
import logging
import os
import weakref
from collections.abc import Mapping
from typing import Any

from paceline.trainer.groups import Groups, forget_interrupted_step, install
from paceline.trainer.groups.install import maker
from paceline.trainer.groups.moving import meshes, move_fsdp2, move_meshes, move_zero
from paceline.trainer.protection.sources import is_zero
from paceline.trainer.repair.place import own_address
from paceline.trainer.supervisor import FD_VARIABLE, ROLE_VARIABLE

log = logging.getLogger("paceline")


class Wiring:
    """`outside`: this process is in no group yet, as a standby or a joiner; `rank`: as which it warms up."""

    def __init__(self, groups: Groups, outside: bool, rank: int, size: int, host: str) -> None:
        self.groups = groups
        self.outside = outside
        self.rank = rank
        self.size = size
        self.host = host
        self._modules: list[Any] = []
        self._optimizers: list[Any] = []
        self._samplers: list[Any] = []
        self._checked: weakref.WeakSet[Any] = weakref.WeakSet()
        self._meshes: list[Any] = []

    @property
    def connected(self) -> bool:
        """Whether the script has made its world."""
        return bool(self.groups.living())

    def track(self, protected: Mapping[str, Any]) -> None:
        """Of these the gradients are forgotten, and no optimizer of them steps on a broken group."""
        things = list(protected.values())
        self._modules = [one for one in things if callable(getattr(one, "parameters", None))]
        self._optimizers = [one for one in things if callable(getattr(one, "register_step_pre_hook", None))]
        for optimizer in self._optimizers:
            if optimizer not in self._checked:
                self._checked.add(optimizer)
                optimizer.register_step_pre_hook(lambda *_: self.groups.check())

    def follow_rank(self, samplers: Mapping[str, Any]) -> None:
        """Remember whom `give_rank` tells; only a sampler over all ranks can be told."""
        for name, sampler in samplers.items():
            if (sampler.num_replicas, sampler.rank) == (self.size, self.rank):
                self._samplers.append(sampler)
            else:
                log.warning(
                    "paceline: %s samples for %d replicas, the job has %d ranks: set its rank in on_promote",
                    name, sampler.num_replicas, self.size,
                )  # fmt: skip

    def note_meshes(self) -> None:
        """Remember the meshes that the script has made; it is over with its warm-up, and nobody waits."""
        self._meshes = meshes()

    def give_rank(self, rank: int) -> None:
        """This process is `rank` from now on, and so are its groups; before its state is restored."""
        for sampler in self._samplers:
            sampler.rank = rank
        move_meshes(self._meshes, rank)
        for module in self._modules:
            if hasattr(module, "reset_iter_state"):
                move_fsdp2(module)
        for optimizer in self._optimizers:
            if is_zero(optimizer):
                move_zero(optimizer)

    def forget_step(self) -> None:
        """What the interrupted step has left in the modules: gradients, FSDP2's all-gathers and places."""
        forget_interrupted_step(self._modules)


_wiring: Wiring | None = None


def wiring() -> Wiring | None:
    return _wiring


def wire(environment: Mapping[str, str] = os.environ) -> Wiring | None:
    """Install the replaceable groups in a supervised process; None elsewhere. The same at every call."""
    global _wiring
    if _wiring is None and environment.get(FD_VARIABLE):
        role = environment.get(ROLE_VARIABLE, "member")
        outside = role != "member"
        size = int(environment.get("WORLD_SIZE") or 1)
        # A joiner is started for one rank, and its script may ask for it once; a standby may get any.
        rank = size - 1 if role == "standby" else int(environment.get("RANK") or 0)
        _wiring = Wiring(
            install(environment.get("PACELINE_JOB_ID") or "job"),
            outside,
            rank,
            size,
            own_address(environment),
        )
        if outside:
            _stay_outside(_wiring)
    return _wiring


def _stay_outside(wired: Wiring) -> None:
    """init_process_group meets nobody: its store is this process's own, its groups answer by themselves."""
    from paceline.trainer.repair.loopback import LoopbackBackend

    made = maker()
    assert made is not None
    made.stay_outside(LoopbackBackend())
    dist: Any = importlib.import_module("torch.distributed")
    c10d: Any = importlib.import_module("torch.distributed.distributed_c10d")
    original = c10d.init_process_group

    @functools.wraps(original)
    def init(
        backend: Any = None, init_method: Any = None, timeout: Any = None, *_: Any, **keywords: Any
    ) -> Any:
        for name in ("world_size", "rank", "store"):
            keywords.pop(name, None)
        store = dist.HashStore()
        return original(backend, None, timeout, wired.size, wired.rank, store, **keywords)

    for holder in (c10d, dist):
        holder.init_process_group = init
