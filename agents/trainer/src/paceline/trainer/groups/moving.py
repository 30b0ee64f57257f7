"""What torch has derived from the rank of a standby, made anew for the rank that it is given.

ZeroRedundancyOptimizer cuts its state by rank, FSDP2 its parameters, and a DeviceMesh knows its coordinates.
All of it is sizes and places: the values come with the restore that follows.
"""

import gc
import weakref
from collections.abc import Iterable
from operator import attrgetter
from typing import Any

from paceline.trainer.groups.errors import RebuildFailed

# Private names of torch that this module and `frameworks` rely on, by what has them.
ZERO = ("rank", "global_rank", "process_group", "optim", "_init_local_optimizer")
MODULE = ("reset_iter_state", "_get_fsdp_state")
STATE = ("_state_ctx.all_states", "_fsdp_param_groups")
GROUP = ("mesh_info", "post_forward_mesh_info", "fsdp_params", "_all_gather_result")
PARAMETER = (
    "_orig_size", "_sharded_param_data", "padded_sharded_param_size", "sharded_size",
    "contiguous_sharded_stride", "fsdp_placement.dim", "sharded_param._local_tensor",
)  # fmt: skip
SHARDS = ("shard_mesh_rank", "shard_mesh_size", "shard_process_group")
MESH = ("_rank", "_coordinate_on_dim", "_compute_coordinate_on_dim")


def missing_of_zero(optimizer: Any) -> str:
    """The first name of a ZeroRedundancyOptimizer that `move_zero` needs and this torch has not, or empty."""
    return _missing(optimizer, ZERO)


def missing_of_fsdp2(module: Any) -> str:
    """The same of one FSDP2 module, what it keeps of its parameters, and their mesh."""
    absent = _missing(module, MODULE)
    state: Any = module._get_fsdp_state() if not absent else None
    absent = absent or _missing(state, STATE)
    for group in state._fsdp_param_groups if not absent else ():
        absent = absent or _missing(group, GROUP)
        for parameter in group.fsdp_params[:1] if not absent else ():
            absent = (
                _missing(parameter, PARAMETER)
                or _missing(parameter.mesh_info, SHARDS)
                or _missing(parameter.sharded_param.device_mesh, MESH)
            )
    return absent


def _missing(thing: Any, names: Iterable[str]) -> str:
    for name in names:
        try:
            attrgetter(name)(thing)
        except AttributeError:
            return f"{type(thing).__name__}.{name}"
    return ""


def meshes() -> list["weakref.ref[Any]"]:
    """Every DeviceMesh of this process; looks at all objects, so for a moment in which nobody waits."""
    return [weakref.ref(each) for each in gc.get_objects() if type(each).__name__ == "DeviceMesh"]


def move_meshes(held: Iterable["weakref.ref[Any]"], rank: int) -> None:
    """Global rank `rank` in each of them; one that is not a member has no coordinates, as torch has it.

    RebuildFailed where this torch keeps them elsewhere.
    """
    for reference in held:
        mesh = reference()
        absent = _missing(mesh, MESH) if mesh is not None else ""
        if absent:
            raise RebuildFailed(f"this torch has no {absent}: a mesh cannot be told its new rank")
        if mesh is not None and mesh._rank != rank:
            mesh._rank = rank
            mesh._coordinate_on_dim = mesh._compute_coordinate_on_dim()


def move_zero(optimizer: Any) -> None:
    """ZeroRedundancyOptimizer's local optimizer, of the parameters that are this rank's now."""
    import torch.distributed as dist

    rank = dist.get_rank(optimizer.process_group)
    if rank == optimizer.rank:
        return
    optimizer.rank = rank
    optimizer.global_rank = dist.get_global_rank(optimizer.process_group, rank)
    optimizer._init_local_optimizer()


def move_fsdp2(module: Any) -> None:
    """The pieces of an FSDP2 module: the last ranks' may be smaller than those of the others, or empty."""
    for state in module._get_fsdp_state()._state_ctx.all_states:
        for group in state._fsdp_param_groups:
            for info in (group.mesh_info, group.post_forward_mesh_info):
                if hasattr(info, "shard_process_group"):
                    info.shard_mesh_rank = info.shard_process_group.rank()
                if hasattr(info, "replicate_process_group"):
                    info.replicate_mesh_rank = info.replicate_process_group.rank()
            for parameter in group.fsdp_params:
                _move_piece(parameter)


def _move_piece(parameter: Any) -> None:
    """As FSDP2 cuts it at first; memory stays, since every rank's is as large as the largest piece."""
    import torch

    if not hasattr(parameter.mesh_info, "shard_mesh_rank"):
        return
    dim, ranks = parameter.fsdp_placement.dim, parameter.mesh_info.shard_mesh_size
    whole = torch.empty(parameter._orig_size, device="meta")
    pieces = torch.chunk(whole, ranks, dim)
    place = parameter.mesh_info.shard_mesh_rank
    length = pieces[place].size(dim) if place < len(pieces) else 0
    padded = parameter._sharded_param_data.view(parameter.padded_sharded_param_size)
    local = padded.narrow(dim, 0, length)
    if local.shape == parameter.sharded_param._local_tensor.shape:
        return
    parameter.sharded_size = local.size()
    parameter.contiguous_sharded_stride = local.stride()
    parameter.sharded_param._local_tensor = local
    parameter.sharded_param.grad = None
