"""What a list of live tensors rests on: while that stands, the next step need not make it again.

Listing costs Python some 25 us a tensor, in the training thread or with the interpreter's lock held beside
it; asking whether an object still hangs where it hung, in the same memory, costs some 2.
"""

# ruff: noqa: SLF001 - torch has no public view of where a tensor hangs
from collections.abc import Mapping, Sequence, Sized
from typing import Any

from paceline.trainer.protection.skeleton import CONSTANTS

OWN_HOOKS = "torch.distributed.fsdp."  # they bring the shards back, which shows in what hangs there


class Held:
    """Objects, the dicts in which they hang, and the memory of those that are tensors."""

    def __init__(self) -> None:
        self._sizes: list[tuple[Sized, int]] = []
        self._things: list[tuple[Mapping[Any, Any], Any, Any]] = []
        self._locals: list[tuple[Any, Any]] = []
        self._memory: list[tuple[Any, int, Any, Any]] = []

    def hold(self, container: Mapping[Any, Any]) -> None:
        """All that hangs in `container`, and that there is no more."""
        self.count(container)
        for key, thing in container.items():
            self.add(container, key, thing)

    def count(self, container: Sized) -> None:
        """That there is no more in it."""
        self._sizes.append((container, len(container)))

    def add(self, container: Mapping[Any, Any], key: Any, thing: Any) -> None:
        """One object, and where it is a tensor, its memory; of a DTensor that of the local piece."""
        self._things.append((container, key, thing))
        if not hasattr(thing, "data_ptr"):
            return
        piece = getattr(thing, "_local_tensor", None)
        if piece is not None:
            self._locals.append((thing, piece))
            thing = piece
        self._memory.append((thing, thing.data_ptr(), thing.shape, thing.stride()))

    def stands(self) -> bool:
        """Whether all of it is as it was when it was added."""
        return (
            all(len(container) == count for container, count in self._sizes)
            and all(container.get(key) is thing for container, key, thing in self._things)
            and all(whole._local_tensor is piece for whole, piece in self._locals)
            and all(
                tensor.data_ptr() == pointer and tensor.shape == shape and tensor.stride() == stride
                for tensor, pointer, shape, stride in self._memory
            )
        )


def held_by_module(module: Any, state: Mapping[str, Any]) -> Held | None:
    """What `state`, just made by `module.state_dict()`, rests on.

    None where a part of the module does more than hang tensors under names (hooks, extra state, a
    `state_dict` of its own), so that nobody knows what it would give the next time.
    """
    held, names = Held(), set()
    for prefix, part in module.named_modules(remove_duplicate=False):
        if not _is_plain(part):
            return None
        at = f"{prefix}." if prefix else ""
        hidden = part._non_persistent_buffers_set
        held.hold(part._modules)
        held.hold(part._parameters)
        held.count(part._buffers)
        for changing in (hidden, part._state_dict_hooks, part._state_dict_pre_hooks):
            held.count(changing)
        kept = {key: value for key, value in part._buffers.items() if key not in hidden}
        for key, value in kept.items():
            held.add(part._buffers, key, value)
        names |= {at + key for key, value in {**part._parameters, **kept}.items() if value is not None}
    return held if names == state.keys() else None


def _is_plain(part: Any) -> bool:
    from torch.nn import Module

    kind = type(part)
    return (
        all(isinstance(part.__dict__.get(name), dict) for name in ("_parameters", "_buffers", "_modules"))
        and kind.state_dict is Module.state_dict
        and "state_dict" not in part.__dict__
        and kind._save_to_state_dict is Module._save_to_state_dict
        and kind.get_extra_state is Module.get_extra_state
        and not part._state_dict_hooks
        and all(_is_own(hook) for hook in part._state_dict_pre_hooks.values())
    )


def _is_own(hook: Any) -> bool:
    return str(getattr(hook, "__module__", "")).startswith(OWN_HOOKS)


class ParameterOrder:
    """Numbers of an optimizer's parameters, as its `state_dict` gives them."""

    def __init__(self) -> None:
        self.lists: list[list[int]] = []
        self.number_of: dict[int, int] = {}  # by id
        self._parameters: list[list[Any]] = []

    def follow(self, groups: Sequence[Mapping[str, Any]]) -> bool:
        """Whether the parameters are still the same ones."""
        lists = [group["params"] for group in groups]
        if len(lists) == len(self._parameters) and all(map(_are_same, lists, self._parameters)):
            return True
        self._parameters = [list(each) for each in lists]
        self.lists, self.number_of, start = [], {}, 0
        for each in lists:
            for number, parameter in enumerate(each, start):
                self.number_of.setdefault(id(parameter), number)
            self.lists.append([self.number_of[id(parameter)] for parameter in each])
            start += len(each)
        return False


def _are_same(some: Sequence[Any], others: Sequence[Any]) -> bool:
    return len(some) == len(others) and all(one is other for one, other in zip(some, others, strict=True))


def is_plain_optimizer(optimizer: Any) -> bool:
    """Whether its `state_dict` is torch's, and nobody hooks into it."""
    from torch.optim import Optimizer

    return (
        type(optimizer).state_dict is Optimizer.state_dict
        and "state_dict" not in optimizer.__dict__
        and not optimizer._optimizer_state_dict_pre_hooks
        and not optimizer._optimizer_state_dict_post_hooks
    )


def held_by_optimizer(optimizer: Any) -> Held | None:
    """What its state rests on; None where that is more than tensors and constants under names."""
    held = Held()
    held.add(optimizer.__dict__, "state", optimizer.state)
    held.count(optimizer.state)
    for parameter, values in optimizer.state.items():
        if type(values) is not dict or not all(_is_leaf(value) for value in values.values()):
            return None
        held.add(optimizer.state, parameter, values)
        held.hold(values)
    return held


def _is_leaf(value: Any) -> bool:
    """A constant that is the same object has the same value."""
    return type(value) in CONSTANTS or hasattr(value, "data_ptr")
