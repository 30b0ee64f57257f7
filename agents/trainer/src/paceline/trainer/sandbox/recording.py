"""What a recording is: the calls of one rank on each of its groups, with what they brought."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

# Two names of one operation; C++ and Python call different ones.
_SAME = {
    "_allgather_base": "all_gather_single",
    "_reduce_scatter_base": "reduce_scatter_single",
    "alltoall_base": "all_to_all_single",
    "allgather_into_tensor_coalesced": "all_gather_single_coalesced",
    "reduce_scatter_tensor_coalesced": "reduce_scatter_single_coalesced",
}


@dataclass(frozen=True)
class Output:
    """A tensor: dtype without `torch.`, shape, and which of the recording's blobs holds its bytes."""

    dtype: str
    shape: tuple[int, ...]
    blob: int


@dataclass(frozen=True)
class Call:
    """`signature` as `signature_of` writes it; `outputs` in the order in which the call names them."""

    signature: str
    outputs: tuple[Output, ...] = ()


@dataclass(frozen=True)
class GroupRecording:
    """`key` is that of `GroupSpec`, `rank` and `size` those in the group."""

    key: str
    rank: int
    size: int
    calls: tuple[Call, ...]


@dataclass(frozen=True)
class Recording:
    """Groups in the order in which the rank became a member; blobs are raw bytes, each stored once."""

    role: str
    rank: int
    size: int
    steps: int
    groups: tuple[GroupRecording, ...]
    blobs: Sequence[bytes] = field(repr=False)

    @property
    def bytes(self) -> int:
        return sum(len(blob) for blob in self.blobs)


def signature_of(name: str, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> str:
    """`allreduce(float32[64]; op SUM)`: everything that has to be equal for one call to stand for another."""
    parts = [_value(value) for value in (*arguments, *(keywords[key] for key in sorted(keywords)))]
    return f"{_SAME.get(name, name)}({'; '.join(part for part in parts if part)})"


def _value(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return ""
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return f"{str(value.dtype).removeprefix('torch.')}{list(map(int, value.shape))}"
    if isinstance(value, (list, tuple)):
        return _list([_value(part) for part in value])
    if isinstance(value, (int, str)):
        return str(value)
    return _options(value)


def _list(parts: list[str]) -> str:
    if len(parts) > 1 and len(set(parts)) == 1:
        return f"{len(parts)} x {parts[0]}"
    return f"({', '.join(parts)})" if len(parts) != 1 else parts[0]


def _options(value: Any) -> str:
    said = []
    if hasattr(value, "rootRank"):
        said.append(f"root {value.rootRank}")
    if hasattr(value, "reduceOp"):
        said.append(f"op {_op(value.reduceOp)}")
    if type(value).__name__ in ("ReduceOp", "RedOpType"):
        said.append(f"op {_op(value)}")
    return ", ".join(said)


def _op(value: Any) -> str:
    kind = getattr(value, "op", value)
    return str(getattr(kind, "name", kind))
