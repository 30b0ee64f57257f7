"""Which kinds of parallelism are repaired, and on which backend: the one table, and where a job stands in it.

`verified`: tests kill ranks at every phase of a step, standbys take them, and the result is compared to the
bit with an undisturbed run. `experimental`: nothing is known against it, and mode `auto` asks a person
first. `refused`: it is known not to work, and nobody can approve it.

Objects that differ from rank to rank look like those that do not, as do layers that are cut by hand: only
a script that says what each rank holds (`Session.on_place`) is taken to know it.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Any

from paceline.contracts.recovery import Support
from paceline.trainer.groups.moving import missing_of_fsdp2, missing_of_zero
from paceline.trainer.protection.sources import is_zero
from paceline.trainer.repair.replicas import is_ddp, parameters_of


class Layout(str, Enum):
    """How the state is spread over the ranks; the value is what people read."""

    DDP = "DistributedDataParallel over all ranks"
    ZERO = "the same with ZeroRedundancyOptimizer"
    FSDP2 = "FSDP2 (`fully_shard`) over all ranks, also with replicas (HSDP)"
    STAGES = "pipeline stages that `Session.on_place` names: DistributedDataParallel over groups of their own"
    PLAIN = "the same with modules that nothing wraps"
    OTHER = "all else: stages without `on_place`, tensor and expert parallelism, FSDP2 over part of the ranks"
    FSDP1 = "FullyShardedDataParallel (FSDP1)"
    MEGATRON = "Megatron-LM, Megatron-Core"
    DEEPSPEED = "DeepSpeed"


class Backend(str, Enum):
    GLOO = "gloo"
    NCCL = "NCCL"
    OTHER = "any other"


_ON_GLOO = {
    Layout.DDP: Support.VERIFIED,
    Layout.ZERO: Support.VERIFIED,
    Layout.FSDP2: Support.VERIFIED,
    Layout.STAGES: Support.VERIFIED,
    Layout.PLAIN: Support.VERIFIED,
    Layout.OTHER: Support.EXPERIMENTAL,
    Layout.FSDP1: Support.REFUSED,  # what it keeps of a step that was cut off is not known how to forget
    Layout.MEGATRON: Support.REFUSED,  # it holds groups, buffers and schedules of its own, and needs NCCL
    Layout.DEEPSPEED: Support.REFUSED,
}
# Only gloo's groups can be replaced in place (docs/adr/0040): init_process_group refuses the rest.
MATRIX: Mapping[tuple[Layout, Backend], Support] = {
    (layout, backend): on_gloo if backend is Backend.GLOO else Support.REFUSED
    for layout, on_gloo in _ON_GLOO.items()
    for backend in Backend
}


def support_of(
    protected: Mapping[str, Any], world_size: int, placed: bool = False, backend: Backend = Backend.GLOO
) -> tuple[Support, str]:
    """What is known of a job whose script protects these objects, and of what kind it is.

    `placed`: the script has called `on_place`. A kind of which this torch has not the private names that
    were there when it was tested is experimental.
    """
    layout = layout_of(protected, world_size, placed)
    support = MATRIX[layout, backend]
    absent = _missing_names(protected) if support is Support.VERIFIED else ()
    if absent:
        return Support.EXPERIMENTAL, f"{layout.value}; this torch has no {absent[0]}"
    return support, layout.value


def layout_of(protected: Mapping[str, Any], world_size: int, placed: bool = False) -> Layout:
    """Told by the names of classes, so that nothing is imported; what is not recognised is OTHER."""
    inside = [one for thing in protected.values() for one in _modules_of(thing)]
    for package, layout in (("megatron", Layout.MEGATRON), ("deepspeed", Layout.DEEPSPEED)):
        if any(_is_of(one, package) for one in inside):
            return layout
    if any("FullyShardedDataParallel" in _names_of(one) for one in inside):
        return Layout.FSDP1
    models = [thing for thing in protected.values() if callable(getattr(thing, "parameters", None))]
    found = {_layout_of_model(model, world_size) for model in models}
    if len(found) != 1:
        return Layout.OTHER
    (layout,) = found
    if any(map(is_zero, protected.values())):
        return Layout.ZERO if layout is Layout.DDP else Layout.OTHER
    return Layout.OTHER if layout in (Layout.STAGES, Layout.PLAIN) and not placed else layout


def _layout_of_model(model: Any, world_size: int) -> Layout:
    pieces = [one for one in parameters_of(model) if hasattr(one, "placements")]
    if is_ddp(model):
        whole = int(model.process_group.size()) == world_size
        return Layout.OTHER if pieces else Layout.DDP if whole else Layout.STAGES
    if "FSDPModule" in _names_of(model):
        return Layout.FSDP2 if all(_is_cut_once(one, world_size) for one in pieces) else Layout.OTHER
    return Layout.OTHER if pieces else Layout.PLAIN


def _is_cut_once(piece: Any, world_size: int) -> bool:
    """Whether a DTensor is on all ranks, and cut along one axis of them only, so by FSDP2 alone."""
    cuts = sum(not placement.is_replicate() for placement in piece.placements)
    return int(piece.device_mesh.size()) == world_size and cuts <= 1


def _missing_names(protected: Mapping[str, Any]) -> list[str]:
    cut = [
        one for thing in protected.values() for one in _modules_of(thing) if "FSDPModule" in _names_of(one)
    ]
    zeros = filter(is_zero, protected.values())
    return list(filter(None, [*map(missing_of_fsdp2, cut), *map(missing_of_zero, zeros)]))


def _modules_of(thing: Any) -> list[Any]:
    """`thing`, and all modules that are anywhere in it."""
    is_module = all(callable(getattr(thing, name, None)) for name in ("parameters", "modules"))
    return [thing, *thing.modules()] if is_module else [thing]


def _names_of(thing: object) -> set[str]:
    return {kind.__name__ for kind in type(thing).__mro__}


def _is_of(thing: object, package: str) -> bool:
    return any(kind.__module__.split(".")[0] == package for kind in type(thing).__mro__)


def table() -> list[str]:
    """The matrix as lines of Markdown; docs/guide.md has them word for word."""
    lines = [f"| layout | {' | '.join(backend.value for backend in Backend)} |", "| --- | --- | --- | --- |"]
    for layout in Layout:
        row = " | ".join(MATRIX[layout, backend].value for backend in Backend)
        lines.append(f"| {layout.value} | {row} |")
    return lines
