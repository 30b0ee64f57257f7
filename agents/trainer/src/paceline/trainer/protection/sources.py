"""How the state of each kind of object is read, and written back in place.

Reading gives live tensors, never copies, and lists them anew only where something has changed; a section
says whether its tensors are written by an optimizer's step only (`lazy`: they may be copied while forward
and backward run) and whether all ranks of the replica set hold the same (`Part.SHARED`).
"""

import random
import sys
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from paceline.trainer.protection.errors import StateMismatch, UnprotectableState
from paceline.trainer.protection.identity import Part
from paceline.trainer.protection.listing import (
    Held,
    ParameterOrder,
    held_by_module,
    held_by_optimizer,
    is_plain_optimizer,
)

MERSENNE_WORDS = 625  # of random.getstate(): 624 words and the position


@dataclass(frozen=True)
class Section:
    """A piece of an object's state: `tree` with live tensors, and how to treat them.

    A lazy one may give a function as `tree` that makes the section, on the copier's thread. While `stamp` is
    the same object, so are the tree and the tensors in it, and their memory; None promises nothing.
    """

    key: str
    tree: Any
    part: Part
    lazy: bool
    stamp: object = None

    def now(self) -> "Section":
        """Itself, or what its function makes."""
        made: Section = self.tree() if callable(self.tree) else self
        return made


class Source(Protocol):
    """One protected object."""

    def read(self) -> Sequence[Section]: ...

    def write(self, trees: Mapping[str, Any]) -> None:
        """Put back what `read` gave, by key, now with tensors on the host that must not be kept."""
        ...


def is_sharded(tensor: Any) -> bool:
    """Whether a tensor is a DTensor of which this rank holds only a piece."""
    placements = getattr(tensor, "placements", None)
    return placements is not None and any(not placement.is_replicate() for placement in placements)


