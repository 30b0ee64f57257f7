"""Where the local platform keeps things: state in the home, what can be fetched again in the cache."""

import hashlib
import os
import stat
import tempfile
from pathlib import Path

CACHE_VARIABLE = "PACELINE_CACHE"
UNIX_PATH_BYTES_MAX = 107  # sockaddr_un.sun_path holds 108 with the final zero


def cache_directory() -> Path:
    """`$PACELINE_CACHE`, else the user's cache folder."""
    declared = os.environ.get(CACHE_VARIABLE)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(declared).expanduser().absolute() if declared else Path(base) / "paceline"


def is_searchable_by_others(path: Path) -> bool:
    """Whether an unrelated user may walk down to `path`: o+x on it and on every parent."""
    return all(folder.stat().st_mode & stat.S_IXOTH for folder in (path, *path.parents) if folder.exists())


def short_directory(home: Path, name: str) -> Path:
    """A folder for unix sockets that belongs to `home` and whose path stays short; not created.

    `home/name` where a socket in it fits into a socket address, else a folder in the temporary
    directory named by a digest of the home.
    """
    inside = home / name
    if len(os.fsencode(inside)) + len("/.s.PGSQL.5432.lock") <= UNIX_PATH_BYTES_MAX:
        return inside
    digest = hashlib.sha256(os.fsencode(home.absolute())).hexdigest()[:12]
    return Path(tempfile.gettempdir()) / f"paceline-{os.getuid()}-{digest}" / name
