"""What failures would cost a job, as the API serves it."""

from typing import Any

import pytest

from paceline.contracts.registry import JobRecord
from paceline.contracts.scaling import ScalingRecord
from paceline.incidents.scaling import write_window


async def test_three_policies_with_the_measured_step_and_all_sources(api: Any, job: JobRecord) -> None:
    window = ScalingRecord("w1", "llama", "a1", 60, 119, 60, 8, 8, 1.25, (0.02,), (), "", 1_767_323_045.0)
    async with api.database.transaction() as session:
        await write_window(session, window, 100)
    answer = (await api.client.get("/v1/jobs/llama/economics?failure_every_s=7200")).json()
    assert [each["policy"] for each in answer["outcomes"]] == ["restart", "survivors", "hot_swap"]
    assert answer["refused"] == ""
    parameters = {each["name"]: each for each in answer["parameters"]}
    assert (parameters["job.step_s"]["value"], parameters["job.step_s"]["source"]) == (
        1.25,
        "measured in this job",
    )
    assert (parameters["job.failure_every_s"]["value"], parameters["job.failure_every_s"]["source"]) == (
        7200,
        "given",
    )
    assert parameters["job.gpus"]["value"] == job.world_size
    for each in answer["outcomes"]:
        causes = sum(
            each[name]
            for name in ("down_hours", "replay_hours", "reduced_hours", "overhead_hours", "standby_hours")
        )
        assert each["lost_hours"] == pytest.approx(causes)


async def test_a_job_without_a_measured_step_says_that_it_is_assumed(api: Any, job: JobRecord) -> None:
    answer = (await api.client.get("/v1/jobs/llama/economics")).json()
    sources = {each["name"]: each["source"] for each in answer["parameters"]}
    assert sources["job.step_s"].startswith("assumed")
    assert len(answer["outcomes"]) == 3


async def test_what_cannot_be_simulated_says_why(api: Any, job: JobRecord) -> None:
    answer = (await api.client.get("/v1/jobs/llama/economics?failure_every_s=1")).json()
    assert answer["outcomes"] == []
    assert "job.failure_every_s is 1" in answer["refused"]


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("nobody/economics", 404),
        ("llama/economics?attempt=a9", 404),
        ("llama/economics?failure_every_s=0", 422),
    ],
)
async def test_what_is_not_there(api: Any, job: JobRecord, path: str, status: int) -> None:
    assert (await api.client.get(f"/v1/jobs/{path}")).status_code == status