def local(tensor: Any) -> Any:
    """The piece of a DTensor that this rank holds, without communication; any other tensor as it is."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


class ModuleSource:
    """A torch module, also wrapped by DDP or cut by FSDP2.

    Buffers differ between ranks (batch norm) and change in forward, so they are neither shared nor lazy.
    """

    def __init__(self, module: Any, part: Part) -> None:
        self._module = module
        self._part = part
        self._known: tuple[Sequence[str], frozenset[str]] = ((), frozenset())
        self._held: Held | None = None
        self._parameters: dict[str, Any] = {}
        self._rest: dict[str, Any] = {}

    def read(self) -> Sequence[Section]:
        if self._held is None or not self._held.stands():
            self._list()
        return (
            Section("parameters", self._parameters, self._part, lazy=True, stamp=self._held),
            Section("rest", self._rest, Part.OWN, lazy=False, stamp=self._held),
        )

    def _list(self) -> None:
        state = self._module.state_dict()
        names = self._names(list(state))
        self._parameters = {name: value for name, value in state.items() if name in names}
        self._rest = {name: value for name, value in state.items() if name not in names}
        self._held = held_by_module(self._module, state)

    def _names(self, keys: Sequence[str]) -> frozenset[str]:
        """Of the parameters; found anew when the state has other keys: a walk costs as much as the rest."""
        if self._known[0] != keys:
            named = self._module.named_parameters(remove_duplicate=False)
            self._known = (keys, frozenset(name for name, _ in named))
        return self._known[1]

    def write(self, trees: Mapping[str, Any]) -> None:
        import torch

        live, saved = dict(self._module.state_dict()), {**trees["parameters"], **trees["rest"]}
        if live.keys() != saved.keys():
            raise StateMismatch(f"module: names differ: {sorted(live.keys() ^ saved.keys())[:4]}")
        tensors = {name: value for name, value in saved.items() if isinstance(value, torch.Tensor)}
        with torch.no_grad():
            for name, value in tensors.items():
                copy_into(live[name], value, name)
        extra = {name: value for name, value in saved.items() if name not in tensors}
        if extra:
            self._module.load_state_dict(extra, strict=False)


class OptimizerSource:
    """A torch optimizer; of ZeroRedundancyOptimizer the local shard only, which needs no consolidation."""

    def __init__(self, optimizer: Any, part: Part) -> None:
        self._outer = optimizer
        self._part = part
        self._order = ParameterOrder()
        self._listed: tuple[Any, Held] | None = None  # of which optimizer, and what its state rests on
        self._state: dict[Any, Any] = {}

    @property
    def _inner(self) -> Any:
        """Asked anew: a standby that is given another rank gets another shard's."""
        return self._outer.optim if is_zero(self._outer) else self._outer

    def read(self) -> Sequence[Section]:
        inner = self._inner
        outer = [] if self._outer is inner else _hyperparameters(self._outer.param_groups)
        state: Any
        if is_plain_optimizer(inner):
            if not self._order.follow(inner.param_groups):
                self._listed = None
            numbers = zip(_hyperparameters(inner.param_groups), self._order.lists, strict=True)
            groups = [{**values, "params": order} for values, order in numbers]
            state = partial(self._read_state, inner)
        else:
            tree = inner.state_dict()
            state, groups = tree["state"], tree["param_groups"]
        return (
            Section("state", state, self._part, lazy=True),
            # A scheduler may hold tensors in the groups, and steps outside the optimizer's step.
            Section("groups", {"inner": groups, "outer": outer}, Part.OWN, lazy=False),
        )

    def _read_state(self, inner: Any) -> Section:
        """On the copier's thread: nobody but the optimizer's step writes it, and that waits."""
        if self._listed is None or self._listed[0] is not inner or not self._listed[1].stands():
            numbers = self._order.number_of
            self._state = {numbers.get(id(key), key): values for key, values in inner.state.items()}
            held = held_by_optimizer(inner)
            self._listed = None if held is None else (inner, held)
        stamp = None if self._listed is None else self._listed[1]
        return Section("state", self._state, self._part, lazy=True, stamp=stamp)

    def write(self, trees: Mapping[str, Any]) -> None:
        import torch

        state, groups = trees["state"], trees["groups"]
        live = self._inner.state_dict()
        if _shape_of(live["state"]) != _shape_of(state):
            self._load(state, groups["inner"])
            live = self._inner.state_dict()
        with torch.no_grad():
            for index, values in state.items():
                _write_values(live["state"][index], values, f"optimizer state {index}")
            _write_groups(self._inner.param_groups, groups["inner"])
            if groups["outer"]:
                _write_groups(self._outer.param_groups, groups["outer"])

    def _load(self, state: Mapping[Any, Any], groups: Sequence[Any]) -> None:
        """Let the optimizer make the entries that a fresh one does not have yet."""
        parameters = [parameter for group in self._inner.param_groups for parameter in group["params"]]
        fresh = {
            index: {name: _like(value, parameters[index]) for name, value in values.items()}
            for index, values in state.items()
        }
        try:
            self._inner.load_state_dict({"state": fresh, "param_groups": list(groups)})
        except (ValueError, KeyError, IndexError) as error:
            raise StateMismatch(f"optimizer: the copy is of other parameters: {error}") from error


class ObjectSource:
    """Anything else with state_dict and load_state_dict."""

    def __init__(self, thing: Any) -> None:
        self._thing = thing

    def read(self) -> Sequence[Section]:
        return (Section("state", self._thing.state_dict(), Part.OWN, lazy=False),)

    def write(self, trees: Mapping[str, Any]) -> None:
        self._thing.load_state_dict(_cloned(trees["state"]))


class GeneratorSource:
    """A torch.Generator."""

    def __init__(self, generator: Any) -> None:
        self._generator = generator

    def read(self) -> Sequence[Section]:
        return (Section("state", {"bytes": self._generator.get_state()}, Part.OWN, lazy=False),)

    def write(self, trees: Mapping[str, Any]) -> None:
        self._generator.set_state(trees["state"]["bytes"].clone())


class RandomSource:
    """The global random number generators: Python's, numpy's where it is loaded, torch's."""

    def read(self) -> Sequence[Section]:
        import torch

        # All of these are copies already; what is left to do costs the training thread nothing.
        version, words, gauss = random.getstate()
        tree: dict[str, Any] = {"torch": torch.get_rng_state()}
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            tree["cuda"] = torch.cuda.get_rng_state()
        numpy = sys.modules.get("numpy")
        if numpy is not None and hasattr(numpy, "random"):
            tree["numpy"] = numpy.random.get_state(legacy=False)

        def whole() -> Section:
            packed = torch.frombuffer(bytearray(array("I", words).tobytes()), dtype=torch.uint8)
            python = {"version": version, "words": packed, "gauss": gauss}
            return Section("state", {"python": python, **tree}, Part.OWN, lazy=True)

        return (Section("state", whole, Part.OWN, lazy=True),)

    def write(self, trees: Mapping[str, Any]) -> None:
        import torch

        tree = trees["state"]
        python = tree["python"]
        words = array("I", bytes(python["words"].tolist()))
        if len(words) != MERSENNE_WORDS:
            raise StateMismatch(f"python's random state has {len(words)} words, expected {MERSENNE_WORDS}")
        random.setstate((python["version"], tuple(words), python["gauss"]))
        torch.set_rng_state(tree["torch"].clone())
        if "cuda" in tree and torch.cuda.is_available():
            torch.cuda.set_rng_state(tree["cuda"].clone())
        numpy = sys.modules.get("numpy")
        if numpy is not None and "numpy" in tree:
            numpy.random.set_state(tree["numpy"])


