"""Commands for evidence: which are obeyed, what is sent, and that the agent samples on meanwhile."""

import asyncio
import base64
import hashlib
import os
import sys
import tarfile
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paceline.agent.app import AgentApp
from paceline.agent.collecting import Answer, Load, Run, bounded, decide_command, run_collector
from paceline.agent.evidence import EvidenceApp
from paceline.contracts.commands import Command, CommandKind, CommandOutcome, CommandResult, sign
from paceline.contracts.evidence import PART_BYTES_MAX, EvidencePart
from paceline.runtime.clock import SystemClock
from paceline.runtime.settings import KafkaSettings

KEY = b"a key of the whole cluster"
NOW = 1_700_000_000.0
IDLE = Load((), 0, 4, 0, 20)
Eventually = Callable[..., Any]


def command(**changes: object) -> Command:
    plain = Command(
        "cmd_1", CommandKind.FREEZE_EVIDENCE, "n1", "job", "a1", 0, NOW + 60,
        arguments={"incident": "inc_1", "collect_s": "5", "bytes_max": "4000000", "ask": "yes"},
    )  # fmt: skip
    return sign(replace(plain, **changes), KEY)  # type: ignore[arg-type]


class TestDecision:
    @pytest.mark.parametrize(
        ("changed", "load", "answer"),
        [
            ({}, IDLE, Answer.ACCEPT),
            ({"node": "n2"}, IDLE, Answer.OTHER_NODE),
            ({"kind": CommandKind.FENCE}, IDLE, Answer.OTHER_KIND),
            ({"expires_unix_s": NOW}, IDLE, Answer.EXPIRED),
            ({}, replace(IDLE, known=("cmd_1",)), Answer.DUPLICATE),
            ({}, replace(IDLE, waiting=4), Answer.BUSY),
            ({}, replace(IDLE, last_hour=20), Answer.BUSY),
        ],
    )
    def test_answers(self, changed: dict[str, object], load: Load, answer: Answer) -> None:
        assert decide_command(command(**changed), "n1", KEY, NOW, load) is answer

    def test_only_what_is_signed_is_obeyed(self) -> None:
        forged = replace(command(), job="another")
        assert decide_command(forged, "n1", KEY, NOW, IDLE) is Answer.UNSIGNED
        assert decide_command(command(), "n1", b"another key, as long", NOW, IDLE) is Answer.UNSIGNED
        assert decide_command(command(), "n1", None, NOW, IDLE) is Answer.NO_KEY
        assert not Answer.UNSIGNED.is_told

    @pytest.mark.parametrize("text", ["", "é" * 64, "\ud800", "0" * 64])
    def test_a_signature_of_any_text_is_an_answer_and_no_error(self, text: str) -> None:
        assert decide_command(replace(command(), signature=text), "n1", KEY, NOW, IDLE) is Answer.UNSIGNED

    def test_a_command_asks_for_less_and_never_for_more(self) -> None:
        assert [bounded(text, 60.0) for text in ("5", "600", "-1", "nan", "x", None)] == [
            5,
            60,
            60,
            60,
            60,
            60,
        ]


@pytest.fixture
async def shipper(start_agent: Any, publisher: Any) -> AsyncIterator[Callable[..., Any]]:
    """An agent and its shipper with a collector of the test's own; Kafka is not there."""
    apps: list[EvidenceApp] = []

    async def start(collect: Any, key: bytes | None = KEY) -> tuple[AgentApp, EvidenceApp]:
        agent = await start_agent()
        kafka = KafkaSettings(bootstrap="127.0.0.1:1", request_timeout_s=1.0)
        app = EvidenceApp(agent._settings, kafka, key, agent, publisher, SystemClock(), collect)
        await app.start()
        apps.append(app)
        return agent, app

    yield start
    for app in apps:
        await app.stop()


def fresh(**changes: object) -> Command:
    return command(expires_unix_s=SystemClock().unix_s() + 60, **changes)


