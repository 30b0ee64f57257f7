"""What a call of a ProcessGroup method means: one row per method, no torch needed to import.

A description is `(function, dtype, reduce_op, peer, count, bytes, signature_count)`; the last is 0
where members may legally pass different sizes, so that it never makes a false mismatch. Runs inside
every collective: no allocation besides the tuple, no attribute looked up twice.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from paceline.contracts.codes import DType, Function, ReduceOp

Description = tuple[int, int, int, int, int, int, int]
Arguments = tuple[Any, ...]
Keywords = Mapping[str, Any]
Describe = Callable[[Arguments, Keywords], Description]

NO_PEER = -1
SUM = int(ReduceOp.SUM)
ALL_REDUCE = int(Function.ALL_REDUCE)
ANY_PEER = -2
POINT_TO_POINT = frozenset({"send", "recv", "recv_anysource"})  # methods whose gloo Work has no future
_LISTS = (list, tuple)
MONITORED = 1  # signature count that tells monitored_barrier from barrier

_DTYPE_NAMES = {
    "uint8": DType.UINT8,
    "int8": DType.INT8,
    "int16": DType.INT16,
    "int32": DType.INT32,
    "int64": DType.INT64,
    "float16": DType.FLOAT16,
    "bfloat16": DType.BFLOAT16,
    "float32": DType.FLOAT32,
    "float64": DType.FLOAT64,
    "complex64": DType.COMPLEX64,
    "complex128": DType.COMPLEX128,
    "bool": DType.BOOL,
    "float8_e4m3fn": DType.FLOAT8_E4M3,
    "float8_e5m2": DType.FLOAT8_E5M2,
}


def _argument(arguments: Arguments, keywords: Keywords, index: int, *names: str) -> Any:
    if len(arguments) > index:
        return arguments[index]
    for name in names:
        if name in keywords:
            return keywords[name]
    return None


_FIRST: tuple[str, ...] = (
    "tensors",
    "tensor",
    "output_tensors",
    "output",
    "output_tensor",
    "outputTensors",
    "outputTensor",
    "output_lists",
)
_SECOND = ("input_tensors", "input_tensor", "input", "input_list", "inputTensors", "inputTensor")


def _root(options: Any) -> int:
    return int(getattr(options, "rootRank", options))


class Describer:
    """Describes calls with the tables of one torch: its dtypes and the numbers of its reduce ops."""

    def __init__(self, dtypes: Mapping[object, int], reduce_ops: Mapping[int, int]) -> None:
        self.dtypes = dict(dtypes)
        self.reduce_ops = dict(reduce_ops)

    @classmethod
    def of_torch(cls, torch: Any, distributed: Any) -> "Describer":
        """Tables by name, so that a renumbered enum or a new dtype cannot lie."""
        dtypes = {
            getattr(torch, name): int(code) for name, code in _DTYPE_NAMES.items() if hasattr(torch, name)
        }
        members = distributed.ReduceOp.RedOpType.__members__
        reduce_ops = {int(member): int(ReduceOp.__members__.get(name, 0)) for name, member in members.items()}
        return cls(dtypes, reduce_ops)

    def size(self, value: Any) -> tuple[int, int, int]:
        """(dtype, elements, bytes) of a tensor, a list of tensors or a list of lists of them."""
        kind = type(value)
        while kind in _LISTS and len(value) == 1:
            value = value[0]
            kind = type(value)
        if kind not in _LISTS:
            count = value.numel()
            return self.dtypes.get(value.dtype, 0), count, count * value.element_size()
        dtype = count = nbytes = 0
        for part in value:
            dtype, elements, size = self.size(part)
            count += elements
            nbytes += size
        return dtype, count, nbytes

    def reduce_op(self, options: Any) -> int:
        """Code of a ReduceOp, of its enum, or of the options that hold one; SUM where it is not said."""
        if options is None:
            return SUM
        op = getattr(options, "reduceOp", options)
        return self.reduce_ops.get(int(getattr(op, "op", op)), 0)

    def all_reduce(self, arguments: Arguments, keywords: Keywords) -> Description:
        if len(arguments) == 2:  # what DDP and dist.all_reduce pass; most calls of most jobs
            tensors, options = arguments
        else:
            tensors = _argument(arguments, keywords, 0, *_FIRST)
            options = _argument(arguments, keywords, 1, "opts", "op")
        dtype, count, nbytes = self.size(tensors)
        return ALL_REDUCE, dtype, self.reduce_op(options), NO_PEER, count, nbytes, count

    def broadcast(self, arguments: Arguments, keywords: Keywords) -> Description:
        dtype, count, nbytes = self.size(_argument(arguments, keywords, 0, *_FIRST))
        root = _root(_argument(arguments, keywords, 1, "opts", "root") or 0)
        return Function.BROADCAST, dtype, 0, root, count, nbytes, count

    def reduce(self, arguments: Arguments, keywords: Keywords) -> Description:
        dtype, count, nbytes = self.size(_argument(arguments, keywords, 0, *_FIRST))
        options = _argument(arguments, keywords, 1, "opts", "root")
        explicit = _argument(arguments, keywords, 2, "op")
        op = self.reduce_op(explicit if isinstance(options, int) else options)
        return Function.REDUCE, dtype, op, _root(options or 0), count, nbytes, count

    def all_gather(self, arguments: Arguments, keywords: Keywords) -> Description:
        dtype, count, nbytes = self.size(_argument(arguments, keywords, 1, *_SECOND))
        outputs = _argument(arguments, keywords, 0, *_FIRST)
        return Function.ALL_GATHER, dtype, 0, NO_PEER, count, nbytes, count if _even(outputs) else 0

    def all_gather_coalesced(self, arguments: Arguments, keywords: Keywords) -> Description:
        dtype, count, nbytes = self.size(_argument(arguments, keywords, 1, *_SECOND))
        return Function.ALL_GATHER, dtype, 0, NO_PEER, count, nbytes, count

    def gather(self, arguments: Arguments, keywords: Keywords) -> Description:
        dtype, count, nbytes = self.size(_argument(arguments, keywords, 1, *_SECOND))
        root = _root(_argument(arguments, keywords, 2, "opts", "root") or 0)
        return Function.GATHER, dtype, 0, root, count, nbytes, 0

    def scatter(self, arguments: Arguments, keywords: Keywords) -> Description:
        dtype, count, nbytes = self.size(_argument(arguments, keywords, 0, *_FIRST))
        root = _root(_argument(arguments, keywords, 2, "opts", "root") or 0)
        return Function.SCATTER, dtype, 0, root, count, nbytes, 0

    def reduce_scatter(self, arguments: Arguments, keywords: Keywords) -> Description:
        dtype, count, nbytes = self.size(_argument(arguments, keywords, 1, *_SECOND))
        op = self.reduce_op(_argument(arguments, keywords, 2, "opts", "op"))
        return Function.REDUCE_SCATTER, dtype, op, NO_PEER, count, nbytes, count

    def all_to_all_single(self, arguments: Arguments, keywords: Keywords) -> Description:
        dtype, count, nbytes = self.size(_argument(arguments, keywords, 1, *_SECOND))
        split = _argument(arguments, keywords, 2, "output_split_sizes")
        split = split or _argument(arguments, keywords, 3, "input_split_sizes")
        return Function.ALL_TO_ALL, dtype, 0, NO_PEER, count, nbytes, 0 if split else count

    def all_to_all(self, arguments: Arguments, keywords: Keywords) -> Description:
        dtype, count, nbytes = self.size(_argument(arguments, keywords, 1, *_SECOND))
        return Function.ALL_TO_ALL, dtype, 0, NO_PEER, count, nbytes, 0

    def send(self, arguments: Arguments, keywords: Keywords) -> Description:
        dtype, count, nbytes = self.size(_argument(arguments, keywords, 0, *_FIRST))
        return (
            Function.SEND,
            dtype,
            0,
            int(_argument(arguments, keywords, 1, "dstRank")),
            count,
            nbytes,
            count,
        )

    def recv(self, arguments: Arguments, keywords: Keywords) -> Description:
        dtype, count, nbytes = self.size(_argument(arguments, keywords, 0, *_FIRST))
        return (
            Function.RECV,
            dtype,
            0,
            int(_argument(arguments, keywords, 1, "srcRank")),
            count,
            nbytes,
            count,
        )

    def recv_any(self, arguments: Arguments, keywords: Keywords) -> Description:
        dtype, count, nbytes = self.size(_argument(arguments, keywords, 0, *_FIRST))
        return Function.RECV_ANY, dtype, 0, ANY_PEER, count, nbytes, count

    def barrier(self, arguments: Arguments, keywords: Keywords) -> Description:
        return Function.BARRIER, 0, 0, NO_PEER, 0, 0, 0

    def monitored_barrier(self, arguments: Arguments, keywords: Keywords) -> Description:
        return Function.BARRIER, 0, 0, NO_PEER, 0, 0, MONITORED

    def table(self) -> dict[str, Describe]:
        """How to describe a call of each ProcessGroup method that moves data, by the method's name."""
        return {
            "allreduce": self.all_reduce,
            "allreduce_coalesced": self.all_reduce,
            "broadcast": self.broadcast,
            "reduce": self.reduce,
            "allgather": self.all_gather,
            "all_gather_single": self.all_gather_coalesced,
            "_allgather_base": self.all_gather_coalesced,
            "allgather_coalesced": self.all_gather_coalesced,
            "all_gather_single_coalesced": self.all_gather_coalesced,
            "allgather_into_tensor_coalesced": self.all_gather_coalesced,
            "gather": self.gather,
            "gather_single": self.gather,
            "scatter": self.scatter,
            "reduce_scatter": self.reduce_scatter,
            "reduce_scatter_single": self.reduce_scatter,
            "_reduce_scatter_base": self.reduce_scatter,
            "reduce_scatter_single_coalesced": self.reduce_scatter,
            "reduce_scatter_tensor_coalesced": self.reduce_scatter,
            "all_to_all_single": self.all_to_all_single,
            "alltoall_base": self.all_to_all_single,
            "alltoall": self.all_to_all,
            "send": self.send,
            "recv": self.recv,
            "recv_anysource": self.recv_any,
            "barrier": self.barrier,
            "monitored_barrier": self.monitored_barrier,
        }


def _even(outputs: Any) -> bool:
    """True where all outputs of an all_gather have one size; NCCL accepts uneven ones."""
    if not outputs or not isinstance(outputs, (list, tuple)):
        return True
    row: Sequence[Any] = outputs[0] if isinstance(outputs[0], (list, tuple)) else outputs
    if not row:
        return True
    first = row[0].numel()
    return all(tensor.numel() == first for tensor in row)
