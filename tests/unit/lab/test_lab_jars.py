import hashlib
from pathlib import Path

import pytest

from paceline.lab import jars
from paceline.lab.jars import Jar, jars_directory, missing_jars, read_lock
from paceline.lab.processes import LabError


def test_lock_pins_one_kafka_and_only_its_own_modules() -> None:
    locked = read_lock()

    assert len({jar.file_name for jar in locked}) == len(locked) > 40
    assert {jar.version for jar in locked if jar.group == "org.apache.kafka"} == {"4.4.0"}
    assert jars_directory(locked, Path("/c")) == Path("/c/kafka-4.4.0")


def test_lock_line_without_checksum_is_named(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.write_text("# head\norg.x:y:1\n")

    with pytest.raises(LabError, match=r"lock:2: 'org.x:y:1' is not"):
        read_lock(path)


def test_changed_jar_counts_as_missing(tmp_path: Path) -> None:
    good, bad = b"good", b"bad"
    pinned = [Jar("g", name, "1", hashlib.sha256(good).hexdigest()) for name in ("a", "b", "c")]
    (tmp_path / "a-1.jar").write_bytes(good)
    (tmp_path / "b-1.jar").write_bytes(bad)

    assert [jar.artifact for jar in missing_jars(pinned, tmp_path)] == ["b", "c"]


def test_jar_that_differs_from_the_lock_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    locked = [Jar("g", "kafka_2.13", "1", "0" * 64)]
    monkeypatch.setattr(jars, "read_lock", lambda: locked)

    def fetch(wanted: list[Jar], target: Path) -> None:
        for jar in wanted:
            (target / jar.file_name).write_bytes(b"something else")

    monkeypatch.setattr(jars, "_fetch_with_maven", fetch)

    with pytest.raises(LabError, match=r"kafka_2.13-1.jar: sha256 is .* expects 000"):
        jars.ensure_jars(tmp_path)
    assert not (tmp_path / "kafka-1" / "kafka_2.13-1.jar").exists()


def test_jgo_is_asked_where_maven_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = b"jar"
    locked = [Jar("g", "kafka_2.13", "1", hashlib.sha256(content).hexdigest())]
    monkeypatch.setattr(jars, "read_lock", lambda: locked)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(
        jars,
        "_fetch_with_jgo",
        lambda wanted, target: [(target / jar.file_name).write_bytes(content) for jar in wanted],
    )

    assert [path.read_bytes() for path in jars.ensure_jars(tmp_path)] == [content]
