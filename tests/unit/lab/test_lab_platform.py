import argparse
import os
import socket
import stat
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from paceline.lab.commands import add_up
from paceline.lab.platform import (
    SERVICES,
    LocalPlatform,
    find_console,
    free_port,
    parse_only,
    redact,
)
from paceline.lab.processes import LabError


def test_only_keeps_the_order_of_the_data() -> None:
    assert parse_only("api, detector") == ("detector", "api")
    assert parse_only(None) == SERVICES


def test_help_names_every_service() -> None:
    parser = argparse.ArgumentParser()
    add_up(parser.add_subparsers())
    with pytest.raises(SystemExit), redirect_stdout(StringIO()) as shown:
        parser.parse_args(["up", "--help"])
    assert ", ".join(SERVICES) in " ".join(shown.getvalue().split())


@pytest.mark.parametrize("text", ["", "detector,paser", " , "])
def test_only_names_what_exists(text: str) -> None:
    with pytest.raises(LabError, match="expected some of detector"):
        parse_only(text)


def test_password_is_not_shown() -> None:
    assert (
        redact("postgresql+asyncpg://p:secret@db:5432/x?host=/s")
        == "postgresql+asyncpg://p@db:5432/x?host=/s"
    )


def test_taken_port_is_left_to_its_owner() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert free_port(port) not in (0, port)
    assert free_port(port) == port


def test_named_servers_are_used_and_none_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_KAFKA_BOOTSTRAP", "kafka.example:9092")
    monkeypatch.setenv("PACELINE_DATABASE_URL", "postgresql+asyncpg://u@db.example/paceline")
    monkeypatch.delenv("PACELINE_API_ADMIN_TOKEN", raising=False)
    before = dict(os.environ)
    platform = LocalPlatform(tmp_path / "home", port=8301)

    platform.launch()
    token = platform.token
    assert (platform.kafka, platform.postgres, platform.bootstrap) == (None, None, "kafka.example:9092")
    assert platform.url == "http://127.0.0.1:8301"
    assert platform.is_new_token
    assert stat.S_IMODE((tmp_path / "home" / "token").stat().st_mode) == 0o600
    platform.stop()
    assert dict(os.environ) == before

    again = LocalPlatform(tmp_path / "home")
    again.launch()
    assert (again.token, again.is_new_token) == (token, False)
    again.stop()


def test_console_is_found_only_where_it_was_built() -> None:
    found = find_console()

    assert found is None or (found / "index.html").is_file()
