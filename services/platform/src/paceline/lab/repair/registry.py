"""What the platform's database says of one repaired job."""

import asyncio
import itertools
import time
from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from paceline.store import Database
from paceline.store.models.repair import Recovery, RepairAction, RepairMember
from paceline.store.repositories.repair import ActionFilter, RepairRepository

ROWS_MAX = 200
POLL_S = 0.1


class Spell(Protocol):
    """A time during which something was under way; it still is while `ended_at` is None."""

    @property
    def started_at(self) -> datetime: ...

    @property
    def ended_at(self) -> datetime | None: ...


async def members_of(store: Database, job: str) -> Sequence[RepairMember]:
    """Supervisors of a job that have not left."""
    async with store.transaction() as session:
        return await RepairRepository(session).members_page([job], [], None, ROWS_MAX)


async def standbys_ready(store: Database, job: str, supervisors: int) -> int:
    """Warm standbys of a job, once all its `supervisors` have told of themselves; before that -1."""
    rows = await members_of(store, job)
    if len(rows) < supervisors:
        return -1
    return sum(row.ready and row.role == "standby" for row in rows)


async def state_of(store: Database, job: str) -> str:
    """The state machine's word on the newest attempt; empty while there is none."""
    async with store.transaction() as session:
        row = await RepairRepository(session).newest_job(job)
    return "" if row is None else row.state


async def actions_of(store: Database, job: str) -> Sequence[RepairAction]:
    """Newest first."""
    async with store.transaction() as session:
        return await RepairRepository(session).actions(ActionFilter(jobs=[job]), ROWS_MAX)


async def settled_action(store: Database, job: str, timeout_s: float) -> RepairAction | None:
    """The newest action that was carried out, once it is over or `timeout_s` have passed."""
    until = time.monotonic() + timeout_s
    while True:
        done = [action for action in await actions_of(store, job) if action.dispatched_at is not None]
        if (done and done[0].ended_at is not None) or time.monotonic() > until:
            return done[0] if done else None
        await asyncio.sleep(POLL_S)


async def recoveries_of(store: Database, job: str) -> Sequence[Recovery]:
    """Generations that were opened, newest first."""
    async with store.transaction() as session:
        return await RepairRepository(session).recoveries([job], [], None, ROWS_MAX)


def overlapping(spells: Sequence[Spell]) -> int:
    """How many begin before an earlier one of the same job has ended: two recoveries at once."""
    ordered = sorted(spells, key=lambda one: one.started_at)
    pairs = itertools.pairwise(ordered)
    return sum(former.ended_at is None or former.ended_at > later.started_at for former, later in pairs)