def is_zero(thing: object) -> bool:
    """Whether `thing` is torch's ZeroRedundancyOptimizer, told without importing it."""
    return any(kind.__name__ == "ZeroRedundancyOptimizer" for kind in type(thing).__mro__)


def source_of(name: str, thing: Any, shared: bool, has_shards: bool) -> Source:
    """How to treat `thing`; `shared`: the replica set has other ranks, and `thing` is not cut."""
    import torch

    part = Part.SHARED if shared else Part.OWN
    if isinstance(thing, torch.Generator):
        return GeneratorSource(thing)
    if not callable(getattr(thing, "state_dict", None)) or not callable(
        getattr(thing, "load_state_dict", None)
    ):
        raise UnprotectableState(f"{name}: {type(thing).__name__} has no state_dict and load_state_dict")
    if isinstance(thing, torch.nn.Module):
        return ModuleSource(thing, part)
    if isinstance(thing, torch.optim.Optimizer):
        if is_zero(thing) and getattr(thing, "_overlap_with_ddp", False):
            raise UnprotectableState(
                f"{name}: ZeroRedundancyOptimizer(overlap_with_ddp=True) steps inside DDP"
            )
        return OptimizerSource(thing, Part.OWN if has_shards or is_zero(thing) else part)
    return ObjectSource(thing)


def copy_into(live: Any, saved: Any, where: str) -> None:
    """Write a host tensor into a live one, in place: references held by DDP and the user stay good."""
    target = local(live)
    if target.shape != saved.shape or target.dtype != saved.dtype:
        raise StateMismatch(
            f"{where}: the copy is {saved.dtype} {tuple(saved.shape)}, "
            f"here it is {target.dtype} {tuple(target.shape)}"
        )
    target.copy_(saved)


def _hyperparameters(groups: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in group.items() if key != "params"} for group in groups]


def _write_groups(live: Sequence[Any], saved: Sequence[Mapping[str, Any]]) -> None:
    if len(live) != len(saved):
        raise StateMismatch(f"optimizer: {len(saved)} parameter groups in the copy, {len(live)} here")
    for group, values in zip(live, _hyperparameters(saved), strict=True):
        _write_values(group, values, "parameter group")


def _write_values(live: Any, values: Mapping[str, Any], where: str) -> None:
    for name, value in values.items():
        present = live.get(name)
        if not hasattr(value, "dtype"):
            live[name] = value
        elif hasattr(present, "dtype") and local(present).dtype == value.dtype:
            copy_into(present, value, f"{where}.{name}")
        else:  # load_state_dict casts to the parameter's type, which may be narrower than the state's
            live[name] = value.clone().to(present.device if hasattr(present, "device") else value.device)


def _shape_of(state: Mapping[Any, Any]) -> Any:
    return {
        index: {
            name: tuple(local(value).shape) if hasattr(value, "shape") else None
            for name, value in values.items()
        }
        for index, values in state.items()
    }


def _like(value: Any, parameter: Any) -> Any:
    if not hasattr(value, "dtype"):
        return value
    if not hasattr(parameter, "to_local") or value.dim() == 0:
        return value.clone()
    from torch.distributed.tensor import DTensor

    return DTensor.from_local(
        value.clone().to(parameter.device),
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )


def _cloned(tree: Any) -> Any:
    """`tree` with its tensors copied: its owner may keep them, and the buffer under them is used again."""
    import torch

    copy: Callable[[Any], Any] = _cloned
    if isinstance(tree, torch.Tensor):
        return tree.clone()
    if type(tree) in (list, tuple):
        return type(tree)(map(copy, tree))
    if isinstance(tree, dict):
        for key in tree:
            tree[key] = copy(tree[key])
    return tree
