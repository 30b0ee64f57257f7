"""The bundle of an incident: downloaded, and judged again by the command to what was published."""

import argparse
import gzip
import hashlib
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from paceline.analysis import JudgePolicy, commands
from paceline.contracts.verdicts import VerdictRecord
from paceline.incidents.registry import write_job, write_nodes
from paceline.localizer.core import LocalizerCore
from tests.unit.analysis.injections import inject
from tests.unit.analysis.simulated_job import Shape, SimulatedJob
from tests.unit.localizer.test_localizer_core import feed, register

KINDS = ["h1", "h2_size", "inversion", "frozen_inside", "dead", "h3", "p2p_send", "gil"]


def judged(kind: str, policy: JudgePolicy | None = None) -> tuple[SimulatedJob, list[VerdictRecord]]:
    """A hung job and the records that the localizer publishes of it, signals arriving one by one."""
    hung = inject(kind, SimulatedJob(Shape(2, 2, 2), 3)).job
    core = LocalizerCore(policy)
    register(core, hung)
    for event in hung.health:
        core.note_health(event, 1.0)
    found = [*feed(core, hung, 10.0), *feed(core, hung, 60.0)]
    return hung, [each.record for each in found]


async def publish(api: Any, hung: SimulatedJob, records: list[VerdictRecord]) -> None:
    job, nodes, groups = hung.registry()
    async with api.database.transaction() as session:
        await write_job(session, job, api.services.now(), "http://console")
        await write_nodes(session, [*nodes, *groups], api.services.now())
    for record in records:
        await api.apply(record)


async def download(api: Any, folder: Path) -> Path:
    answer = await api.client.get("/v1/incidents/INC-1/bundle")
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-disposition"] == 'attachment; filename="INC-1.bundle"'
    assert int(answer.headers["content-length"]) == len(answer.content)
    path = folder / "anything"  # recognised by content
    path.write_bytes(answer.content)
    return path


def diagnose(path: Path, capsys: pytest.CaptureFixture[str], *more: str) -> dict[str, Any]:
    parser = argparse.ArgumentParser()
    commands.add_diagnose(parser.add_subparsers())
    arguments = parser.parse_args(["diagnose", "--json", "--quiet", str(path), *more])
    capsys.readouterr()
    status = commands.run_diagnose(arguments)
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert status == answer["exit_status"]
    return answer


def members(path: Path) -> dict[str, bytes]:
    with tarfile.open(path) as archive:
        files = {member.name: archive.extractfile(member) for member in archive}
        return {name: stream.read() for name, stream in files.items() if stream is not None}


