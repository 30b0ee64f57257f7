"""What was judged about an incident over time: what its cost is counted from."""

from datetime import datetime
from typing import NamedTuple

from sqlalchemy import cast, func, select
from sqlalchemy.dialects.postgresql import JSONPATH
from sqlalchemy.ext.asyncio import AsyncSession

from paceline.store.models.incident import IncidentEpisode
from paceline.store.models.node import JobNode
from paceline.store.models.verdict import StoredVerdict

JUDGEMENTS_MAX = 1000  # the incidents service accepts 200 revisions of an incident


class JudgementRow(NamedTuple):
    """One accepted verdict record of one episode."""

    episode: str
    revision: int
    resolved: bool  # the end of the episode
    verdict_class: str
    share: float | None  # of each step that is lost, where the verdict says so
    share_at_most: bool
    stalled_at: datetime
    judged_at: datetime
    cleared_at: datetime | None  # of the episode


async def load_judgements(session: AsyncSession, incident_id: str) -> list[JudgementRow]:
    """By episode and revision, the end of an episode last."""
    loss = StoredVerdict.verdict["loss"]
    query = (
        select(
            StoredVerdict.episode,
            StoredVerdict.revision,
            StoredVerdict.resolved,
            StoredVerdict.verdict["verdict_class"].as_string(),
            loss["share"].as_float(),
            func.coalesce(loss["at_most"].as_boolean(), False),
            StoredVerdict.stalled_at,
            StoredVerdict.judged_at,
            IncidentEpisode.cleared_at,
        )
        .join(
            IncidentEpisode,
            (IncidentEpisode.job == StoredVerdict.job)
            & (IncidentEpisode.attempt == StoredVerdict.attempt)
            & (IncidentEpisode.episode == StoredVerdict.episode),
        )
        .where(StoredVerdict.incident_id == incident_id)
        .order_by(StoredVerdict.episode, StoredVerdict.revision, StoredVerdict.resolved)
        .limit(JUDGEMENTS_MAX)
    )
    return [JudgementRow._make(row) for row in await session.execute(query)]


async def has_gpus(session: AsyncSession, job: str, attempt: str) -> bool:
    """Whether any rank of the attempt was registered with a GPU."""
    has_gpu = func.jsonb_path_exists(JobNode.ranks, cast("$[*].gpu ? (@ != null)", JSONPATH))
    query = select(JobNode.node).where(JobNode.job == job, JobNode.attempt == attempt, has_gpu).limit(1)
    return await session.scalar(query) is not None
