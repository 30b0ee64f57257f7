import argparse
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from paceline.contracts.cli import main
from paceline.trainer import commands, recording
from paceline.trainer.nccl_found import Family, FoundNccl


def parse(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    commands.add(parser.add_subparsers())
    return parser.parse_args(["run", *words])


@pytest.fixture
def executed(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    calls: list[Any] = []

    def execute(file: str, arguments: Sequence[str], environment: dict[str, str]) -> None:
        calls.append((file, list(arguments), environment))
        raise OSError(8, "Exec format error")

    monkeypatch.setattr(os, "execvpe", execute)
    return calls


def test_the_command_is_executed_with_the_environment(executed: list[Any], tmp_path: Path) -> None:
    arguments = parse(
        "--job-id", "j", "--name", "n", "--socket", str(tmp_path / "s"), "--", sys.executable, "-c", "pass"
    )
    assert commands.run(arguments) == commands.NOT_EXECUTABLE
    file, words, environment = executed[0]
    assert file == sys.executable
    assert words == [sys.executable, "-c", "pass"]
    assert environment["PACELINE"] == "1"
    assert environment["PACELINE_JOB_ID"] == "j"
    assert environment["PACELINE_NAME"] == "n"
    assert environment["PACELINE_AGENT_SOCKET"] == str(tmp_path / "s")


def test_options_of_the_command_stay_with_it(executed: list[Any]) -> None:
    commands.run(parse("--", sys.executable, "--name", "theirs", "--", "x"))
    assert executed[0][1] == [sys.executable, "--name", "theirs", "--", "x"]
    assert executed[0][2].get("PACELINE_NAME") == os.environ.get("PACELINE_NAME")


def test_no_command_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run"]) == 2
    assert "write it after --" in capsys.readouterr().err


def test_an_unknown_command_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--", "no-such-program"]) == 127
    assert "'no-such-program' was not found" in capsys.readouterr().err


def test_a_missing_agent_is_a_warning_only(
    executed: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    commands.run(parse("--socket", str(tmp_path / "none.sock"), "--", sys.executable))
    assert "no agent at" in capsys.readouterr().err
    assert len(executed) == 1


def test_warnings(tmp_path: Path) -> None:
    path = tmp_path / "a.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        assert commands.warnings({"PACELINE_AGENT_SOCKET": str(path)}) == []
        spoilt = {
            "PACELINE_AGENT_SOCKET": str(path),
            "PACELINE_DISABLED": "1",
            "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
        }
        assert [text.partition(" ")[0] for text in commands.warnings(spoilt)] == [
            "PACELINE_DISABLED",
            "TORCH_DEVICE_BACKEND_AUTOLOAD=0:",
        ]
    plain = tmp_path / "file"
    plain.write_text("")
    assert "is no socket" in commands.warnings({"PACELINE_AGENT_SOCKET": str(plain)})[0]


def test_recording_brings_its_own_agent(
    executed: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, str]] = []

    def start(folder: str, size: str, environment: object) -> str:
        asked.append((folder, size))
        return "/run/record.sock"

    monkeypatch.setattr(recording, "start_recorder", start)
    commands.run(parse("--record", "out", "--record-max", "1G", "--", sys.executable))
    assert asked == [("out", "1G")]
    assert executed[0][2]["PACELINE_AGENT_SOCKET"] == "/run/record.sock"


def test_what_cannot_be_recorded_runs_all_the_same(
    executed: list[Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(recording, "entry_points", lambda group: [])
    commands.run(parse("--record", "out", "--", sys.executable))
    assert "nothing is recorded: the agent is not installed" in capsys.readouterr().err
    assert len(executed) == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--record-max", "many"), "for example 64M"),
        (("--record-max", "1M"), "expected at least"),
        (("--socket", "/x"), "leave --socket out"),
    ],
)
def test_wrong_words_for_a_recording(
    executed: list[Any], words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert commands.run(parse("--record", "out", *words, "--", sys.executable)) == commands.USAGE
    assert said in capsys.readouterr().err
    assert executed == []


@pytest.fixture
def found_nccl(monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL 2.29.7 and a plugin, whatever this machine has."""
    found = FoundNccl(Family.NCCL, (2, 29, 7), "nvidia-nccl-cu13", "2.13.0")
    monkeypatch.setattr(commands, "find_nccl", lambda program, environment: found)
    monkeypatch.setattr(commands, "native_files", lambda: ("/opt/it's/libpaceline-nccl-profiler.so", None))
    monkeypatch.setattr(commands, "read_conf", lambda environment: {})
    monkeypatch.delenv("NCCL_PROFILER_PLUGIN", raising=False)


@pytest.mark.usefixtures("found_nccl")
def test_the_plugin_is_in_the_environment_and_said(
    executed: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    commands.run(parse("--", sys.executable))
    assert executed[0][2]["NCCL_PROFILER_PLUGIN"] == "/opt/it's/libpaceline-nccl-profiler.so"
    said = capsys.readouterr().err
    assert "NCCL 2.29.7 (nvidia-nccl-cu13, torch 2.13.0)" in said
    assert "on  profiler plugin" in said
    assert "off preload shim: not needed" in said


@pytest.mark.usefixtures("found_nccl")
def test_a_dry_run_runs_nothing(executed: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert commands.run(parse("--dry-run", "--record", "out", "--", sys.executable)) == 0
    assert executed == []
    assert "NCCL_PROFILER_PLUGIN='/opt/it'\"'\"'s/libpaceline-nccl-profiler.so'" in capsys.readouterr().out


@pytest.mark.usefixtures("found_nccl")
def test_exports_are_read_back_by_a_shell(
    executed: list[Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PACELINE", raising=False)
    monkeypatch.delenv("PACELINE_NAME", raising=False)
    assert commands.run(parse("--print-env", "--name", "a $b")) == 0
    lines = capsys.readouterr().out
    script = f'{lines}\nprintf "%s|%s|%s" "$PACELINE" "$PACELINE_NAME" "$NCCL_PROFILER_PLUGIN"'
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "1|a $b|/opt/it's/libpaceline-nccl-profiler.so"
    assert executed == []


def test_exports_cannot_follow_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert commands.run(parse("--print-env", "--record", "out")) == commands.USAGE
    assert "leave --print-env out" in capsys.readouterr().err
