"""Asks nodes for more detail of NCCL jobs where a verdict could say more with it: a signed command for each
node, in the transaction of the verdict. The agents take it back by themselves (docs/adr/0037)."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum

from sqlalchemy.ext.asyncio import AsyncSession

from paceline.contracts.codes import DetailLevel, Source
from paceline.contracts.commands import Command, CommandKind, sign
from paceline.contracts.ids import derived_id
from paceline.contracts.verdicts import Verdict, VerdictClass
from paceline.incidents.commands import append_command
from paceline.incidents.witnesses import ranks_wanted
from paceline.store.actors import system
from paceline.store.incident_changes import ChangeContext, add_timeline_entry
from paceline.store.models.incident import Incident
from paceline.store.repositories.jobs import JobRepository
from paceline.store.times import to_unix

SOURCE = "incidents"
TIMELINE_KIND = "detail"
PLUGIN = (Source.NCCL_PROFILER.name or "").lower()


class Why(str, Enum):
    """Why detail is asked for, or not."""

    SLOW = "slow"  # links and waits tell a late rank from a slow link
    UNDECIDED = "undecided"
    HANGS = "hangs"  # detail cannot show an operation that was begun without it
    NO_PLUGIN = "no_plugin"
    NO_NODE = "no_node"
    NOT_OPENED = "not_opened"  # asked when the incident was opened

    @property
    def asks(self) -> bool:
        return self in (Why.SLOW, Why.UNDECIDED)


@dataclass(frozen=True)
class DetailPolicy:
    """What one opening of an incident asks for."""

    level: DetailLevel = DetailLevel.EDGES  # kernel events stay off until measured on the job
    seconds: float = 180.0  # enough for the detector to see a slow link again and again
    nodes_max: int = 128


def decide_detail(verdict: Verdict, *, opens: bool) -> Why:
    """Whether detail could say more of what this verdict is about."""
    if not opens:
        return Why.NOT_OPENED
    if not verdict.verdict_class.is_slow and verdict.verdict_class is not VerdictClass.INCONCLUSIVE:
        return Why.HANGS
    if PLUGIN not in verdict.coverage.sources:
        return Why.NO_PLUGIN
    return Why.SLOW if verdict.verdict_class.is_slow else Why.UNDECIDED


def choose_detail_nodes(verdict: Verdict, places: Sequence[tuple[int, str]], nodes_max: int) -> list[str]:
    """Nodes to ask. `places` are (rank, node) of the causes and of those that wait, in that order: what waits
    for what is only seen where both ends are asked."""
    nodes = [root.node for root in verdict.roots if root.node] + [node for _, node in places]
    return list(dict.fromkeys(nodes))[:nodes_max]


async def ask_for_detail(
    session: AsyncSession,
    incident: Incident,
    verdict: Verdict,
    record_id: str,
    at: datetime,
    traceparent: str,
    key: bytes,
    *,
    opens: bool,
    policy: DetailPolicy | None = None,
) -> Why:
    """Write the commands that follow from a verdict, and one line of the timeline."""
    policy = policy or DetailPolicy()
    why = decide_detail(verdict, opens=opens)
    if not why.asks:
        return why
    ranks = [rank for part in ranks_wanted(verdict) for rank in part]
    places = await JobRepository(session).places_of(incident.job, incident.attempt, ranks)
    nodes = choose_detail_nodes(verdict, places, policy.nodes_max)
    if not nodes:
        return Why.NO_NODE
    expires_unix_s = to_unix(at + timedelta(seconds=policy.seconds))
    for node in nodes:
        command = sign(
            Command(
                derived_id("cmd", record_id, node, "detail"), CommandKind.SET_DETAIL, node, incident.job,
                incident.attempt, 0, expires_unix_s,
                arguments={"level": policy.level.name.lower(), "incident": incident.id, "why": why.value},
            ),
            key,
        )  # fmt: skip
        await append_command(session, command, incident, at, traceparent)
    words = (
        f"NCCL detail raised to {policy.level.name.lower()} for {policy.seconds:g} s on {len(nodes)} node(s)"
        f", to tell which link or rank: {', '.join(nodes[:8])}"
    )
    context = ChangeContext(system(SOURCE), at, derived_id("evt", record_id, "detail"), "", traceparent)
    add_timeline_entry(session, incident.id, TIMELINE_KIND, words, context, {"reason": why.value})
    return why
