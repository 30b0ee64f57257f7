import pytest

from paceline.contracts.registry import CoordinateSource
from paceline.trainer.coordinates import Membership, group_kind, mesh_coordinates


@pytest.mark.parametrize(
    ("description", "kind", "source"),
    [
        ("mesh_tp", "tp", CoordinateSource.DEVICE_MESH),
        ("mesh_dp_shard", "dp", CoordinateSource.DEVICE_MESH),
        ("mesh_x", "x", CoordinateSource.DEVICE_MESH),
        ("TENSOR_MODEL_PARALLEL_GROUP", "tp", CoordinateSource.MEGATRON),
        ("PIPELINE_MODEL_PARALLEL_GROUP", "pp", CoordinateSource.MEGATRON),
        ("DATA_PARALLEL_GROUP_WITH_CP_GLOO", "dp", CoordinateSource.MEGATRON),
        ("EXPERT_MODEL_PARALLEL_GROUP", "ep", CoordinateSource.MEGATRON),
        ("CONTEXT_PARALLEL_GROUP", "cp", CoordinateSource.MEGATRON),
        ("tp_1", "tp", CoordinateSource.GROUP_NAME),
        ("my-pipeline-stage0", "pp", CoordinateSource.GROUP_NAME),
        ("undefined", "", CoordinateSource.NONE),
        ("stepper", "", CoordinateSource.NONE),
    ],
)
def test_kind_of_a_group(description: str, kind: str, source: CoordinateSource) -> None:
    assert group_kind(description, 2, 8) == (kind, source)


def test_the_world_is_a_kind() -> None:
    assert group_kind("default_pg", 8, 8) == ("world", CoordinateSource.NONE)


def test_declared_beats_found() -> None:
    found = mesh_coordinates({"tp": 3}, [Membership("mesh_tp", (0, 1), 1)], 8)
    assert (found.values, found.source) == ({"tp": 3}, CoordinateSource.DECLARED)


def test_the_best_source_is_taken_alone() -> None:
    groups = [
        Membership("tp_0", (0, 1), 0),
        Membership("mesh_dp", (0, 2), 1),
        Membership("mesh_tp", (0, 1), 1),
        Membership("mesh_tp", (0, 1), 0),
    ]
    found = mesh_coordinates({}, groups, 8)
    assert (found.values, found.source) == ({"dp": 1, "tp": 1}, CoordinateSource.DEVICE_MESH)


def test_membership_alone_tells_shape_but_no_meaning() -> None:
    groups = [
        Membership("default_pg", tuple(range(8)), 5),
        Membership("undefined", (4, 5), 1),
        Membership("undefined", (1, 3, 5, 7), 2),
        Membership("undefined", (0, 1, 5), 2),
    ]
    found = mesh_coordinates({}, groups, 8)
    assert (found.values, found.source) == ({"d0": 1, "d1": 2}, CoordinateSource.INFERRED)


def test_nothing_known() -> None:
    assert mesh_coordinates({}, [], 8).source is CoordinateSource.NONE
