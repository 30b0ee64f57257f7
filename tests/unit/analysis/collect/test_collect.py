"""What `paceline collect` takes from live processes, what it leaves alone, and what it says it lacks."""

import http.server
import json
import os
import signal
import socketserver
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.analysis import commands
from paceline.analysis.adapters.collected import CollectedProcesses
from paceline.analysis.adapters.model import Document
from paceline.analysis.collect import Request, collect
from paceline.analysis.collect.bounded import read_bounded, run_bounded
from paceline.analysis.collect.dumps import ask_by_pipe, ask_by_signal, dumps_on_disk, from_worker_server
from paceline.analysis.collect.gather import signal_number, with_host
from paceline.analysis.collect.process import Process, examine, find_processes, identify, without_secrets
from paceline.analysis.facts import Membership

SLEEP = (
    "import signal, time; signal.signal(signal.SIGUSR2, lambda *_: None);"
    "print('NCCL WARN x', flush=True); time.sleep(60)"
)


@pytest.fixture
def rank(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    environment = {**os.environ, "RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "NCCL_DEBUG": "WARN"}
    environment |= {"WANDB_API_KEY": "topsecret", "NCCL_AUTH_TOKEN": "topsecret", "MASTER_ADDR": "head"}
    command = [sys.executable, "-c", SLEEP, "--token", "topsecret", "--url", "http://me:topsecret@x/"]
    with (tmp_path / "out.log").open("wb") as output:
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.DEVNULL)
    for _ in range(200):
        if (tmp_path / "out.log").stat().st_size:
            break
        process_state = process.poll()
        assert process_state is None
        threading.Event().wait(0.05)
    yield process
    process.kill()
    process.wait()


def test_an_archive_that_diagnose_reads(rank: subprocess.Popen[bytes], tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text("step 1\n")
    said: list[str] = []
    request = Request((rank.pid,), (str(log), str(tmp_path / "absent.log")), limit_s=3.0, say=said.append)
    target = tmp_path / "node.tar.gz"
    result = collect(request, target)
    with tarfile.open(target) as archive:
        names = {name.partition("/")[2]: name for name in archive.getnames()}
        manifest = json.loads(archive.extractfile(names["collect.json"]).read())  # type: ignore[union-attr]
        everything = b"".join(archive.extractfile(name).read() for name in names.values())  # type: ignore[union-attr]
    assert {"rank_3/out.log", "logs/0/train.log", "collect.json"} <= set(names)
    assert b"topsecret" not in everything
    process = manifest["processes"][0]
    assert (process["rank"], process["local_rank"], process["world_size"]) == (3, 1, 8)
    assert process["environment"]["MASTER_ADDR"] == "head"
    assert process["status"]["State"].startswith("S")
    assert any("absent.log" in words for words in result.missing)
    assert "  logs/0/train.log: 7 bytes" in said
    assert any("worker server" in words for words in manifest["missing"])
    assert rank.poll() is None
    assert [path.name for path in tmp_path.iterdir() if path.name.endswith(".part")] == []


def test_ranks_of_this_node_are_found_once(rank: subprocess.Popen[bytes]) -> None:
    found = [process for process in find_processes() if process.pid == rank.pid]
    assert [process.rank for process in found] == [3]


def test_a_signal_is_sent_only_where_it_is_handled(rank: subprocess.Popen[bytes]) -> None:
    process = identify(rank.pid)
    examine(process)
    assert "would end it: not sent" in ask_by_signal(process, signal.SIGUSR1)
    assert ask_by_signal(process, signal.SIGUSR2) == ""
    assert rank.poll() is None


@pytest.mark.parametrize("name", ["KILL", "SIGSTOP", "15", "NONSENSE", "99"])
def test_signals_that_end_a_job_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"signal|stops"):
        signal_number(name)
    assert signal_number("USR2") == signal_number("SIGUSR2") == signal.SIGUSR2


class WorkerServer(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        known = self.path == "/handler/dump_nccl_trace_json"
        self.send_response(200 if known else 404)
        self.end_headers()
        self.wfile.write(b'{"version": "2.10"}' if known else b"no such handler")

    def log_message(self, format: str, *args: object) -> None:
        pass

    def address_string(self) -> str:
        return "unix"


def test_the_worker_server_is_asked(tmp_path: Path) -> None:
    path = tmp_path / "worker.sock"
    with socketserver.UnixStreamServer(str(path), WorkerServer) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        process = Process(1, rank=2, environment={"TORCH_WORKER_SERVER_SOCKET": str(path)})
        items = list(from_worker_server(process, 5.0))
        server.shutdown()
        thread.join()
    assert [(item.name, item.content) for item in items] == [
        ("rank_2/nccl_trace_rank_2.json", b'{"version": "2.10"}')
    ]
    lost = list(from_worker_server(process, 1.0))
    assert lost[0].content is None
    assert lost[0].why


def test_a_dump_on_disk_and_a_pipe_without_a_reader(tmp_path: Path) -> None:
    (tmp_path / "trace_7").write_bytes(b"{}")
    environment = {
        "TORCH_FR_DUMP_TEMP_FILE": str(tmp_path / "trace_"),
        "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": str(tmp_path / "pipe_"),
    }
    process = Process(1, rank=7, environment=environment)
    os.mkfifo(tmp_path / "pipe_7.pipe")
    assert "No such device" in ask_by_pipe(process)
    assert [item.content for item in dumps_on_disk(process)] == [b"{}"]
    assert [item.content for item in dumps_on_disk(Process(1, rank=8, environment=environment))] == [None]


def test_what_hangs_is_left_behind() -> None:
    blocked = threading.Event()
    item = read_bounded("x", lambda: b"" * blocked.wait(20), 0.05)
    blocked.set()
    assert (item.content, item.why) == (None, "no answer in 0.05 s")
    assert "gave no answer" in run_bounded("x", ("sleep", "20"), 0.1).why
    assert "No such file" in run_bounded("x", ("paceline-no-such-program",), 1.0).why
    assert run_bounded("x", ("echo", "hello"), 5.0).content == b"hello\n"


def test_secrets_are_taken_out() -> None:
    command = [
        "train.py",
        "--api-key=abc",
        "--hf_token",
        "abc",
        "--lr",
        "1",
        "s3://u:p@host/x",
        "hf_abcdefghij",
    ]
    assert without_secrets(command) == [
        "train.py", "--api-key=(removed)", "--hf_token", "(removed)", "--lr", "1", "s3://(removed)@host/x",
        "(removed)",
    ]  # fmt: skip


def test_kernel_lines_get_their_host() -> None:
    log = b"2026-11-30T00:00:01,5+00:00 NVRM: Xid\n[   12.5] NVRM: Xid\nno time\n"
    assert (
        with_host(log, "n1") == b"2026-11-30T00:00:01,5+00:00 n1 NVRM: Xid\n[   12.5] n1 NVRM: Xid\nno time\n"
    )


def test_the_list_of_processes_is_read_back() -> None:
    content = {
        "format": "paceline-collect-1",
        "host": "n1",
        "processes": [{"rank": 3, "pid": 9, "world_size": 8}],
    }
    document = Document("collect.json", json.dumps(content, indent=1).encode())
    adapter = CollectedProcesses()
    assert adapter.recognise(document)
    fact = next(iter(adapter.read(document)))
    assert isinstance(fact, Membership)
    assert (fact.speaker.rank, fact.speaker.host, fact.speaker.pid, fact.group.size) == (3, "n1", 9, 8)


@pytest.mark.parametrize(
    "content", [b"", b"[]", b'{"processes": 3}', b'{"processes": [1, {"rank": "x"}]}', b"[" * 9999]
)
def test_a_damaged_list_says_nothing(content: bytes) -> None:
    assert list(CollectedProcesses().read(Document("collect.json", content))) == []


def test_nothing_to_collect_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import argparse

    parser = argparse.ArgumentParser()
    commands.add_collect(parser.add_subparsers())
    target = tmp_path / "no" / "x.tar.gz"
    arguments = parser.parse_args(["collect", "--pid", str(os.getpid()), "--quiet", "--out", str(target)])
    assert arguments.run(arguments) == 2
    assert "nothing written" in capsys.readouterr().err


def test_within_a_size_the_rest_is_named(rank: subprocess.Popen[bytes], tmp_path: Path) -> None:
    noise = tmp_path / "noise.log"
    noise.write_bytes(os.urandom(1 << 20).hex().encode())
    target = tmp_path / "node.tar.gz"
    request = Request(
        (rank.pid,), (str(noise),), limit_s=3.0, ask=False, pause=False, archive_bytes_max=700_000
    )
    result = collect(request, target)
    assert target.stat().st_size <= 700_000
    assert any("noise.log: the archive is full" in words for words in result.missing)


def test_within_a_time_the_rest_is_named(rank: subprocess.Popen[bytes], tmp_path: Path) -> None:
    result = collect(Request((rank.pid,), limit_s=3.0, total_s=0.0), tmp_path / "node.tar.gz")
    assert any(words.startswith("what follows") for words in result.missing)
    assert result.got + len(result.missing) >= 2


def test_a_rank_that_only_the_caller_knows(tmp_path: Path) -> None:
    target = tmp_path / "node.tar.gz"
    collect(Request((os.getpid(),), limit_s=3.0, ask=False, pause=False, ranks={os.getpid(): 41}), target)
    with tarfile.open(target) as archive:
        (name,) = [name for name in archive.getnames() if name.endswith("collect.json")]
        manifest = json.loads(archive.extractfile(name).read())  # type: ignore[union-attr]
    assert [process["rank"] for process in manifest["processes"]] == [41]


def test_node_only_looks_at_no_process(rank: subprocess.Popen[bytes], tmp_path: Path) -> None:
    assert collect(Request(node_only=True, limit_s=3.0), tmp_path / "node.tar.gz").processes == 0
