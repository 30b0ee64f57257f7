"""What the platform of this machine leaves behind for its agent: where its Kafka is, and the command key."""

import os
import secrets
from collections.abc import Mapping
from pathlib import Path

from paceline.runtime.settings import CommandSettings, KafkaSettings, load_settings

HOME_VARIABLE = "PACELINE_HOME"
_BOOTSTRAP_FILE = "bootstrap"
_COMMAND_KEY_FILE = "command-key"
_BOOTSTRAP_BYTES_MAX = 1024
_BOOTSTRAP_VARIABLE = "PACELINE_KAFKA_BOOTSTRAP"
_KEY_VARIABLES = frozenset({"PACELINE_COMMAND_KEY", "PACELINE_COMMAND_KEY_FILE"})


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


def leave_command_key(home: Path) -> Path:
    """The file with the key that commands are signed with, made where there is none."""
    path = home / _COMMAND_KEY_FILE
    if not path.exists():
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_urlsafe(32) + "\n")
    return path


def find_command_key(environment: Mapping[str, str] = os.environ) -> Path | None:
    """The key file that a platform with this home left and that we may read, None where there is none."""
    path = home_directory(environment) / _COMMAND_KEY_FILE
    return path if os.access(path, os.R_OK) else None


def find_kafka_settings(bootstrap: str | None) -> KafkaSettings:
    """With the address that a command was given, else that of the environment, else what a platform with this
    home left; SettingsError for a wrong setting."""
    if not bootstrap and _BOOTSTRAP_VARIABLE not in os.environ:
        bootstrap = find_bootstrap()
    return load_settings(KafkaSettings, **({"bootstrap": bootstrap} if bootstrap else {}))


def find_command_settings() -> CommandSettings:
    """With the key of the environment, else the file that a platform with this home left."""
    key_file = None if _KEY_VARIABLES & os.environ.keys() else find_command_key()
    return load_settings(CommandSettings, **({"key_file": key_file} if key_file else {}))
