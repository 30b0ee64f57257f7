"""CV per window and failure modes of a job, as the API serves them."""

from dataclasses import replace
from typing import Any

import pytest

from paceline.contracts.ids import derived_id
from paceline.contracts.registry import JobRecord
from paceline.contracts.scaling import ScalingFinding, ScalingMode, ScalingRecord
from paceline.incidents.scaling import write_window

NOW = 1_767_323_045.0


def make_window(number: int, *findings: ScalingFinding, **changes: object) -> ScalingRecord:
    record = ScalingRecord(
        derived_id("scal", "llama", number), "llama", "a1", number * 60, number * 60 + 59, 60, 8, 8, 1.25,
        (0.02, 0.12, 0.11), findings, "", NOW + 60 * number,
    )  # fmt: skip
    return replace(record, **changes)  # type: ignore[arg-type]


def found(mode: ScalingMode, cost: float) -> ScalingFinding:
    return ScalingFinding(mode, f"{mode.value} seen", cost, {"P": "0.9"}, (2, 3), "node")


async def put(api: Any, *windows: ScalingRecord) -> None:
    async with api.database.transaction() as session:
        for window in windows:
            await write_window(session, window, 100)


async def test_windows_newest_first_and_each_mode_once(api: Any, job: JobRecord) -> None:
    local, fabric = ScalingMode.LOCALITY_VARIANCE, ScalingMode.FABRIC_CONTENTION
    await put(
        api,
        make_window(1, found(local, 0.05)),
        make_window(2, found(local, 0.06), found(fabric, 0.09)),
        make_window(3, cv=(), iterations=12, refused="12 iterations, 40 are needed"),
    )
    answer = (await api.client.get("/v1/jobs/llama/scaling")).json()
    assert [item["first_step"] for item in answer["items"]] == [180, 120, 60]
    newest, second, _ = answer["items"]
    assert (newest["cv"], newest["refused"]) == (None, "12 iterations, 40 are needed")
    assert (second["cv"], second["cvs"]) == (0.11, [0.02, 0.12, 0.11])
    assert second["findings"][0]["inputs"] == [{"name": "P", "value": "0.9"}]
    assert [(mode["mode"], mode["windows"], mode["cost_share"]) for mode in answer["modes"]] == [
        ("fabric_contention", 1, 0.09),
        ("locality_variance", 2, 0.06),
    ]
    assert (await api.client.get("/v1/jobs/llama")).json()["open_incidents_count"] == 0
    one = (await api.client.get("/v1/jobs/llama/scaling?limit=1")).json()
    assert len(one["items"]) == 1


async def test_old_findings_are_not_current(api: Any, job: JobRecord) -> None:
    await put(api, make_window(1, found(ScalingMode.SYNC_AMPLIFICATION, 0.1)))
    await put(api, *(make_window(number) for number in range(2, 12)))
    answer = (await api.client.get("/v1/jobs/llama/scaling")).json()
    assert (len(answer["items"]), answer["modes"]) == (11, [])


@pytest.mark.parametrize("path", ["/v1/jobs/nobody/scaling", "/v1/jobs/llama/scaling?attempt=a9"])
async def test_what_is_not_there(api: Any, job: JobRecord, path: str) -> None:
    assert (await api.client.get(path)).status_code == 404
    assert (await api.client.get("/v1/jobs/llama/scaling?limit=0")).status_code == 422
