from dataclasses import dataclass
from typing import Any

import pytest

from paceline.contracts.codes import DType, Function, ReduceOp
from paceline.trainer.operations import ANY_PEER, Describer


@dataclass
class Tensor:
    elements: int
    dtype: str = "f32"

    def numel(self) -> int:
        return self.elements

    def element_size(self) -> int:
        return 4


@dataclass
class Op:
    op: int


@dataclass
class Options:
    reduceOp: Any = None
    rootRank: int = 0


SUM, MAX = Op(0), Op(4)
TABLE = Describer({"f32": 8}, {0: int(ReduceOp.SUM), 4: int(ReduceOp.MAX)}).table()
T4 = Tensor(4)


@pytest.mark.parametrize(
    ("method", "arguments", "expected"),
    [
        ("allreduce", ([T4], Options(MAX)), (Function.ALL_REDUCE, 8, ReduceOp.MAX, -1, 4, 16, 4)),
        ("allreduce", ([T4, T4], SUM), (Function.ALL_REDUCE, 8, ReduceOp.SUM, -1, 8, 32, 8)),
        ("allreduce", (T4,), (Function.ALL_REDUCE, 8, ReduceOp.SUM, -1, 4, 16, 4)),
        ("broadcast", ([T4], Options(rootRank=3)), (Function.BROADCAST, 8, 0, 3, 4, 16, 4)),
        ("broadcast", (T4, 2), (Function.BROADCAST, 8, 0, 2, 4, 16, 4)),
        ("reduce", ([T4], Options(MAX, 1)), (Function.REDUCE, 8, ReduceOp.MAX, 1, 4, 16, 4)),
        ("reduce", (T4, 1, MAX), (Function.REDUCE, 8, ReduceOp.MAX, 1, 4, 16, 4)),
        ("allgather", ([[T4, T4]], [T4]), (Function.ALL_GATHER, 8, 0, -1, 4, 16, 4)),
        ("allgather", ([[T4, Tensor(5)]], [T4]), (Function.ALL_GATHER, 8, 0, -1, 4, 16, 0)),
        ("all_gather_single", (Tensor(8), T4), (Function.ALL_GATHER, 8, 0, -1, 4, 16, 4)),
        ("gather", ([], [T4], Options(rootRank=1)), (Function.GATHER, 8, 0, 1, 4, 16, 0)),
        ("scatter", ([T4], [], Options(rootRank=1)), (Function.SCATTER, 8, 0, 1, 4, 16, 0)),
        (
            "reduce_scatter_single",
            (T4, Tensor(8), Options(SUM)),
            (Function.REDUCE_SCATTER, 8, ReduceOp.SUM, -1, 8, 32, 8),
        ),
        ("all_to_all_single", (T4, T4, [], []), (Function.ALL_TO_ALL, 8, 0, -1, 4, 16, 4)),
        ("all_to_all_single", (T4, T4, [1, 3], []), (Function.ALL_TO_ALL, 8, 0, -1, 4, 16, 0)),
        ("all_to_all_single", (T4, T4, [], [2, 2]), (Function.ALL_TO_ALL, 8, 0, -1, 4, 16, 0)),
        ("alltoall", ([T4], [T4]), (Function.ALL_TO_ALL, 8, 0, -1, 4, 16, 0)),
        ("send", ([T4], 3, 0), (Function.SEND, 8, 0, 3, 4, 16, 4)),
        ("recv", ([T4], 2, 0), (Function.RECV, 8, 0, 2, 4, 16, 4)),
        ("recv_anysource", ([T4], 0), (Function.RECV_ANY, 8, 0, ANY_PEER, 4, 16, 4)),
        ("barrier", (), (Function.BARRIER, 0, 0, -1, 0, 0, 0)),
    ],
)
def test_description(method: str, arguments: tuple[Any, ...], expected: tuple[int, ...]) -> None:
    assert TABLE[method](arguments, {}) == expected


def test_keywords_are_understood() -> None:
    assert TABLE["allreduce"]((), {"tensors": [T4], "opts": Options(MAX)})[2] == ReduceOp.MAX
    assert TABLE["send"](([T4],), {"dstRank": 1, "tag": 0})[3] == 1


def test_monitored_barrier_is_not_a_barrier() -> None:
    assert TABLE["monitored_barrier"]((), {}) != TABLE["barrier"]((), {})


def test_unknown_dtype_and_op_are_unknown_not_wrong() -> None:
    description = TABLE["allreduce"](([Tensor(4, "f4")], Options(Op(77))), {})
    assert description[1] == DType.UNKNOWN
    assert description[2] == ReduceOp.UNKNOWN
