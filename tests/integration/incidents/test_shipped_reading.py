"""Archives of nodes, read by the real command in a process of its own, become a line of the incident."""

import io
import tarfile
from pathlib import Path

import pytest
from sqlalchemy import text

from paceline.contracts.verdicts import VerdictRecord
from paceline.incidents.shipped_reading import diagnose_files, read_shipped
from tests.integration.incidents.test_shipping import Lab, lab, record

__all__ = ["lab", "record"]  # fixtures
OUT_OF_MEMORY = (
    "[rank{rank}]: Traceback (most recent call last):\n"
    '[rank{rank}]:   File "/app/train.py", line 10, in <module>\n'
    "[rank{rank}]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
)


def archive(log: str) -> bytes:
    """As `paceline collect` writes one: a log in a tar.gz."""
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w:gz") as tar:
        info = tarfile.TarInfo("node/train.log")
        info.size = len(log)
        tar.addfile(info, io.BytesIO(log.encode()))
    return target.getvalue()


async def read(lab: Lab) -> int:
    return await read_shipped(lab.store, lab.now, "http://console")


async def lines(lab: Lab) -> list[tuple[str, str]]:
    columns = "details ->> 'agreement', message"
    query = f"SELECT {columns} FROM timeline_entries WHERE kind = 'shipped_files' ORDER BY id"
    async with lab.store.transaction() as session:
        return [(row[0], row[1]) for row in await session.execute(text(query))]


async def test_the_files_are_read_once_when_nobody_is_waited_for(lab: Lab, record: VerdictRecord) -> None:
    await lab.verdict(record)
    first, *others = await lab.commands()
    await lab.ship(first, archive(OUT_OF_MEMORY.format(rank=5)))
    assert await read(lab) == 0  # the others may still answer
    for command in others:
        await lab.ship(command, archive("step 7 loss 2.5\n"))
    assert [await read(lab), await read(lab)] == [1, 0]
    ((agreement, message),) = await lines(lab)
    assert agreement == "agrees"
    assert "rank 5" in message
    async with lab.store.transaction() as session:
        query = "SELECT count(*) FROM outbox WHERE type = 'incident.evidence'"
        assert await session.scalar(text(query)) == 2  # complete, and what the files say


async def test_another_cause_in_the_files_is_said_and_changes_no_verdict(
    lab: Lab, record: VerdictRecord
) -> None:
    await lab.verdict(record)
    for command in await lab.commands():
        await lab.ship(command, archive(OUT_OF_MEMORY.format(rank=6)))
    assert await read(lab) == 1
    assert [agreement for agreement, _ in await lines(lab)] == ["differs"]
    async with lab.store.transaction() as session:
        row = (await session.execute(text("SELECT version, revision, summary FROM incidents"))).one()
    assert tuple(row) == (1, 1, record.verdict.summary)


async def test_what_comes_late_is_read_again(lab: Lab, record: VerdictRecord) -> None:
    await lab.verdict(record)
    first, *others = await lab.commands()
    await lab.ship(first, archive("step 7 loss 2.5\n" * 9))
    lab.wait(61)
    await lab.expire()
    assert await read(lab) == 1
    lab.wait(1)
    await lab.ship(others[0], archive(OUT_OF_MEMORY.format(rank=5)))
    assert await read(lab) == 1
    assert [agreement for agreement, _ in await lines(lab)][-1] == "agrees"


async def test_files_that_say_nothing_and_files_that_are_none(lab: Lab, record: VerdictRecord) -> None:
    await lab.verdict(record)
    for command in await lab.commands():
        await lab.ship(command, b"\x00\x01 no archive" * 9)
    assert await read(lab) == 1
    ((agreement, message),) = await lines(lab)
    assert agreement is None
    assert message == "the shipped files could not be read: exit status 2"


async def test_a_reader_that_does_not_end_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sitecustomize.py").write_text("import time\ntime.sleep(600)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert await diagnose_files(tmp_path, limit_s=0.5) == "it had not ended after 0.5 s"
