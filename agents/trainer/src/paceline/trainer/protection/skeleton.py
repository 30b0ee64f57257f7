"""State as JSON with holes where the tensors are: no pickle, on no path.

A JSON object with the key "" is a marked node (tuple, integer keys, tensor, ...), every other object is
a dict with string keys. Whoever decodes bytes from the network can only get the kinds listed here.
"""

import sys
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from paceline.trainer.protection.errors import StateMismatch, UnprotectableState

DEPTH_MAX = 64
MARK = ""
CONSTANTS = frozenset((type(None), bool, int, float, str))
_ORDERED = {"dict": dict, "ordered": OrderedDict, "counter": Counter}

Hole = Callable[[Any, str], int]


def encode(value: Any, hole: Hole, path: str = "", depth: int = 0) -> Any:
    """`value` as JSON; `hole(tensor, path)` takes each tensor and gives its index.

    Raises UnprotectableState that names the path and the type of the first thing that does not fit.
    """
    kind = type(value)
    if kind in CONSTANTS:
        return value
    if depth > DEPTH_MAX:
        raise UnprotectableState(f"{path}: nested deeper than {DEPTH_MAX}, or a cycle")
    if kind is list:
        if all(type(item) in CONSTANTS for item in value):  # numbers of parameters, by the thousand
            return list(value)
        return [encode(item, hole, f"{path}[{index}]", depth + 1) for index, item in enumerate(value)]
    if isinstance(value, dict):
        return _encode_dict(value, hole, path, depth)
    if kind is tuple:
        return {MARK: "tuple", "v": encode(list(value), hole, path, depth + 1)}
    if kind in (bytes, bytearray):
        return {MARK: "bytes", "v": bytes(value).hex()}
    return _encode_foreign(value, hole, path)


def _encode_dict(value: Mapping[Any, Any], hole: Hole, path: str, depth: int) -> Any:
    if type(value) not in (OrderedDict, Counter) and all(type(key) is str and key != MARK for key in value):
        return {key: encode(item, hole, f"{path}.{key}", depth + 1) for key, item in value.items()}
    kind = {OrderedDict: "ordered", Counter: "counter"}.get(type(value), "dict")
    pairs = []
    for key, item in value.items():
        if type(key) not in (str, int, bool, float, tuple, type(None)):
            raise UnprotectableState(f"{path}: key of type {_name(key)}, expected text, a number or a tuple")
        pairs.append([encode(key, hole, path, depth + 1), encode(item, hole, f"{path}[{key!r}]", depth + 1)])
    return {MARK: kind, "v": pairs}


def _encode_foreign(value: Any, hole: Hole, path: str) -> Any:
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is not None:
        if isinstance(value, torch.Tensor):
            return {MARK: "tensor", "v": hole(value, path)}
        if isinstance(value, torch.Size):
            return {MARK: "size", "v": list(value)}
        if isinstance(value, (torch.dtype, torch.device)):
            return {MARK: "dtype" if isinstance(value, torch.dtype) else "device", "v": str(value)}
    if torch is not None and numpy is not None and _is_numbers(value, numpy):
        mark = "array" if isinstance(value, numpy.ndarray) else "scalar"
        array = numpy.ascontiguousarray(value).copy()
        return {MARK: mark, "v": hole(torch.from_numpy(array).reshape(value.shape), path)}
    raise UnprotectableState(
        f"{path}: {_name(value)} is neither JSON nor a tensor; leave it out of state_dict() or turn it into "
        "numbers, text, lists, dicts or tensors"
    )


def decode(node: Any, tensors: Sequence[Any], depth: int = 0) -> Any:
    """The inverse of `encode`. Raises StateMismatch on anything `encode` would not have made."""
    if depth > 2 * DEPTH_MAX:
        raise StateMismatch("skeleton: nested too deeply")
    if isinstance(node, list):
        return [decode(item, tensors, depth + 1) for item in node]
    if not isinstance(node, dict):
        return node
    if MARK not in node:
        return {key: decode(item, tensors, depth + 1) for key, item in node.items()}
    try:
        return _decode_marked(str(node[MARK]), node["v"], tensors, depth)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise StateMismatch(f"skeleton: bad node {str(node)[:80]}: {error!r}") from error


def _decode_marked(kind: str, value: Any, tensors: Sequence[Any], depth: int) -> Any:
    if kind in _ORDERED:
        pairs = ((decode(key, tensors, depth + 1), decode(item, tensors, depth + 1)) for key, item in value)
        return _ORDERED[kind](dict(pairs)) if kind == "counter" else _ORDERED[kind](pairs)
    if kind == "tuple":
        return tuple(decode(value, tensors, depth + 1))
    if kind == "bytes":
        return bytes.fromhex(value)
    import torch

    if kind == "size":
        return torch.Size(value)
    if kind == "device":
        return torch.device(value)
    if kind == "dtype":
        found = getattr(torch, value.removeprefix("torch."))
        if not isinstance(found, torch.dtype):
            raise ValueError(value)
        return found
    if kind in ("tensor", "array", "scalar"):
        if type(value) is not int or value < 0:
            raise ValueError(value)
        tensor = tensors[value]
        if kind == "tensor":
            return tensor
        return tensor.clone().numpy() if kind == "array" else tensor.numpy()[()]
    raise ValueError(kind)


def _is_numbers(value: Any, numpy: Any) -> bool:
    return isinstance(value, (numpy.ndarray, numpy.generic)) and value.dtype.kind in "biufc"


def _name(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"
