import json
import socket
from pathlib import Path

import pytest

from paceline.lab import doctor
from paceline.lab.doctor import Finding, render


def test_missing_required_thing_is_named_with_its_remedy() -> None:
    findings = [Finding("git", True, "/usr/bin/git"), Finding("node", False, "not on PATH", "get Node.js 20")]
    text = render(findings, as_json=False)

    assert "missing node  not on PATH  -> get Node.js 20" in text
    assert text.endswith("1 required thing(s) missing\n")


def test_optional_thing_does_not_fail() -> None:
    findings = [Finding("chromium", False, "not on PATH", "apt-get install chromium", required=False)]

    assert json.loads(render(findings, as_json=True))["ok"] is True
    assert render(findings, as_json=False).startswith("absent  chromium")


def test_old_python_is_refused() -> None:
    assert not doctor.check_python((3, 10, 14)).ok
    assert doctor.check_python((3, 11, 0)).ok


@pytest.mark.parametrize(("text", "ok"), [("v20.20.2", True), ("v18.19.0", False), ("", False)])
def test_node_version(text: str, ok: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_output", lambda *_: text)

    assert doctor.check_node().ok is ok


def test_empty_cache_lacks_every_jar(tmp_path: Path) -> None:
    finding = doctor.check_jars(tmp_path)

    assert not finding.ok
    assert finding.detail.startswith("0 of 45 jars")


def test_taken_port_is_said_and_is_no_failure() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        finding = doctor.check_port(taken.getsockname()[1])

    assert not finding.ok
    assert not finding.required


def test_socket_folder_that_can_be_made_is_enough(tmp_path: Path) -> None:
    assert doctor.check_agent_socket(tmp_path / "a" / "b" / "agent.sock").ok
    assert not doctor.check_agent_socket(Path("/proc/paceline/agent.sock")).ok


def test_every_finding_of_a_bare_machine_has_a_remedy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path))

    missing = [finding for finding in doctor.examine() if not finding.ok]

    assert {"make", "git", "c++", "node", "npm", "kafka"} <= {finding.name for finding in missing}
    assert all(finding.fix for finding in missing)
