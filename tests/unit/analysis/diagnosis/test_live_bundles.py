"""Live evidence judged again: alone, with files beside it, damaged, of many revisions."""

import hashlib
import io
import json
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline.analysis import JudgePolicy, dump_bundle, load_judged
from paceline.analysis.bundles import MAGIC, BundleError
from paceline.analysis.diagnosis import diagnose
from paceline.analysis.judge import judge
from paceline.contracts.batch import EDGE_ROW
from paceline.contracts.verdicts import RootKind, VerdictClass
from tests.unit.analysis.injections import inject
from tests.unit.analysis.simulated_job import Shape, SimulatedJob

XID = (
    "2026-11-30T01:00:00,000000+00:00 {node} kernel: NVRM: Xid (PCI:0000:9b:00): 79, pid='<unknown>', "
    "name=<unknown>, GPU has fallen off the bus.\n"
)


def hung(kind: str = "h1", seed: int = 3) -> bytes:
    return dump_bundle(inject(kind, SimulatedJob(Shape(4, 2, 1), seed)).job.evidence())


def add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    archive.addfile(info, io.BytesIO(content))


def write_bundle(path: Path, evidence: list[bytes], files: dict[str, bytes] | None = None) -> Path:
    """As the API writes it: list of contents, evidence from oldest to newest, files of nodes."""
    entries: list[dict[str, Any]] = []
    for number, packed in enumerate(evidence, 1):
        verdict = judge(load_judged(packed).evidence)
        roots = [{"kind": root.kind.value, "rank": root.rank, "node": root.node, "gpu": root.gpu,
                  "role": root.role.value, "name": root.name, "peer_rank": None, "ranks": list(root.ranks)}
                 for root in verdict.roots]  # fmt: skip
        published = {"class": verdict.verdict_class.value, "sub_reason": verdict.sub_reason.value}
        digest = hashlib.sha256(packed).hexdigest()
        entries.append({"what": "evidence", "sha256": digest, "revision": number, "verdict_id": f"v{number}",
                        "verdict": {**published, "roots": roots}})  # fmt: skip
    incident = {"label": "INC-7", "job": "job-1", "verdict_id": f"v{len(evidence)}"}
    manifest = {"format": "paceline-incident-1", "incident": incident, "files": entries}
    with tarfile.open(path, "w:gz") as archive:
        add(archive, "INC-7/manifest.json", json.dumps(manifest, indent=1).encode())
        for number, packed in enumerate(evidence, 1):
            add(archive, f"INC-7/evidence/{number:02}-r{number}.plev", packed)
        for name, content in (files or {}).items():
            add(archive, f"INC-7/{name}", content)
    return path


def collected(folder: Path, files: dict[str, bytes]) -> bytes:
    """An archive of one node inside the bundle."""
    path = folder / "node.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            add(archive, name, content)
    return path.read_bytes()


class TestJudgedAgain:
    def test_bare_evidence(self, tmp_path: Path) -> None:
        packed = hung()
        (tmp_path / "INC-1-r1.evidence.gz").write_bytes(packed)
        verdict = judge(load_judged(packed).evidence)
        (answer,) = diagnose([str(tmp_path)])
        assert (answer.verdict_class, answer.summary) == (verdict.verdict_class, verdict.summary)
        assert [root.rank for root in answer.roots] == [root.rank for root in verdict.roots]

    def test_the_newest_of_several(self, tmp_path: Path) -> None:
        bundle = write_bundle(tmp_path / "b", [hung("h2_size"), hung("h1")])
        (answer,) = diagnose([str(bundle)])
        assert answer.verdict_class is VerdictClass.H1
        assert "as published in revision 2 of INC-7" in answer.grounds[0].statement

    def test_a_dead_process_keeps_its_class(self, tmp_path: Path) -> None:
        (answer,) = diagnose([str(write_bundle(tmp_path / "b", [hung("dead")]))])
        assert answer.verdict_class is VerdictClass.DEAD_PROCESS

    def test_damaged_evidence_is_named_and_the_older_one_judged(self, tmp_path: Path) -> None:
        bundle = write_bundle(tmp_path / "b", [hung("h1")], {"evidence/02-r2.plev": MAGIC + b"\x01\0\0\0x"})
        (answer,) = diagnose([str(bundle)])
        assert answer.verdict_class is VerdictClass.H1
        assert any("02-r2.plev" in note for note in answer.seen.notes)


class TestFilesBeside:
    def test_an_xid_of_the_node_is_added(self, tmp_path: Path) -> None:
        packed = hung()
        node = str(judge(load_judged(packed).evidence).roots[0].node)
        inner = collected(tmp_path, {"collect-n/kernel.log": XID.format(node=node).encode()})
        bundle = write_bundle(tmp_path / "b", [packed], {"shipped/01-n.tar.gz": inner})
        (answer,) = diagnose([str(bundle)])
        assert answer.verdict_class is VerdictClass.H1
        (files,) = [ground for ground in answer.grounds if ground.rule == "files"]
        assert "79" in files.statement
        assert files.supports
        assert "kernel.log" in files.origins[0].file

    def test_another_node_speaks_against(self, tmp_path: Path) -> None:
        inner = collected(tmp_path, {"collect-n/kernel.log": XID.format(node="other-9").encode()})
        bundle = write_bundle(tmp_path / "b", [hung()], {"shipped/01-n.tar.gz": inner})
        (answer,) = diagnose([str(bundle)])
        assert answer.roots[0].kind is RootKind.RANK
        assert [ground.supports for ground in answer.grounds if ground.rule == "files"] == [False]

    def test_silence_of_files_means_nothing(self, tmp_path: Path) -> None:
        inner = collected(tmp_path, {"collect-n/rank_2/out.log": b"step 17 loss 2.1\n"})
        bundle = write_bundle(tmp_path / "b", [hung()], {"shipped/01-n.tar.gz": inner})
        (answer,) = diagnose([str(bundle)])
        assert [ground.rule for ground in answer.grounds if ground.rule == "files"] == []


class TestThresholds:
    def test_they_travel_with_the_evidence(self) -> None:
        evidence = load_judged(hung()).evidence
        policy = JudgePolicy(stall_age_s=7.5, slow_rounds_min=2)
        judged = load_judged(dump_bundle(evidence, policy=policy))
        assert judged.policy == policy
        assert judged.is_whole
        assert load_judged(dump_bundle(evidence)).policy is None

    def test_rows_that_did_not_fit_are_said(self) -> None:
        noise = np.random.default_rng(1).bytes(400 * EDGE_ROW.itemsize)
        evidence = replace(load_judged(hung()).evidence, edges=np.frombuffer(noise, EDGE_ROW))
        assert load_judged(dump_bundle(evidence)).is_whole
        cut = load_judged(dump_bundle(evidence, 8_000))
        assert (cut.is_whole, len(cut.evidence.edges)) == (False, 0)

    def test_thresholds_that_are_no_numbers_are_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        evidence = load_judged(hung()).evidence
        for wrong in (float("nan"), -1.0, "many", True):
            packed = dump_bundle(evidence, policy=JudgePolicy(alpha=wrong))  # type: ignore[arg-type]
            with pytest.raises(BundleError, match="policy alpha"):
                load_judged(packed)
