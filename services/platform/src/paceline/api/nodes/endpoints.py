"""The memory of nodes across jobs."""

from typing import Annotated

from fastapi import APIRouter, Path

from paceline.analysis.history import HistoryPolicy
from paceline.api.auth import IncidentsReader
from paceline.api.errors import MissingScope, Unauthenticated, responses
from paceline.api.nodes.schemas import NodeHistoryRead, NodesRead
from paceline.api.nodes.service import list_totals, load_history
from paceline.api.pagination import Limit
from paceline.api.services import Services, Session, Shared

router = APIRouter(prefix="/v1/nodes", tags=["nodes"])
READ = (Unauthenticated, MissingScope)
NodeName = Annotated[str, Path(min_length=1, max_length=300, pattern=r"^[^\x00]+$")]


def history_policy(services: Services) -> HistoryPolicy:
    return HistoryPolicy(**services.settings.history.model_dump())


@router.get("", responses=responses(*READ))
async def list_nodes(
    session: Session, services: Shared, caller: IncidentsReader, limit: Limit = 50
) -> NodesRead:
    """Nodes that were a first cause, repeat offenders first."""
    return await list_totals(session, services.now(), history_policy(services), limit)


@router.get("/{node}", responses=responses(*READ))
async def get_node(
    node: NodeName, session: Session, services: Shared, caller: IncidentsReader
) -> NodeHistoryRead:
    """The incidents of one node, of all jobs. Empty for a node that was never a first cause."""
    return await load_history(session, node, services.now(), history_policy(services))