class TestShipping:
    async def test_the_archive_goes_out_in_parts_and_the_result_behind_it(
        self, shipper: Any, publisher: Any, start_rank: Any, eventually: Eventually
    ) -> None:
        content = hashlib.sha256(b"x").digest() * (PART_BYTES_MAX // 32 + 1)
        runs: list[Run] = []

        async def collect(run: Run) -> str:
            runs.append(run)
            run.target.write_bytes(content)
            return ""

        _, app = await shipper(collect)
        rank = await start_rank(1)
        await eventually(lambda: publisher.job() is not None)
        assert app.take(fresh()) is Answer.ACCEPT
        assert app.take(fresh()) is Answer.DUPLICATE
        (result,) = await eventually(lambda: publisher.values(CommandResult))
        parts: list[EvidencePart] = publisher.values(EvidencePart)
        assert b"".join(base64.b64decode(part.data) for part in parts) == content
        assert [(part.part, part.parts, part.bytes_count) for part in parts] == [
            (0, 2, len(content)),
            (1, 2, len(content)),
        ]
        assert {part.sha256 for part in parts} == {hashlib.sha256(content).hexdigest()}
        assert (result.outcome, result.command) == (CommandOutcome.DONE, "cmd_1")
        assert runs[0].processes == [(rank.pid, 1)]
        assert (runs[0].total_s, runs[0].bytes_max, runs[0].ask) == (5.0, 4_000_000, True)
        assert not runs[0].target.exists()

    async def test_sampling_goes_on_while_it_collects(
        self, shipper: Any, publisher: Any, start_rank: Any, eventually: Eventually
    ) -> None:
        go_on = asyncio.Event()

        async def collect(run: Run) -> str:
            await go_on.wait()
            return "stuck"

        agent, app = await shipper(collect)
        await start_rank(0)
        app.take(fresh())
        before = agent.sampler.samples
        await eventually(lambda: agent.sampler.samples > before + 5)
        go_on.set()
        (result,) = await eventually(lambda: publisher.values(CommandResult))
        assert (result.outcome, result.message) == (CommandOutcome.FAILED, "stuck")

    async def test_what_goes_wrong_is_told_and_the_next_one_served(
        self, shipper: Any, publisher: Any, eventually: Eventually
    ) -> None:
        sizes = iter([None, 5_000_000, 10])

        async def collect(run: Run) -> str:
            size = next(sizes)
            if size is None:
                raise RuntimeError("broken")
            run.target.write_bytes(b"a" * size)
            return ""

        _, app = await shipper(collect)
        for number in range(3):
            app.take(fresh(id=f"cmd_{number}"))
        results = await eventually(
            lambda: len(publisher.values(CommandResult)) == 3 and publisher.values(CommandResult)
        )
        assert [result.outcome.value for result in results] == ["failed", "failed", "done"]
        assert "at most 4000000 are sent" in results[1].message
        assert len(publisher.values(EvidencePart)) == 1

    async def test_nothing_stays_of_a_collector_that_was_killed(
        self, shipper: Any, publisher: Any, eventually: Eventually
    ) -> None:
        runs: list[Run] = []

        async def collect(run: Run) -> str:
            run.target.with_name(f".{run.target.name}.part").write_bytes(b"half")
            runs.append(run)
            return "the collector had not ended"

        _, app = await shipper(collect)
        app.take(fresh())
        await eventually(lambda: publisher.values(CommandResult))
        assert list(runs[0].target.parent.iterdir()) == []

    async def test_kafka_away_means_later(self, shipper: Any, publisher: Any, eventually: Eventually) -> None:
        async def collect(run: Run) -> str:
            run.target.write_bytes(b"late")
            publisher.away = True
            return ""

        _, app = await shipper(collect)
        app.take(fresh())
        await eventually(lambda: publisher.away and publisher.tries > 1)
        assert publisher.values(EvidencePart) == []
        publisher.away = False
        await eventually(lambda: publisher.values(EvidencePart))
        await eventually(lambda: publisher.values(CommandResult))

    async def test_without_a_key_nothing_is_read(self, shipper: Any, publisher: Any) -> None:
        async def collect(run: Run) -> str:
            raise AssertionError

        _, app = await shipper(collect, None)
        assert app.take(fresh()) is Answer.NO_KEY
        assert publisher.values(CommandResult) == []

    async def test_a_result_survives_the_agent(
        self, start_agent: Any, publisher: Any, agent_folder: Path, eventually: Eventually
    ) -> None:
        publisher.away = True
        agent = await start_agent()
        kafka = KafkaSettings(bootstrap="127.0.0.1:1", request_timeout_s=1.0)
        app = EvidenceApp(agent._settings, kafka, KEY, agent, publisher, SystemClock())
        assert app.take(command(expires_unix_s=1.0)) is Answer.EXPIRED
        await agent.stop()
        publisher.away = False
        await start_agent()
        (result,) = await eventually(lambda: publisher.values(CommandResult))
        assert result.outcome is CommandOutcome.EXPIRED


class TestCollector:
    async def test_the_real_one_within_its_bounds(self, tmp_path: Path) -> None:
        target = tmp_path / "node.tar.gz"
        run = Run(target, [(os.getpid(), 7)], 20.0, 2_000_000, ask=False)
        assert "--gentle" in run.arguments()
        assert await run_collector(run) == ""
        assert 0 < target.stat().st_size <= run.bytes_max
        with tarfile.open(target) as archive:
            names = archive.getnames()
        assert any(name.endswith("collect.json") for name in names)

    async def test_one_that_hangs_is_ended_with_its_children(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, eventually: Eventually
    ) -> None:
        mark = tmp_path / "child"
        script = (
            "import subprocess, sys, time, pathlib;"
            "child = subprocess.Popen(['sleep', '300']);"
            f"pathlib.Path({str(mark)!r}).write_text(str(child.pid)); time.sleep(300)"
        )
        monkeypatch.setattr(Run, "arguments", lambda self: [sys.executable, "-c", script])
        monkeypatch.setattr("paceline.agent.collecting.GRACE_S", 2.0)
        why = await run_collector(Run(tmp_path / "x", (), 1.0, 1, ask=False))
        assert "had not ended after 3 s" in why
        child = int(mark.read_text())
        await eventually(lambda: not Path(f"/proc/{child}").exists() or _is_zombie(child))

    async def test_what_it_says_is_the_reason(self, tmp_path: Path) -> None:
        run = Run(tmp_path / "absent" / "x.tar.gz", (), 5.0, 2_000_000, ask=False)
        assert "nothing written" in await run_collector(run)

    def test_without_processes_no_other_job_is_looked_at(self, tmp_path: Path) -> None:
        assert "--node-only" in Run(tmp_path / "x", (), 5.0, 1, ask=True).arguments()


def _is_zombie(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
