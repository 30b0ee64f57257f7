"""The jars of Apache Kafka: pinned coordinates and checksums, fetched once into the cache.

`mvn` is used where it works (it knows the site's mirrors), else `jgo`, which downloads by coordinate in
pure Python. Neither decides versions: jgo's resolver mixes up managed versions here (it picked
kafka-clients 3.9.1 for Kafka 4.4.0), so the lock file lists every jar.
"""

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from paceline.lab.paths import cache_directory
from paceline.lab.processes import LabError

LOCK_PATH = Path(__file__).with_name("kafka-jars.lock")
KAFKA_ARTIFACT = "kafka_2.13"
ROOTS = ("org.apache.kafka:kafka_2.13:4.4.0", "org.apache.logging.log4j:log4j-slf4j-impl:2.25.5")
MAVEN_TIMEOUT_S = 600.0
DOWNLOAD_TIMEOUT_S = 60
DOWNLOADS_AT_ONCE = 6
SYSTEM_CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")


@dataclass(frozen=True)
class Jar:
    """One line of the lock file."""

    group: str
    artifact: str
    version: str
    sha256: str

    @property
    def file_name(self) -> str:
        return f"{self.artifact}-{self.version}.jar"


def read_lock(path: Path = LOCK_PATH) -> list[Jar]:
    """The pinned jars; LabError names a line that is not `group:artifact:version sha256:HEX`."""
    jars = []
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        match = re.fullmatch(r"([\w.-]+):([\w.-]+):([\w.-]+) sha256:([0-9a-f]{64})", line.strip())
        if match is None:
            raise LabError(f"{path}:{number}: {line!r} is not `group:artifact:version sha256:HEX`")
        jars.append(Jar(*match.groups()))
    return jars


def jars_directory(jars: Sequence[Jar], cache: Path | None = None) -> Path:
    """The folder of this set of jars: its name carries Kafka's version."""
    version = next(jar.version for jar in jars if jar.artifact == KAFKA_ARTIFACT)
    return (cache or cache_directory()) / f"kafka-{version}"


def missing_jars(jars: Iterable[Jar], folder: Path) -> list[Jar]:
    """Those that are not in `folder` with their pinned checksum."""
    return [jar for jar in jars if _digest(folder / jar.file_name) != jar.sha256]


def ensure_jars(cache: Path | None = None) -> list[Path]:
    """Paths of all jars, fetched where missing; LabError where one cannot be had or differs."""
    jars = read_lock()
    folder = jars_directory(jars, cache)
    if missing_jars(jars, folder):
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # two first starts at once: one fetches, one waits
            missing = missing_jars(jars, folder)
            if missing:
                _fetch(missing, folder)
    return [folder / jar.file_name for jar in jars]


def _fetch(jars: Sequence[Jar], folder: Path) -> None:
    problems = []
    for fetch in (_fetch_with_maven, _fetch_with_jgo):
        with tempfile.TemporaryDirectory(dir=folder, prefix=".fetch-") as temporary:
            try:
                fetch(jars, Path(temporary))
            except (LabError, OSError, RuntimeError, subprocess.SubprocessError) as error:
                problems.append(f"{fetch.__name__.removeprefix('_fetch_with_')}: {error}")
                continue
            _adopt(jars, Path(temporary), folder)
            return
    raise LabError("cannot fetch Kafka's jars; " + "; ".join(problems))


def _adopt(jars: Sequence[Jar], temporary: Path, folder: Path) -> None:
    for jar in jars:
        digest = _digest(temporary / jar.file_name)
        if digest != jar.sha256:
            raise LabError(f"{jar.file_name}: sha256 is {digest}, the lock file expects {jar.sha256}")
    for jar in jars:
        os.replace(temporary / jar.file_name, folder / jar.file_name)


def _fetch_with_maven(jars: Sequence[Jar], target: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise LabError("mvn is not installed")
    pom = target / "pom.xml"
    pom.write_text(_pom((f"{jar.group}:{jar.artifact}:{jar.version}" for jar in jars), transitive=False))
    command = [
        maven,
        "-q",
        "-B",
        "-f",
        str(pom),
        "dependency:copy-dependencies",
        f"-DoutputDirectory={target}",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=MAVEN_TIMEOUT_S, check=False)
    if done.returncode != 0:
        raise LabError((done.stdout + done.stderr).strip()[-500:])


def _fetch_with_jgo(jars: Sequence[Jar], target: Path) -> None:
    from jgo.maven import MavenContext

    if SYSTEM_CERTIFICATES.is_file():  # requests would trust only its own bundle, not the site's authorities
        os.environ.setdefault("REQUESTS_CA_BUNDLE", str(SYSTEM_CERTIFICATES))
    context = MavenContext(repo_cache=target / "repository", timeout=DOWNLOAD_TIMEOUT_S)

    def download(jar: Jar) -> None:
        component = context.project(jar.group, jar.artifact).at_version(jar.version)
        shutil.copyfile(component.artifact().resolve(), target / jar.file_name)

    with ThreadPoolExecutor(DOWNLOADS_AT_ONCE) as pool:
        list(pool.map(download, jars))


def _pom(coordinates: Iterable[str], *, transitive: bool) -> str:
    exclusion = (
        ""
        if transitive
        else "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
    )
    dependencies = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId>"
        f"<version>{version}</version>{exclusion}</dependency>"
        for group, artifact, version in (coordinate.split(":") for coordinate in coordinates)
    )
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        "<groupId>dev.paceline</groupId><artifactId>kafka</artifactId><version>1</version>"
        f"<packaging>pom</packaging><dependencies>{dependencies}</dependencies></project>\n"
    )


def _digest(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return "missing"


def write_lock(path: Path = LOCK_PATH) -> None:
    """Resolve `ROOTS` anew with Maven and pin what it finds; for whoever raises the version."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "pom.xml").write_text(_pom(ROOTS, transitive=True))
        base = ["mvn", "-q", "-B", "-f", str(folder / "pom.xml")]
        subprocess.run([*base, "dependency:tree", f"-DoutputFile={folder}/tree.txt"], check=True)
        subprocess.run([*base, "dependency:copy-dependencies", f"-DoutputDirectory={folder}"], check=True)
        found = re.findall(
            r"([\w.-]+):([\w.-]+):jar:([\w.-]+):(?:compile|runtime)", (folder / "tree.txt").read_text()
        )
        lines = [
            f"{group}:{artifact}:{version} sha256:{_digest(folder / f'{artifact}-{version}.jar')}"
            for group, artifact, version in sorted(found)
        ]
    head = [line for line in path.read_text().splitlines() if line.startswith("#")]
    path.write_text("\n".join([*head, *lines]) + "\n")


if __name__ == "__main__":
    write_lock()
