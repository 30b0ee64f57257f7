"""The RAS client against a server that answers in order, late, in part, without end, or with garbage."""

import asyncio
import base64
import contextlib
import io
import tarfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from paceline.agent.collecting import Run, run_collector
from paceline.agent.evidence import EvidenceApp
from paceline.agent.process import read_environment
from paceline.agent.ras import RasAnswer, RasChoice, RasStatus, ask_ras, choose_address, choose_ras
from paceline.analysis.adapters.model import Document
from paceline.analysis.adapters.nccl_ras_json import RasJson
from paceline.analysis.facts import Counted
from paceline.contracts.commands import Command, CommandKind, CommandResult, sign
from paceline.contracts.evidence import EvidencePart
from paceline.runtime.clock import SystemClock
from paceline.runtime.settings import KafkaSettings

# As 2.28.9 writes it: a comma is missing before "missing_ranks" (ray-project/ray #64928).
BROKEN_JSON = b"""{
"nccl_version": "2.28.9", "timestamp": "2026-11-30 06:00:00", "communicators_count": 1,
"communicators": [{"hash": "0x7d1f", "size": 2, "ranks_count": 1, "missing_ranks_count": 1,
  "ranks": [{"rank": 0, "host": "10.0.0.1", "pid": 4242, "cuda_dev": 0, "nvml_dev": 0,
    "status": {"init_state": 0, "async_error": 0}, "collective_counts": {"AllReduce": 41}}]
  "missing_ranks": [{"rank": 1, "host": "10.0.0.1", "pid": 4247, "status": {"considered_dead": true}}]}]
}"""
Serve = Callable[..., Any]


class Server:
    """One RAS: answers lines from `words`, then writes `body` and closes, unless it is told to stay."""

    def __init__(self, body: bytes, **words: bytes) -> None:
        self.lines: list[str] = []
        self.body = body
        self.words = {"CLIENT": b"SERVER PROTOCOL 2\n", "TIMEOUT": b"OK\n", "SET": b"OK\n", **words}
        self.stays = False
        self.port = 0
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while line := (await reader.readline()).decode():
                self.lines.append(line.strip())
                word = line.split()[0]
                writer.write(self.body if word == "VERBOSE" else self.words[word])
                await writer.drain()
                if word == "VERBOSE" and not self.stays:
                    break
        writer.close()

    async def ask(
        self, form: RasChoice = RasChoice.JSON, pids: tuple[int, ...] = (4242,), **bounds: Any
    ) -> RasAnswer:
        limits = {"line_s": 0.5, "answer_s": 0.5, **bounds}
        return await asyncio.wait_for(ask_ras("127.0.0.1", self.port, form, pids, **limits), 5.0)

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    started: list[Server] = []

    async def start(body: bytes = BROKEN_JSON, **words: bytes) -> Server:
        server = Server(body, **words)
        await server.start()
        started.append(server)
        return server

    yield start
    for server in started:
        await server.stop()


class TestChoice:
    @pytest.mark.parametrize(
        ("version", "choice"),
        [
            ("2.21.5", RasChoice.NO_RAS),
            ("2.24.3", RasChoice.UNSAFE),
            ("2.27.7", RasChoice.UNSAFE),  # NCCL #1996: a segmentation fault of the job
            ("2.28.3", RasChoice.TEXT),
            ("2.28.9", RasChoice.JSON),
            ("2.32.3+cuda13.0", RasChoice.JSON),
            ("", RasChoice.NO_VERSION),
            ("new", RasChoice.NO_VERSION),
        ],
    )
    def test_by_version(self, version: str, choice: RasChoice) -> None:
        assert choose_ras(True, True, version) is choice
        assert choose_ras(False, True, version) is RasChoice.OFF
        assert choose_ras(True, False, version) is RasChoice.NOT_WANTED

    @pytest.mark.parametrize(
        ("value", "address"),
        [
            ("", ("localhost", 28028)),
            ("localhost:28100", ("localhost", 28100)),
            ("127.0.0.1:28100", ("127.0.0.1", 28100)),
            ("[::1]:28100", ("::1", 28100)),
            ("evil.example:22", ("localhost", 28028)),  # a job sends the agent nowhere
            ("localhost:0", ("localhost", 28028)),
            ("localhost:99999999", ("localhost", 28028)),
            ("localhost:\u0661\u0662", ("localhost", 28028)),
        ],
    )
    def test_address(self, value: str, address: tuple[str, int]) -> None:
        assert choose_address({"NCCL_RAS_ADDR": value}, "localhost:28028") == address

    def test_environment_of_a_process(self, tmp_path: Path) -> None:
        (tmp_path / "proc/7").mkdir(parents=True)
        (tmp_path / "proc/7/environ").write_bytes(b"A=1\0NCCL_RAS_ADDR=localhost:5=x\0broken\0\xff=2\0")
        assert read_environment(tmp_path, 7)["NCCL_RAS_ADDR"] == "localhost:5=x"
        assert read_environment(tmp_path, 8) == {}


