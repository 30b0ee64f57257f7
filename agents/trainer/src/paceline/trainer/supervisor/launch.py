"""How a command comes under supervisors: as one itself, or through the launcher that starts its ranks."""

import os
import shlex
import stat
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from paceline.contracts.ids import derived_id
from paceline.trainer.identity import read_ranks
from paceline.trainer.settings import is_disabled
from paceline.trainer.supervisor import ROLE_VARIABLE

PYTHON_VARIABLE = "PYTHON_EXEC"  # torchrun starts its workers with it
LAUNCHERS = ("torchrun",)
LAUNCHER_MODULES = ("torch.distributed.run", "torch.distributed.launch")


@dataclass(frozen=True)
class Launch:
    """The command to execute and its environment; `warning` where nothing will be repaired."""

    command: list[str]
    environment: dict[str, str]
    warning: str = ""


class NoFolder(OSError):
    """There is no folder in which a file may be executed; the message says what to set."""


def supervised(command: Sequence[str], environment: Mapping[str, str], standby: bool = False) -> Launch:
    """`command` so that each of its training processes has a supervisor. NoFolder passes.

    torchrun gets an interpreter that is one; a process that has a rank already, or stands by, is started
    under one.
    """
    changed = dict(environment)
    if standby:
        changed[ROLE_VARIABLE] = "standby"
    if is_disabled(environment):
        return Launch(list(command), changed, "PACELINE_DISABLED is set: nothing is repaired")
    if not standby and is_launcher(command):
        changed[PYTHON_VARIABLE] = write_interpreter(
            runtime_folder(environment), environment.get(PYTHON_VARIABLE) or sys.executable
        )
        return Launch(list(command), changed)
    if standby or read_ranks(environment).rank >= 0:
        words = [sys.executable, "-m", "paceline.trainer.supervisor", "--", *command]
        return Launch(words, changed)
    return Launch(
        list(command),
        changed,
        f"nothing is repaired: {command[0]} is not torchrun and this process has no rank; with Slurm or MPI "
        "put it behind the launcher: srun ... paceline run --repair -- python train.py",
    )


def is_launcher(command: Sequence[str]) -> bool:
    """Whether `command` is torchrun, by either of its names."""
    if os.path.basename(command[0]) in LAUNCHERS:
        return True
    words = [word for word in command[1:4] if word not in ("-u", "-B", "-s", "-E", "-I")]
    return len(words) >= 2 and words[0] == "-m" and words[1] in LAUNCHER_MODULES


def runtime_folder(environment: Mapping[str, str]) -> Path:
    """A folder of this user alone. NoFolder where the one to use belongs to somebody else."""
    parent = environment.get("XDG_RUNTIME_DIR")
    folder = Path(parent) / "paceline" if parent else Path(tempfile.gettempdir()) / f"paceline-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        info = folder.lstat()
    except OSError as error:
        raise NoFolder(f"cannot use {folder} ({error.strerror}); set TMPDIR") from error
    if info.st_uid != os.getuid() or info.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise NoFolder(f"{folder} belongs to somebody else, or others may write to it; set TMPDIR")
    return folder


def write_interpreter(folder: Path, python: str) -> str:
    """Path of an executable that stands for `python` and runs everything under a supervisor."""
    name = f"supervised-python-{derived_id('x', python, sys.executable)[2:14]}"
    ours, theirs = shlex.quote(sys.executable), shlex.quote(python)
    text = f'#!/bin/sh\nexec {ours} -m paceline.trainer.supervisor -- {theirs} "$@"\n'
    fd, temporary = tempfile.mkstemp(dir=folder)
    with os.fdopen(fd, "w") as file:
        file.write(text)
    os.chmod(temporary, 0o700)
    os.replace(temporary, folder / name)
    return str(folder / name)
