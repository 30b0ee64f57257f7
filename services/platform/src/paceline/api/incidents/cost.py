"""What an incident has cost so far, and what-if for slow ones, as the page shows it."""

from collections.abc import Sequence
from datetime import datetime
from itertools import groupby

from sqlalchemy.ext.asyncio import AsyncSession

from paceline.analysis.cost import Stretch, hours_lost
from paceline.api.incidents.schemas import CostRead, RegainRead
from paceline.contracts.verdicts import Verdict, VerdictClass
from paceline.store.models.incident import Incident
from paceline.store.repositories.jobs import JobRepository
from paceline.store.repositories.judgements import JudgementRow, has_gpus, load_judgements
from paceline.store.times import to_unix


async def load_cost(session: AsyncSession, incident: Incident, verdict: Verdict, now: datetime) -> CostRead:
    """The cost up to `now`, or up to the end of the incident."""
    attempt = await JobRepository(session).attempt(incident.job, incident.attempt)
    judgements = await load_judgements(session, incident.id)
    ended_at = None if attempt is None else attempt.ended_at
    stretches = read_stretches(judgements, incident.resolved_at, ended_at, now)
    ranks = 0 if attempt is None else attempt.world_size
    loss = hours_lost(ranks, stretches)
    going_on = [part for part in stretches if part.end_unix_s >= to_unix(now)]
    growing = incident.resolved_at is None and ended_at is None and bool(going_on)
    is_known = ranks > 0 and (loss.rank_hours > 0 or loss.unknown_s == 0)
    return CostRead(
        unit="gpu" if await has_gpus(session, incident.job, incident.attempt) else "rank",
        ranks_count=ranks or None,
        hours=loss.rank_hours if is_known else None,
        at_most=loss.at_most,
        unknown_s=loss.unknown_s,
        as_of=now,
        hours_per_hour=ranks * max((part.share or 0.0 for part in going_on), default=0.0) * growing,
        reason=_reason(ranks, verdict),
        step_s=verdict.loss.step_s or None if verdict.loss else None,
        usual_step_s=verdict.loss.usual_step_s or None if verdict.loss else None,
        what_if=[RegainRead.model_validate(regain) for regain in verdict.loss.regains]
        if verdict.loss
        else [],
    )


def _reason(ranks: int, verdict: Verdict) -> str:
    if not ranks:
        return "the registry does not say how many ranks the job has"
    if not verdict.verdict_class.is_slow:
        return "all ranks of the job stand still"
    if verdict.loss is None:
        return "the verdict does not say what each step loses"
    return verdict.loss.reason


def read_stretches(
    rows: Sequence[JudgementRow], resolved_at: datetime | None, ended_at: datetime | None, now: datetime
) -> list[Stretch]:
    """What each verdict says holds from then on until the next one; the first from the stall on.

    An episode ends when it clears, else with the incident; nothing is lost after the end of the
    attempt, nor by an episode that was judged to be none in the end.
    """
    stretches: list[Stretch] = []
    for _, group in groupby(rows, key=lambda row: row.episode):
        episode = list(group)
        judged = [row for row in episode if not row.resolved]
        if not judged or any(row.verdict_class == VerdictClass.NONE.value for row in judged):
            continue
        end = min(filter(None, (judged[0].cleared_at or resolved_at or now, ended_at, now)))
        begins = [judged[0].stalled_at, *(row.judged_at for row in judged[1:])]
        ends = [min(begin, end) for begin in begins[1:]] + [end]
        for row, begin, until in zip(judged, begins, ends, strict=True):
            is_slow = VerdictClass(row.verdict_class).is_slow
            stretches.append(
                Stretch(
                    to_unix(begin),
                    to_unix(until),
                    row.share if is_slow else 1.0,
                    is_slow and row.share_at_most,
                )
            )
    return stretches
