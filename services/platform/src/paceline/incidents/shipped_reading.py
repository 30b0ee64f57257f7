"""Reads what nodes shipped by `paceline diagnose`, and writes what it says on the incident.

The files are text and pickles that training jobs wrote: they are read in a process of its own, at
lowest priority, within a time and a memory, and what comes back is only words (docs/adr/0030).
"""

import asyncio
import contextlib
import json
import os
import resource
import sys
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from sqlalchemy.ext.asyncio import AsyncSession

from paceline.contracts.events import ShipmentState
from paceline.contracts.ids import derived_id
from paceline.incidents.shipped_answer import ShippedAnswer, compare
from paceline.incidents.shipping import SOURCE, tell_evidence
from paceline.runtime.processes import end_group
from paceline.store import Database
from paceline.store.actors import system
from paceline.store.incident_changes import ChangeContext, read_verdict
from paceline.store.repositories.incidents import IncidentRepository
from paceline.store.repositories.outbox import OutboxRepository
from paceline.store.repositories.shipments import SHIPPED_FILES, ShipmentRepository

AGE_MAX = timedelta(hours=1)  # what came earlier is left to people
AT_ONCE_MAX = 4  # incidents of one round, one after the other
READING_S_MAX = 60.0
MEMORY_BYTES_MAX = 2 << 30
OUTPUT_BYTES_MAX = 4 << 20
_CLI = "paceline.contracts.cli"
_ANSWERED = (0, 3)  # 3: inconclusive


@dataclass(frozen=True)
class _Unread:
    """An incident with archives of its newest opening that sent some. `at` is not before any of them came,
    so that what is read counts as read."""

    incident_id: str
    event_id: str
    at: datetime


async def read_shipped(database: Database, now: datetime, console_url: str) -> int:
    """Read what is whole and was not read yet; returns the number of incidents that got a line."""
    written = 0
    async with database.transaction() as session:
        incidents = await ShipmentRepository(session).unread(now - AGE_MAX, AT_ONCE_MAX)
    for incident_id in incidents:
        with TemporaryDirectory(prefix="paceline-shipped-") as folder:
            async with database.transaction() as session:
                unread = await _unpack(session, incident_id, Path(folder), now)
            if unread is not None:
                said = await diagnose_files(Path(folder))
                async with database.transaction() as session:
                    written += await _write(session, unread, said, console_url)
    return written


async def diagnose_files(folder: Path, limit_s: float = READING_S_MAX) -> "dict[str, Any] | str":
    """The answer of `paceline diagnose` on all of `folder`, or why there is none."""
    line = [sys.executable, "-m", _CLI, "diagnose", "--json", "--quiet", str(folder)]
    process = await asyncio.create_subprocess_exec(
        *line, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    _make_small(process.pid)
    assert process.stdout is not None
    try:
        async with asyncio.timeout(limit_s):
            output = await process.stdout.read(OUTPUT_BYTES_MAX)
            while part := await process.stdout.read(1 << 16):
                if len(output := output + part) > OUTPUT_BYTES_MAX:
                    return f"its answer is larger than {OUTPUT_BYTES_MAX} bytes"
            await process.wait()
    except TimeoutError:
        return f"it had not ended after {limit_s:g} s"
    finally:
        await end_group(process)
    if process.returncode not in _ANSWERED:
        return f"exit status {process.returncode}"
    try:
        answer = json.loads(output)
    except ValueError:
        return "its answer is no JSON"
    return answer if isinstance(answer, dict) else "its answer is no JSON object"


def _make_small(pid: int) -> None:
    """Lowest priority, bounded memory; from outside, since no code may run between fork and exec here."""
    with contextlib.suppress(ProcessLookupError):
        os.setpriority(os.PRIO_PROCESS, pid, 19)
        resource.prlimit(pid, resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))


async def _unpack(session: AsyncSession, incident_id: str, folder: Path, now: datetime) -> _Unread | None:
    shipments = ShipmentRepository(session)
    found = await shipments.of_incident(incident_id)
    shipped = [each for each in found if each.state == ShipmentState.SHIPPED.value]
    whole = [each for each in shipped if each.round == shipped[0].round]
    event_id = derived_id("evt", incident_id, SHIPPED_FILES, *sorted(each.id for each in whole))
    if not whole or await OutboxRepository(session).has(event_id):
        return None
    for number, each in enumerate(whole):
        content = await shipments.archive(each.id)
        await asyncio.to_thread((folder / f"{number:02}.tar.gz").write_bytes, content)
    return _Unread(
        incident_id, event_id, max([now, *(each.received_at for each in whole if each.received_at)])
    )


async def _write(
    session: AsyncSession, unread: _Unread, said: "dict[str, Any] | str", console_url: str
) -> int:
    incident = await IncidentRepository(session).get(unread.incident_id, for_update=True)
    if incident is None or await OutboxRepository(session).has(unread.event_id):
        return 0
    message, details = _line(said, incident.verdict)
    context = ChangeContext(system(SOURCE), unread.at, unread.event_id, console_url)
    await tell_evidence(session, incident, SHIPPED_FILES, message, context, details)
    return 1


def _line(said: "dict[str, Any] | str", verdict: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    if isinstance(said, str):
        return f"the shipped files could not be read: {said}", {}
    try:
        answer: ShippedAnswer = compare(read_verdict(verdict), said)
    except ValueError as error:
        return f"the shipped files could not be read: {error}", {}
    return answer.words, {
        "agreement": answer.agreement.value,
        "class": answer.verdict_class,
        "owner": answer.owner,
        "confidence": answer.confidence,
        "summary": answer.summary,
    }
