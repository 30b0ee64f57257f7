"""Liveness and readiness of the API itself."""

from fastapi import APIRouter

from paceline.api.errors import Unavailable, responses
from paceline.api.schemas import ReadModel
from paceline.api.services import Shared

router = APIRouter(tags=["health"])


class HealthRead(ReadModel):
    status: str


@router.get("/healthz")
async def get_health() -> HealthRead:
    """The process answers."""
    return HealthRead(status="ok")


@router.get("/readyz", responses=responses(Unavailable))
async def get_readiness(services: Shared) -> HealthRead:
    """The database answers."""
    await services.database.ping()
    return HealthRead(status="ready")
