"""From simulated agents through the real cores to findings: each mode in its own simulation, none without."""

import pytest

from paceline.contracts.scaling import ScalingMode, ScalingRecord
from paceline.fleet import Conditions, FleetJob, Pause, Profile, ProfileName, Topology
from paceline.lab.evaluation.pipeline import Pipeline

FLAT = Topology(2, 1, 8, ranks_per_node=4)
PIPELINE = Topology(2, 2, 4, ranks_per_node=4)  # receives have no rounds
NOTHING: set[ScalingMode] = set()


def windows_of(
    topology: Topology, conditions: Conditions, seed: int, seconds: int = 64, shards: int = 1
) -> list[ScalingRecord]:
    profile = Profile.named(ProfileName.GLOO)
    pipeline = Pipeline(FleetJob(topology, profile, None, conditions, (), seed, shards=shards))
    pipeline.run(seconds)
    return pipeline.windows


def modes_of(windows: list[ScalingRecord]) -> set[ScalingMode]:
    return {finding.mode for window in windows for finding in window.findings}


@pytest.mark.parametrize(
    ("topology", "conditions", "expected"),
    [
        (FLAT, Conditions(), NOTHING),
        (FLAT, Conditions(jitter=0.1), NOTHING),
        (FLAT, Conditions(gc_per_s=0.025, gc_s=0.4), {ScalingMode.SYNC_AMPLIFICATION}),
        (FLAT, Conditions(slow_nodes=(1,)), {ScalingMode.LOCALITY_VARIANCE}),
        (FLAT, Conditions(slow_locals=(3,)), {ScalingMode.LOCALITY_VARIANCE}),
        (FLAT, Conditions(traffic_nodes=(1,)), {ScalingMode.FABRIC_CONTENTION}),
    ],
    ids=["control", "jitter", "pauses", "slow-node", "slow-local-ranks", "traffic"],
)
def test_each_mode_is_named_in_its_own_simulation(
    topology: Topology, conditions: Conditions, expected: set[ScalingMode]
) -> None:
    windows = windows_of(topology, conditions, seed=7)
    assert modes_of(windows) == expected, windows
    assert all(window.iterations >= 40 and len(window.cv) >= 2 for window in windows)
    assert {(window.ranks, window.ranks_expected) for window in windows} == {(16, 16)}


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        (Conditions(), NOTHING),
        (Conditions(slow_locals=(3,)), {ScalingMode.LOCALITY_VARIANCE}),
    ],
    ids=["control", "slow-local-ranks"],
)
def test_who_waits_for_a_pipeline_is_not_a_slow_place(
    conditions: Conditions, expected: set[ScalingMode]
) -> None:
    windows = windows_of(PIPELINE, conditions, seed=5, seconds=125)
    assert modes_of(windows) == expected, windows
    assert windows[-1].refused == ""


def test_the_shards_of_a_job_are_added_up() -> None:
    windows = windows_of(FLAT, Conditions(slow_nodes=(2,)), seed=3, seconds=125, shards=3)
    assert [window.ranks for window in windows] == [16, 16]
    for window in windows:
        assert [finding.place for finding in window.findings] == ["node"]
        assert window.findings[0].ranks == (8, 9, 10, 11)


def test_a_declared_pause_is_no_iteration() -> None:
    pauses = (Pause(20.0, 6.0), Pause(45.0, 6.0))
    (window,) = windows_of(FLAT, Conditions(pauses=pauses), seed=3, seconds=63)
    assert window.findings == ()
    assert max(window.cv, default=0.0) < 0.02


def test_what_a_finding_costs_is_near_what_was_done() -> None:
    (window,) = windows_of(FLAT, Conditions(slow_nodes=(1,), slow_share=0.1), seed=4)
    (finding,) = window.findings
    assert finding.ranks == (4, 5, 6, 7)
    assert finding.cost_share == pytest.approx(0.08, abs=0.02)  # compute is 84% of an iteration
