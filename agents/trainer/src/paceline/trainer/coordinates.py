"""Which mesh dimension a group belongs to, and where this rank stands; pure.

Sources, best first: declared by the script, a DeviceMesh's own dimension names, Megatron's group
descriptions, other group names, else inferred from the membership. The source is recorded.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from paceline.contracts.registry import CoordinateSource

KINDS = ("tp", "pp", "dp", "ep", "cp")
_MESH = re.compile(r"^mesh_(.+)$")  # torch's init_device_mesh names its groups so
_MEGATRON = (
    (re.compile(r"EXPERT_.*TENSOR"), "etp"),
    (re.compile(r"EXPERT_.*DATA"), "edp"),
    (re.compile(r"EXPERT"), "ep"),
    (re.compile(r"CONTEXT_PARALLEL_GROUP$"), "cp"),
    (re.compile(r"^(?:HIERARCHICAL_)?DATA_PARALLEL_GROUP"), "dp"),
    (re.compile(r"^TENSOR_MODEL_PARALLEL_GROUP"), "tp"),
    (re.compile(r"^PIPELINE_MODEL_PARALLEL_GROUP"), "pp"),
)
_ALIASES = {
    "tp": "tp",
    "tensor": "tp",
    "model": "tp",
    "pp": "pp",
    "pipe": "pp",
    "pipeline": "pp",
    "stage": "pp",
    "dp": "dp",
    "ddp": "dp",
    "fsdp": "dp",
    "data": "dp",
    "shard": "dp",
    "replicate": "dp",
    "replica": "dp",
    "ep": "ep",
    "expert": "ep",
    "moe": "ep",
    "cp": "cp",
    "context": "cp",
    "sequence": "cp",
    "sp": "cp",
}
_RANKING = (
    CoordinateSource.DECLARED,
    CoordinateSource.DEVICE_MESH,
    CoordinateSource.MEGATRON,
    CoordinateSource.GROUP_NAME,
    CoordinateSource.INFERRED,
    CoordinateSource.NONE,
)


@dataclass(frozen=True)
class Membership:
    """One group this rank is in: its description and its global ranks in group order."""

    description: str
    ranks: tuple[int, ...]
    group_rank: int


@dataclass(frozen=True)
class Coordinates:
    """`values` such as {"tp": 1, "dp": 0}, and where they come from."""

    values: Mapping[str, int]
    source: CoordinateSource


def group_kind(description: str, size: int, world_size: int) -> tuple[str, CoordinateSource]:
    """(`tp`, `dp`, ... or `world` or empty, source) of a group by its description."""
    mesh = _MESH.match(description)
    if mesh:
        return _alias(mesh.group(1)) or mesh.group(1), CoordinateSource.DEVICE_MESH
    if description.isupper():
        for pattern, kind in _MEGATRON:
            if pattern.search(description):
                return kind, CoordinateSource.MEGATRON
    kind = _alias(description)
    if kind:
        return kind, CoordinateSource.GROUP_NAME
    if size == world_size:
        return "world", CoordinateSource.NONE
    return "", CoordinateSource.NONE


def mesh_coordinates(
    declared: Mapping[str, int], memberships: Sequence[Membership], world_size: int
) -> Coordinates:
    """Coordinates of this rank from the best source that says anything; later groups do not overwrite."""
    if declared:
        return Coordinates(dict(declared), CoordinateSource.DECLARED)
    found: dict[CoordinateSource, dict[str, int]] = {}
    for membership in memberships:
        kind, source = group_kind(membership.description, len(membership.ranks), world_size)
        if source is not CoordinateSource.NONE:
            found.setdefault(source, {}).setdefault(kind, membership.group_rank)
    for source in _RANKING:
        if found.get(source):
            return Coordinates(found[source], source)
    inferred = _inferred(memberships, world_size)
    return Coordinates(inferred, CoordinateSource.INFERRED if inferred else CoordinateSource.NONE)


def _inferred(memberships: Sequence[Membership], world_size: int) -> dict[str, int]:
    """Dimensions by stride, fastest first (`d0`, `d1`, ...): membership tells shape, never meaning."""
    by_stride: dict[int, int] = {}
    for membership in memberships:
        ranks = membership.ranks
        if not 1 < len(ranks) < world_size:
            continue
        stride = ranks[1] - ranks[0]
        if stride > 0 and ranks == tuple(range(ranks[0], ranks[-1] + 1, stride)):
            by_stride.setdefault(stride, membership.group_rank)
    return {f"d{index}": by_stride[stride] for index, stride in enumerate(sorted(by_stride))}


def _alias(name: str) -> str:
    """The kind a name such as `tp_1`, `dp-shard` or `my_tensor_group` speaks of, else empty."""
    for word in re.split(r"[^a-z]+", name.lower()):
        if word in _ALIASES:
            return _ALIASES[word]
    return ""
