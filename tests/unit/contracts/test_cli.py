"""The one script: subcommands of all distributions, help that names where to start."""

import argparse
import json
import subprocess
import sys
from importlib.metadata import EntryPoint, entry_points

import pytest

from paceline.contracts import agent_socket
from paceline.contracts.cli import DIRECT, GROUP, CommandParser, build_parser, main, where_to_start


def add_echo(subparsers: "argparse._SubParsersAction[CommandParser]") -> None:
    parser = subparsers.add_parser("echo", help="says it again")
    parser.add_argument("word")
    parser.set_defaults(run=lambda arguments: 3 if arguments.word == "three" else 0)


@pytest.fixture
def parser(monkeypatch: pytest.MonkeyPatch) -> CommandParser:
    entry = EntryPoint("echo", f"{__name__}:add_echo", GROUP)
    monkeypatch.setattr(EntryPoint, "load", lambda self: add_echo)
    return build_parser([entry])


def test_subcommand_of_an_entry_point_runs(parser: CommandParser) -> None:
    arguments = parser.parse_args(["echo", "three"])
    assert arguments.run(arguments) == 3


def test_help_lists_commands(parser: CommandParser) -> None:
    assert "says it again" in parser.format_help()


def test_help_starts_with_what_is_installed() -> None:
    assert "paceline doctor" in where_to_start(["doctor", "diagnose"])
    alone = where_to_start(["collect", "diagnose"])
    assert "paceline diagnose" in alone
    assert "paceline doctor" not in alone
    assert where_to_start(["echo"]) == ""


def test_every_distribution_adds_its_commands() -> None:
    assert {"agent", "demo", "doctor", "run", "up"} <= {entry.name for entry in entry_points(group=GROUP)}


def test_no_command_prints_help_and_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "commands:" in capsys.readouterr().out


def test_interrupt_ends_with_130(monkeypatch: pytest.MonkeyPatch, parser: CommandParser) -> None:
    def interrupted(_: argparse.Namespace) -> int:
        raise KeyboardInterrupt

    parser.set_defaults(run=interrupted)
    monkeypatch.setattr("paceline.contracts.cli.build_parser", lambda commands: parser)
    assert main([]) == 130


def test_socket_message_is_length_and_json() -> None:
    data = agent_socket.encode_message(agent_socket.Goodbye("finished"))
    (length,) = agent_socket.LENGTH.unpack_from(data)
    assert length == len(data) - 4
    assert json.loads(data[4:]) == {"reason": "finished", "message": "", "type": "goodbye"}


def test_socket_message_is_bounded() -> None:
    with pytest.raises(ValueError, match="expected at most 1048576"):
        agent_socket.encode_message(agent_socket.Goodbye("x" * (1 << 20)))


@pytest.mark.parametrize(
    ("environment", "path"),
    [
        ({"PACELINE_AGENT_SOCKET": "/run/a.sock", "XDG_RUNTIME_DIR": "/run/u"}, "/run/a.sock"),
        ({"XDG_RUNTIME_DIR": "/run/u"}, "/run/u/paceline-agent.sock"),
    ],
)
def test_socket_path_is_declared_or_below_the_runtime_folder(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], path: str
) -> None:
    for name in ("PACELINE_AGENT_SOCKET", "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert agent_socket.default_socket_path() == path


def test_a_command_whose_start_counts_is_found_without_entry_points(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "paceline.contracts.cli._whole_parser", lambda: pytest.fail("all commands were asked")
    )
    with pytest.raises(SystemExit) as ended:
        main(["diagnose", "--help"])
    assert ended.value.code == 0
    assert main(["diagnose", "/no/such/folder"]) == 2


def test_the_agent_imports_nothing_of_other_commands_and_no_exporter() -> None:
    """It stays for as long as its node: what it imports is paid at each start and kept in memory."""
    script = (
        "import sys\n"
        "from paceline.contracts.cli import main\n"
        "sys.argv = ['paceline', 'agent', '--help']\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "import paceline.agent.evidence, paceline.runtime.telemetry\n"
        "unwanted = ('paceline.fleet', 'paceline.trainer', 'paceline.lab', 'google.protobuf', 'pynvml')\n"
        "sys.stderr.write(' '.join(name for name in unwanted if name in sys.modules))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert "--interval" in done.stdout


def test_commands_found_by_name_are_those_of_the_entry_points() -> None:
    known = {entry.name: entry.value for entry in entry_points(group=GROUP)}
    assert {name: ":".join(place) for name, place in DIRECT.items()}.items() <= known.items()


def test_a_command_whose_distribution_is_missing_is_asked_for_among_all(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(DIRECT, "diagnose", ("paceline.no_such_module", "add"))
    with pytest.raises(SystemExit):
        main(["diagnose", "--help"])
    assert "PATH" in capsys.readouterr().out


def test_version_is_that_of_the_distribution(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("paceline 0.")
