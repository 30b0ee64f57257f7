"""Scratch tensors: which argument an operation writes, a copy of it, and the way back."""

from collections.abc import Sequence
from typing import Any

_LISTS = (list, tuple)
IN_PLACE = frozenset({"allreduce", "allreduce_coalesced", "broadcast", "reduce"})
WRITES = frozenset(
    {
        "allgather",
        "all_gather_single",
        "_allgather_base",
        "allgather_coalesced",
        "all_gather_single_coalesced",
        "allgather_into_tensor_coalesced",
        "gather",
        "gather_single",
        "scatter",
        "reduce_scatter",
        "reduce_scatter_single",
        "_reduce_scatter_base",
        "reduce_scatter_single_coalesced",
        "reduce_scatter_tensor_coalesced",
        "all_to_all_single",
        "alltoall_base",
        "alltoall",
        "recv",
        "recv_anysource",
    }
)
WRITES_NOTHING = frozenset({"send", "barrier"})
OPERATIONS = IN_PLACE | WRITES | WRITES_NOTHING
POINT_TO_POINT = frozenset({"send", "recv", "recv_anysource"})

# The names that torch gives to the first argument of these methods.
WRITTEN_KEYWORDS = (
    "tensors", "tensor", "output_tensors", "output_tensor", "output", "output_lists", "outputTensors",
    "outputTensor",
)  # fmt: skip

Pair = tuple[Any, Any]  # live, scratch


def with_scratch(
    torch: Any, name: str, arguments: tuple[Any, ...], keywords: dict[str, Any]
) -> tuple[tuple[Any, ...], list[Pair]]:
    """The arguments with a scratch tensor in place of each one that `name` writes, and the pairs.

    What is written is always the first argument: a tensor, a list of them or a list of such lists; where
    it came by keyword, it is replaced inside `keywords`. Inputs stay as they are: a leaked operation may
    read them late, which disturbs nobody here.
    """
    if name in WRITES_NOTHING:
        return arguments, []
    pairs: list[Pair] = []
    make = _cloned if name in IN_PLACE else torch.empty_like
    if arguments:
        return (_replaced(arguments[0], make, pairs), *arguments[1:]), pairs
    for keyword in filter(keywords.__contains__, WRITTEN_KEYWORDS):
        keywords[keyword] = _replaced(keywords[keyword], make, pairs)
    return arguments, pairs


def _cloned(tensor: Any) -> Any:
    return tensor.detach().clone()


def _replaced(value: Any, make: Any, pairs: list[Pair]) -> Any:
    if isinstance(value, _LISTS):
        return [_replaced(part, make, pairs) for part in value]
    scratch = make(value.detach())
    pairs.append((value, scratch))
    return scratch


def copy_back(pairs: Sequence[Pair]) -> None:
    """Scratch into live. `.data`: as c10d itself does, without a trace for autograd."""
    for live, scratch in pairs:
        live.data.copy_(scratch)
