"""What may be repaired without a person, told as a user tells it: through the API."""

from collections.abc import Sequence

import httpx

from paceline.contracts.repair import RepairCause, RepairMode
from paceline.lab.platform import api_url
from paceline.lab.processes import LabError

# A lost rank is one that is gone or stopped; what its peers meet meanwhile stays a proposal.
CAUSES = (RepairCause.PROCESS_EXIT, RepairCause.FROZEN)


async def allow(
    token: str, mode: RepairMode, job: str | None = None, causes: Sequence[RepairCause] = CAUSES
) -> None:
    """`mode` for `causes` of `job`, None for all jobs. LabError where the API refuses it."""
    headers = {"Authorization": f"Bearer {token}"}
    async with httpx.AsyncClient(base_url=api_url(), headers=headers, timeout=10.0) as client:
        for cause in causes:
            body = {"job": job, "cause": cause.value, "mode": mode.value}
            response = await client.put("/v1/repair/policies", json=body)
            if response.status_code != 200:
                raise LabError(f"the API refused the policy: {response.text[:500]}")
