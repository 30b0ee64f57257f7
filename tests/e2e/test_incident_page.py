"""The incident page with what its nodes have shipped, in a browser; the bundle that it saves is judged again.

Screenshots stay in `.paceline/screens` to be looked at.
"""

import asyncio
import io
import json
import os
import shutil
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from paceline.analysis.diagnosis import diagnose
from paceline.api.server import ApiApp
from paceline.api.settings import ApiSettings
from paceline.contracts.commands import Command, CommandOutcome, CommandResult
from paceline.contracts.schemas import load_json
from paceline.contracts.verdicts import VerdictClass, VerdictRecord
from paceline.incidents.decide import IncidentPolicy
from paceline.incidents.registry import write_job, write_nodes
from paceline.incidents.shipping import Shipping, keep_part, note_result
from paceline.incidents.verdicts import VerdictContext, apply_verdict
from paceline.lab.platform import find_console
from paceline.localizer.core import LocalizerCore
from paceline.store import Database
from paceline.store.settings import StoreSettings
from paceline.store.times import from_unix
from tests.integration.incidents.test_shipping import parts
from tests.unit.analysis.injections import inject
from tests.unit.analysis.simulated_job import Shape, SimulatedJob
from tests.unit.localizer.test_localizer_core import feed, register

ROOT = Path(__file__).parents[2]
SCREENS = ROOT / ".paceline" / "screens"
SHOW = ROOT / "web" / "e2e" / "show-incident.mjs"
CHROMIUM = os.environ.get("PACELINE_CHROMIUM", "/usr/bin/chromium")
TOKEN = "plt_a-token-of-this-test-only-0123456789"
SHIPPING = Shipping(b"a key of the whole cluster")
XID = "NVRM: Xid (PCI:0000:9b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.\n"

pytestmark = [
    pytest.mark.timeout(240),
    pytest.mark.skipif(not shutil.which(CHROMIUM), reason=f"{CHROMIUM} is not installed"),
]


def hung_job() -> tuple[SimulatedJob, VerdictRecord]:
    job = inject("h1", SimulatedJob(Shape(4, 4, 1), 3)).job
    core = LocalizerCore()
    register(core, job)
    (first,) = feed(core, job)
    return job, first.record


def node_archive(node: str) -> bytes:
    """As the collector of that node writes it."""
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w:gz") as archive:
        content = f"2026-11-30T01:00:00,000000+00:00 {node} kernel: {XID}".encode()
        info = tarfile.TarInfo(f"collect-{node}/kernel.log")
        info.size = len(content)
        archive.addfile(info, io.BytesIO(content))
    return target.getvalue()


@pytest.fixture
async def store(database: str) -> AsyncIterator[Database]:
    """INC-1 with its evidence; its first node has shipped, its second could not."""
    store = Database(database)
    job, record = hung_job()
    at = from_unix(record.judged_unix_s + 1)
    context = VerdictContext(IncidentPolicy(), "http://console", bundles_max=4, shipping=SHIPPING)
    async with store.transaction() as session:
        described, nodes, groups = job.registry()
        await write_job(session, described, at, "http://console")
        await write_nodes(session, [*nodes, *groups], at)
    async with store.transaction() as session:
        await apply_verdict(session, record, at, "", context)
    async with store.transaction() as session:
        rows = await session.execute(
            text("SELECT payload FROM outbox WHERE topic LIKE '%commands%' ORDER BY 1")
        )
        commands = [load_json(Command, row) for row in rows.scalars().all()]
    commands.sort(key=lambda each: each.node != record.verdict.roots[0].node)
    async with store.transaction() as session:
        for part in parts(commands[0], node_archive(commands[0].node)):
            await keep_part(session, part, at, SHIPPING.policy, "http://console")
        for each in commands[1:]:
            why = "the collector: nothing written: [Errno 28] No space left on device"
            failed = CommandResult(
                each.id, each.node, each.job, each.attempt, 0, CommandOutcome.FAILED, why, 0.0
            )
            await note_result(session, failed, at, "http://console")
    yield store
    await store.stop()


async def show(url: str, name: str) -> dict[str, Any]:
    process = await asyncio.create_subprocess_exec(
        "node", str(SHOW), url, TOKEN, str(SCREENS), "INC-1", name, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await asyncio.wait_for(process.communicate(), 180)
    assert process.returncode == 0
    found: dict[str, Any] = json.loads(output)
    return found


async def test_logs_of_nodes_and_the_bundle(store: Database, database: str) -> None:
    console = find_console()
    assert console is not None, "the console is not built: make setup"
    SCREENS.mkdir(parents=True, exist_ok=True)
    settings = ApiSettings(
        database=StoreSettings(url=database), port=0, admin_token=TOKEN, console_path=console
    )
    app = ApiApp(settings)
    await app.start()
    try:
        seen = await show(app.url, "shipped")
    finally:
        await app.stop()
    assert "the bundle" in seen["words"]
    assert "first cause" in seen["cells"]
    assert any("No space left" in cell for cell in seen["cells"])
    assert seen["problems"] == []
    assert seen["violations"] == []
    assert [screen["overflow"] for screen in seen["screens"]] == [0] * 4
    (answer,) = diagnose([seen["file"]])
    assert Path(seen["file"]).name == "INC-1.bundle"
    assert answer.verdict_class is VerdictClass.H1
    assert "as published" in answer.grounds[0].statement
    assert any("79" in ground.statement for ground in answer.grounds if ground.rule == "files")
