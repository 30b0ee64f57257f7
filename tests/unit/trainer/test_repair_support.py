"""Where a job stands in the matrix of what is repaired, and that people read the same matrix."""

import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from paceline.contracts.recovery import Support
from paceline.trainer.groups import RebuildFailed
from paceline.trainer.groups.moving import move_meshes
from paceline.trainer.repair.support import MATRIX, Backend, Layout, layout_of, support_of, table

GUIDE = Path(__file__).parents[3] / "docs" / "guide.md"
RANKS = 4


class Group:
    def __init__(self, size: int) -> None:
        self._size = size

    def size(self) -> int:
        return self._size


class Module:
    def __init__(self, *parameters: object, inside: object = None) -> None:
        self._parameters = parameters
        self._inside = inside

    def parameters(self) -> tuple[object, ...]:
        return self._parameters

    def modules(self) -> list[object]:
        return [self] if self._inside is None else [self, self._inside]


class DistributedDataParallel(Module):
    def __init__(self, size: int, *parameters: object) -> None:
        super().__init__(*parameters)
        self.process_group = Group(size)


class FSDPModule(Module):
    context: object = SimpleNamespace(all_states=[])

    def reset_iter_state(self) -> None: ...

    def _get_fsdp_state(self) -> object:
        return SimpleNamespace(_state_ctx=self.context, _fsdp_param_groups=[])


class FullyShardedDataParallel(Module):
    pass


class ZeroRedundancyOptimizer:
    rank = global_rank = 3
    process_group = optim = None

    def _init_local_optimizer(self) -> None: ...


class Placement:
    def __init__(self, cut: bool) -> None:
        self._cut = cut

    def is_replicate(self) -> bool:
        return not self._cut


class Piece:
    def __init__(self, size: int, *cuts: bool) -> None:
        self.device_mesh = Group(size)
        self.placements = [Placement(cut) for cut in cuts]


def of_package(name: str) -> object:
    return type("Engine", (), {"__module__": f"{name}.runtime.engine"})()


@pytest.mark.parametrize(
    ("objects", "layout"),
    [
        ([DistributedDataParallel(4, object())], Layout.DDP),
        ([DistributedDataParallel(4, object()), ZeroRedundancyOptimizer()], Layout.ZERO),
        ([FSDPModule(Piece(4, True))], Layout.FSDP2),
        ([FSDPModule(Piece(4, False, True))], Layout.FSDP2),
        ([FSDPModule(Piece(2, True))], Layout.OTHER),
        ([FSDPModule(Piece(4, True, True))], Layout.OTHER),  # and tensor parallelism
        ([Module(Piece(4, True))], Layout.OTHER),
        ([DistributedDataParallel(2, object())], Layout.OTHER),
        ([DistributedDataParallel(2, object()), ZeroRedundancyOptimizer()], Layout.OTHER),
        ([Module(object())], Layout.OTHER),
        ([Module(object()), DistributedDataParallel(4, object())], Layout.OTHER),
        ([FullyShardedDataParallel(object())], Layout.FSDP1),
        ([Module(object(), inside=FullyShardedDataParallel(object()))], Layout.FSDP1),
        ([Module(object(), inside=of_package("deepspeed"))], Layout.DEEPSPEED),
        ([Module(object(), inside=of_package("megatron"))], Layout.MEGATRON),
        ([Module(object()), of_package("deepspeed")], Layout.DEEPSPEED),
        ([DistributedDataParallel(4), of_package("megatron")], Layout.MEGATRON),
        ([object()], Layout.OTHER),
    ],
)
def test_a_layout_is_recognised_by_what_is_protected(objects: list[Any], layout: Layout) -> None:
    named = {f"thing{number}": thing for number, thing in enumerate(objects)}
    assert layout_of(named, RANKS) is layout
    assert support_of(named, RANKS) == (MATRIX[layout, Backend.GLOO], layout.value)


@pytest.mark.parametrize(
    ("model", "layout"),
    [
        (DistributedDataParallel(2, object()), Layout.STAGES),
        (Module(object()), Layout.PLAIN),
        (Module(Piece(4, True)), Layout.OTHER),
        (Module(object(), inside=FullyShardedDataParallel()), Layout.FSDP1),
    ],
)
def test_stages_are_known_where_the_script_names_them(model: Any, layout: Layout) -> None:
    assert support_of({"model": model}, RANKS)[0] is not Support.VERIFIED
    assert support_of({"model": model}, RANKS, placed=True) == (MATRIX[layout, Backend.GLOO], layout.value)


def test_a_torch_that_has_other_private_names_is_not_taken_for_the_one_that_was_tested() -> None:
    optimizer = type("ZeroRedundancyOptimizer", (), {"rank": 3})()
    zero = {"model": DistributedDataParallel(4, object()), "optimizer": optimizer}
    support, kind = support_of(zero, RANKS)
    assert support is Support.EXPERIMENTAL
    assert kind.endswith("this torch has no ZeroRedundancyOptimizer.global_rank")
    cut = FSDPModule(Piece(4, True))
    cut.context = None
    support, kind = support_of({"model": cut}, RANKS)
    assert support is Support.EXPERIMENTAL
    assert kind.endswith("this torch has no SimpleNamespace._state_ctx.all_states")


def test_a_mesh_that_keeps_its_rank_elsewhere_is_not_passed_over() -> None:
    mesh = Group(4)
    with pytest.raises(RebuildFailed, match=r"Group\._rank"):
        move_meshes([weakref.ref(mesh)], 1)


def test_what_no_test_repairs_is_not_verified() -> None:
    assert set(MATRIX) == {(layout, backend) for layout in Layout for backend in Backend}
    verified = {key for key, support in MATRIX.items() if support is Support.VERIFIED}
    tested = (Layout.DDP, Layout.ZERO, Layout.FSDP2, Layout.STAGES, Layout.PLAIN)
    assert verified == {(layout, Backend.GLOO) for layout in tested}


def test_the_guide_shows_the_same_matrix() -> None:
    assert "\n".join(table()) in GUIDE.read_text()