class TestJudgedAgain:
    @pytest.mark.parametrize("kind", KINDS)
    async def test_the_command_says_what_was_published(
        self, api: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
    ) -> None:
        hung, records = judged(kind)
        await publish(api, hung, records)
        incident = (await api.client.get("/v1/incidents/INC-1")).json()
        answer = diagnose(await download(api, tmp_path), capsys)
        assert answer["class"] == incident["verdict_class"]
        assert answer["sub_reason"] == incident["sub_reason"]
        assert answer["summary"] == incident["summary"]
        assert answer["confidence"] == incident["confidence"]
        assert answer["action"]["kind"] == incident["what_next"]["action"]["kind"]
        fields = ("kind", "rank", "node", "peer_rank", "role")
        assert [[root.get(name) for name in fields] for root in answer["roots"]] == [
            [root[name] for name in fields] for root in incident["roots"]
        ]
        assert answer["evidence"][0]["statement"].startswith("judged again from its evidence: as published")
        assert answer["coverage"]["ranks_expected"] == hung.shape.world
        assert answer["coverage"]["notes"] == []

    async def test_with_the_thresholds_of_the_localizer(
        self, api: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        hung, records = judged("h1", JudgePolicy(roots_max=64, evidence_max=1))
        await publish(api, hung, records)
        answer = diagnose(await download(api, tmp_path), capsys)
        assert len(answer["evidence"]) == 2  # one of the judgement, one that says that it was made again

    async def test_another_verdict_than_the_published_one_is_said(
        self, api: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        hung, (record, *_) = judged("h1")
        other = judged("h2_size")[1][0]
        changed = VerdictRecord(**{**vars(record), "verdict": other.verdict})
        await publish(api, hung, [changed])
        answer = diagnose(await download(api, tmp_path), capsys)
        assert answer["class"] == "H1"
        said = answer["evidence"][0]
        assert not said["supports"]
        assert "was published as H2 size_mismatch" in said["statement"]


class TestArchive:
    async def test_what_is_inside(self, api: Any, tmp_path: Path) -> None:
        hung, records = judged("dead")
        await publish(api, hung, records)
        await api.client.post("/v1/incidents/INC-1/notes", json={"text": "looking"})
        path = await download(api, tmp_path)
        files = members(path)
        assert next(iter(files)) == "INC-1/manifest.json"
        manifest = json.loads(files["INC-1/manifest.json"])
        assert manifest["format"] == "paceline-incident-1"
        assert manifest["incident"]["label"] == "INC-1"
        assert manifest["left_out"] == []
        assert {f"INC-1/{entry['name']}" for entry in manifest["files"]} == set(files) - {
            "INC-1/manifest.json"
        }
        for entry in manifest["files"]:
            content = files[f"INC-1/{entry['name']}"]
            assert (len(content), hashlib.sha256(content).hexdigest()) == (entry["bytes"], entry["sha256"])
        verdicts = json.loads(files["INC-1/verdicts.json"])["verdicts"]
        assert [row["id"] for row in verdicts] == [record.id for record in records]
        job = json.loads(files["INC-1/job.json"])
        assert job["job"]["id"] == records[0].job
        assert sum(len(node["ranks"]) for node in job["nodes"]) == hung.shape.world
        assert len(job["communicators"]) == len(hung.registry()[2])
        health = json.loads(files["INC-1/health.json"])["health"]
        assert [event["kind"] for event in health] == [event.kind.value for event in hung.health]
        timeline = json.loads(files["INC-1/timeline.json"])["timeline"]
        assert [entry["kind"] for entry in timeline][-1] == "note"

    async def test_the_same_rows_give_the_same_bytes(self, api: Any, tmp_path: Path) -> None:
        await publish(api, *judged("h1"))
        first = (await download(api, tmp_path)).read_bytes()
        assert (await download(api, tmp_path)).read_bytes() == first

    async def test_evidence_that_cannot_be_read_leaves_the_rest(
        self, api: Any, incident: str, tmp_path: Path
    ) -> None:
        files = members(await download(api, tmp_path))
        assert files["INC-1/evidence/01-r1.plev"] == b"evidence"
        assert "expected" in json.loads(files["INC-1/health.json"])["why"]

    async def test_a_cut_bundle_is_said_to_be_cut(
        self, api: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        await publish(api, *judged("h1"))
        whole = gzip.decompress((await download(api, tmp_path)).read_bytes())
        at = whole.index(b"PLEV")
        cut = tmp_path / "cut"
        cut.write_bytes(gzip.compress(whole[: at + 400]))
        parser = argparse.ArgumentParser()
        commands.add_diagnose(parser.add_subparsers())
        status = commands.run_diagnose(parser.parse_args(["diagnose", "--quiet", str(cut)]))
        assert status in (2, 3)
        said = capsys.readouterr()
        assert "cut" in said.out + said.err

    async def test_who_may_not_read_incidents_gets_nothing(self, api: Any, incident: str) -> None:
        token = await api.create_token("jobs:read")
        async with api.anonymous(Authorization=f"Bearer {token}") as client:
            assert (await client.get("/v1/incidents/INC-1/bundle")).status_code == 403
        assert (await api.client.get("/v1/incidents/INC-9/bundle")).status_code == 404

    async def test_a_record_that_is_too_large_is_left_out_by_name(
        self, api: Any, incident: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("paceline.api.incidents.bundle.RECORD_BYTES_MAX", 900)
        files = members(await download(api, tmp_path))
        left = json.loads(files["INC-1/manifest.json"])["left_out"]
        assert "job.json" in [entry["name"] for entry in left]
        assert "INC-1/job.json" not in files


class TestBounds:
    async def test_no_more_at_once_than_the_disk_holds(self, api: Any, tmp_path: Path) -> None:
        await publish(api, *judged("h1"))
        downloads = api.services.downloads
        held = [downloads.open(1) for _ in range(8)]
        answer = await api.client.get("/v1/incidents/INC-1/bundle")
        assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
        for file in held:
            file.close()
            file.close()
        for _ in range(9):
            await download(api, tmp_path)
        assert downloads.count == 0
