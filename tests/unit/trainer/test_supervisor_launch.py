"""How `paceline run --repair` puts supervisors in."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from paceline.trainer.supervisor.launch import (
    NoFolder,
    is_launcher,
    runtime_folder,
    supervised,
    write_interpreter,
)

SUPERVISOR = [sys.executable, "-m", "paceline.trainer.supervisor", "--"]


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (["/opt/bin/torchrun", "--nproc-per-node", "8", "train.py"], True),
        (["python", "-u", "-m", "torch.distributed.run", "train.py"], True),
        (["python", "train.py", "-m", "torch.distributed.run"], False),
        (["python"], False),
    ],
)
def test_torchrun_is_known_by_both_its_names(command: list[str], expected: bool) -> None:
    assert is_launcher(command) is expected


def test_torchruns_workers_get_an_interpreter_that_supervises(tmp_path: Path) -> None:
    launch = supervised(["torchrun", "train.py"], {"XDG_RUNTIME_DIR": str(tmp_path)})
    assert launch.command == ["torchrun", "train.py"]
    text = Path(launch.environment["PYTHON_EXEC"]).read_text()
    assert "paceline.trainer.supervisor" in text


def test_a_process_with_a_rank_is_started_under_a_supervisor() -> None:
    assert supervised(["python", "train.py"], {"RANK": "3"}).command == [*SUPERVISOR, "python", "train.py"]
    assert supervised(["python", "t.py"], {"SLURM_PROCID": "0"}).command == [*SUPERVISOR, "python", "t.py"]


def test_a_standby_needs_no_rank() -> None:
    launch = supervised(["python", "train.py"], {}, standby=True)
    assert launch.command == [*SUPERVISOR, "python", "train.py"]
    assert launch.environment["PACELINE_ROLE"] == "standby"


def test_what_cannot_be_repaired_runs_and_is_told_how() -> None:
    launch = supervised(["python", "train.py"], {})
    assert launch.command == ["python", "train.py"]
    assert "behind the launcher" in launch.warning
    assert "PACELINE_DISABLED" in supervised(["torchrun", "t"], {"PACELINE_DISABLED": "1"}).warning


def test_the_interpreter_passes_words_and_status_on(tmp_path: Path) -> None:
    path = write_interpreter(tmp_path, sys.executable)
    code = "import sys; sys.exit(len(sys.argv))"
    environment = {name: text for name, text in os.environ.items() if name not in ("RANK", "PACELINE_ROLE")}
    done = subprocess.run([path, "-c", code, "a b", "c"], env=environment, check=False, capture_output=True)
    assert done.returncode == 3, done.stderr


def test_a_folder_that_others_may_write_to_is_refused(tmp_path: Path) -> None:
    (tmp_path / "paceline").mkdir()
    (tmp_path / "paceline").chmod(0o777)
    with pytest.raises(NoFolder, match="others may write"):
        runtime_folder({"XDG_RUNTIME_DIR": str(tmp_path)})
