"""What the platform of this machine leaves behind for its agent: where its Kafka is."""

import os
from collections.abc import Mapping
from pathlib import Path

HOME_VARIABLE = "PACELINE_HOME"
_BOOTSTRAP_FILE = "bootstrap"
_BOOTSTRAP_BYTES_MAX = 1024


def home_directory(environment: Mapping[str, str] = os.environ) -> Path:
    """`$PACELINE_HOME`, else the user's data folder."""
    declared = environment.get(HOME_VARIABLE)
    base = environment.get("XDG_DATA_HOME") or Path.home() / ".local/share"
    return Path(declared).expanduser().absolute() if declared else Path(base) / "paceline"


def leave_bootstrap(home: Path, bootstrap: str) -> None:
    """Write the address down; it stays when the platform stops, which comes back under the same."""
    (home / _BOOTSTRAP_FILE).write_text(bootstrap + "\n")


def find_bootstrap(environment: Mapping[str, str] = os.environ) -> str | None:
    """The address that a platform with this home left, None where there was none."""
    try:
        with (home_directory(environment) / _BOOTSTRAP_FILE).open() as file:
            return file.read(_BOOTSTRAP_BYTES_MAX).strip() or None
    except (OSError, UnicodeDecodeError):
        return None