class TestAnswers:
    async def test_json_without_its_comma_is_read_all_the_same(self, serve: Serve) -> None:
        server = await serve()
        answer = await server.ask()
        assert (answer.status, answer.form) == (RasStatus.OK, RasChoice.JSON)
        assert server.lines == ["CLIENT PROTOCOL 2", "TIMEOUT 10", "SET FORMAT json", "VERBOSE STATUS"]
        facts = list(RasJson().read(Document("nccl-ras.json", answer.content)))
        counted = [fact for fact in facts if isinstance(fact, Counted)]
        assert [(fact.launched, fact.missing) for fact in counted] == [(41, ""), (None, "dead")]

    async def test_a_server_without_json_gives_text(self, serve: Serve) -> None:
        server = await serve(b"NCCL version 2.28.3 compiled with CUDA 12.9\n", SET=b"ERROR: unknown\n")
        answer = await server.ask()
        assert (answer.status, answer.form) == (RasStatus.OK, RasChoice.TEXT)

    async def test_text_asks_for_no_format(self, serve: Serve) -> None:
        server = await serve(b"text\n")
        await server.ask(RasChoice.TEXT)
        assert "SET FORMAT json" not in server.lines

    async def test_of_another_job(self, serve: Serve) -> None:
        server = await serve()
        assert (await server.ask(pids=(1, 2))).status is RasStatus.OTHER_JOB
        server = await serve(b"Rank 3 -- GPU 3 managed by process 77 on node n1\n")
        assert (await server.ask(RasChoice.TEXT)).status is RasStatus.OTHER_JOB
        assert (await server.ask(RasChoice.TEXT, (77,))).status is RasStatus.OK

    async def test_cut_and_slow_answers_are_kept_as_far_as_they_came(self, serve: Serve) -> None:
        server = await serve(BROKEN_JSON[:-200])
        server.stays = True
        answer = await server.ask()
        assert (answer.status, answer.is_evidence) == (RasStatus.CUT, True)
        assert list(RasJson().read(Document("nccl-ras.json", answer.content)))

    async def test_an_answer_without_end_is_bounded(self, serve: Serve) -> None:
        server = await serve(b"x" * 300_000)
        answer = await server.ask(RasChoice.TEXT, bytes_max=100_000, answer_s=2.0)
        assert (answer.status, len(answer.content)) == (RasStatus.CUT, 100_000)

    @pytest.mark.parametrize(
        ("words", "body", "status"),
        [
            ({"CLIENT": b"HTTP/1.1 400 Bad Request\r\n"}, b"", RasStatus.NOT_RAS),
            ({"CLIENT": b"SERVER PROTOCOL x\n"}, b"", RasStatus.NOT_RAS),
            ({"CLIENT": b"SERVER PROTOCOL 1\n"}, b"", RasStatus.OLD_PROTOCOL),
            ({"CLIENT": b"\xff\x00\n"}, b"", RasStatus.NOT_RAS),
            ({"CLIENT": b"y" * 5000}, b"", RasStatus.NO_ANSWER),  # a line without end
            ({"CLIENT": b""}, b"", RasStatus.NO_ANSWER),  # silence
            ({"TIMEOUT": b"ERROR\n"}, b"", RasStatus.NOT_RAS),
            ({}, b"", RasStatus.NO_ANSWER),
            ({}, b" \n", RasStatus.NO_ANSWER),
        ],
    )  # fmt: skip
    async def test_what_is_no_answer(
        self, serve: Serve, words: dict[str, bytes], body: bytes, status: RasStatus
    ) -> None:
        answer = await (await serve(body, **words)).ask()
        assert (answer.status, answer.is_evidence) == (status, False)

    async def test_nobody_listens(self, serve: Serve) -> None:
        server = await serve()
        await server.stop()
        assert (await server.ask()).status is RasStatus.NOBODY


class TestEvidence:
    """What goes with an incident."""

    async def test_the_answer_is_in_the_archive(
        self, serve: Serve, start_agent: Any, start_rank: Any, publisher: Any, eventually: Any
    ) -> None:
        server = await serve()
        agent = await start_agent(ras=True, ras_address=f"127.0.0.1:{server.port}", ras_nccl_version="2.28.9")
        rank = await start_rank(0)
        await eventually(lambda: publisher.job() is not None)
        server.body = BROKEN_JSON.replace(b"4242", str(rank.pid).encode())
        key = b"a key of the whole cluster"
        runs: list[Run] = []

        async def collect(run: Run) -> str:
            runs.append(run)
            return await run_collector(run)

        kafka = KafkaSettings(bootstrap="127.0.0.1:1", request_timeout_s=1.0)
        app = EvidenceApp(agent._settings, kafka, key, agent, publisher, SystemClock(), collect)
        await app.start()
        try:
            until = SystemClock().unix_s() + 60
            plain = Command(
                "cmd_1", CommandKind.FREEZE_EVIDENCE, "n1", "job", "a1", 0, until,
                arguments={"incident": "inc_1", "collect_s": "20", "bytes_max": "4000000", "ask": "yes"},
            )  # fmt: skip
            app.take(sign(plain, key))
            (result,) = await eventually(lambda: publisher.values(CommandResult), 40.0)
        finally:
            await app.stop()
        assert "RAS: ok" in result.message
        data = b"".join(base64.b64decode(part.data) for part in publisher.values(EvidencePart))
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            (name,) = [name for name in archive.getnames() if name.endswith("nccl-ras.json")]
            file = archive.extractfile(name)
            assert file is not None
            assert file.read() == server.body
        assert not runs[0].files[0].exists()
