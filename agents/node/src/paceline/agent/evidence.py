"""Obeys commands: ships what this node shows when an incident asks for it, before anything is killed, and
sets the detail of probes.

Beside the agent, not inside: it reads commands, runs the collector and sends the archive in parts, one
at a time. It never crashes the agent and never waits in the sampling task. One command at a time.
"""

import asyncio
import base64
import contextlib
import hashlib
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from paceline.agent.app import AgentApp
from paceline.agent.aside import Aside
from paceline.agent.collecting import Answer, Load, Run, bounded, decide_command, run_collector
from paceline.agent.delivery import Event, Publisher, PublishError, PublishRejected
from paceline.agent.detail_command import set_detail
from paceline.agent.kafka_publisher import KafkaPublisher
from paceline.agent.process import read_environment
from paceline.agent.ras import RasChoice, ask_ras, choose_address, choose_ras
from paceline.agent.settings import AgentSettings
from paceline.agent.supervisors import ORDER_KINDS
from paceline.contracts.commands import Command, CommandKind, CommandOutcome, CommandResult
from paceline.contracts.events import EventType
from paceline.contracts.evidence import PART_BYTES_MAX, EvidencePart, parts_of
from paceline.contracts.ids import derived_id
from paceline.contracts.topics import COMMAND_RESULTS, COMMANDS, EVIDENCE
from paceline.runtime.app import App, BackgroundTasks
from paceline.runtime.clock import Clock
from paceline.runtime.cloud_events import decode_event
from paceline.runtime.consumer import Consumer
from paceline.runtime.logging import get_logger
from paceline.runtime.metrics import count
from paceline.runtime.options import ConsumerOptions, Start
from paceline.runtime.record import BadRecord, Record
from paceline.runtime.session import Assignment
from paceline.runtime.settings import KafkaSettings

WAITING_MAX = 4
KNOWN_MAX = 256
LOOK_BACK_S = 120.0  # commands of the time in which an agent was restarted
READ_S = 2.0
SEND_S_MAX = 120.0  # behind the command's expiry: late evidence is evidence
PART_S_MAX = 15.0
RETRY_S = 1.0
HOUR_S = 3600.0
Collect = Callable[[Run], Awaitable[str]]
log = get_logger(__name__)


@dataclass(frozen=True)
class _Asked:
    path: Path | None
    words: str


class EvidenceApp:
    """An app of its own. `collect` writes the archive of a run and returns why it could not."""

    name = "agent-evidence"

    def __init__(
        self,
        settings: AgentSettings,
        kafka: KafkaSettings,
        key: bytes | None,
        agent: AgentApp,
        publisher: Publisher,
        clock: Clock,
        collect: Collect = run_collector,
    ) -> None:
        self.answers: Counter[str] = Counter()
        self._settings = settings
        self._key = key
        self._agent = agent
        self._publisher = publisher
        self._clock = clock
        self._collect = collect
        self._folder = settings.state_dir / "evidence"
        self._queue: asyncio.Queue[Command] = asyncio.Queue(WAITING_MAX)
        self._known: deque[str] = deque(maxlen=KNOWN_MAX)
        self._began_s: deque[float] = deque(maxlen=settings.evidence_per_hour_max)
        self._tasks = BackgroundTasks()
        # Every agent reads all commands: they are few, and no agent is in another's group.
        self._consumer = Consumer(
            kafka, [COMMANDS], None, self._handle, producer=None, name="agent-commands",
            options=ConsumerOptions(start=Start.LATEST, fetch_wait_s_max=2.0),
            on_assigned=self._look_back, clock=clock,
        )  # fmt: skip

    async def start(self) -> None:
        """Begin in the background; never fails, never waits for Kafka."""
        self._clear()  # of an agent that was killed
        if self._key is None:
            log.info("no_command_key", consequence="this node obeys no command")
            return
        await self._consumer.start()
        self._tasks.spawn("agent-evidence", self._work())
        if self._settings.lease_s > 0:
            self._tasks.spawn("agent-leases", self._renew_leases())

    async def stop(self) -> None:
        await self._consumer.stop()
        await self._tasks.cancel()

    # ------------------------------------------------------------------ commands

    async def _handle(self, records: Sequence[Record]) -> Sequence[BadRecord]:
        for record in records:
            if record.key_text != self._settings.node:
                continue
            try:
                _, command = decode_event(Command, record.headers, record.value)
            except ValueError as error:
                self._count("unreadable")
                log.warning("command_unreadable", error=str(error)[:300])
                continue
            self.take(command)
        return ()

    def take(self, command: Command) -> Answer:
        """Queue the command, or say why not; detail is set at once."""
        if command.kind is CommandKind.SET_DETAIL:
            return self._take_detail(command)
        if command.kind in ORDER_KINDS:
            return self._take_order(command)
        now_s = self._clock.monotonic_ns() / 1e9
        last_hour = sum(now_s - began_s < HOUR_S for began_s in self._began_s)
        load = Load(
            self._known, self._queue.qsize(), WAITING_MAX, last_hour, self._settings.evidence_per_hour_max
        )
        answer = decide_command(command, self._settings.node, self._key, self._clock.unix_s(), load)
        self._count(answer.value)
        if answer is Answer.ACCEPT:
            self._known.append(command.id)
            self._began_s.append(now_s)
            self._queue.put_nowait(command)
        else:
            self._decline(command, answer, "not collected")
        return answer

    def _take_detail(self, command: Command) -> Answer:
        answer, message = set_detail(
            command, self._agent, self._settings.node, self._key, self._clock, self._known
        )
        self._count(answer.value)
        if answer is Answer.ACCEPT:
            self._known.append(command.id)
            self._tell(command, CommandOutcome.DONE, message)
        else:
            self._decline(command, answer, message)
        return answer

    def _take_order(self, command: Command) -> Answer:
        """For supervisors; each of them answers for itself."""
        answer = self._agent.supervisors.take(command, self._key)
        self._count(answer.value)
        if answer is not Answer.ACCEPT:
            self._decline(command, answer, "not handed on")
        return answer

    def _decline(self, command: Command, answer: Answer, message: str) -> None:
        if answer.is_told:
            outcome = CommandOutcome.EXPIRED if answer is Answer.EXPIRED else CommandOutcome.REFUSED
            self._tell(command, outcome, f"{message}: {answer.value}")
        if answer is Answer.UNSIGNED:
            log.warning("command_unsigned", id=command.id[:80], job=command.job[:80])

    def _count(self, answer: str) -> None:
        self.answers[answer] += 1
        if answer not in (Answer.ACCEPT.value, Answer.OTHER_NODE.value):
            count("paceline.agent.dropped", reason=f"command_{answer}")

    async def _look_back(self, assignment: Assignment) -> None:
        offsets = await assignment.offsets_at(self._clock.unix_s() - LOOK_BACK_S)
        for partition, offset in offsets.items():
            assignment.seek(partition, offset)

    async def _renew_leases(self) -> None:
        """For as long as commands can reach this node."""
        while True:
            if self._consumer.readiness().ready:
                self._agent.supervisors.lease()
            await self._clock.sleep(self._settings.lease_s / 3)

    # ------------------------------------------------------------------ work

    async def _work(self) -> None:
        while True:
            command = await self._queue.get()
            try:
                outcome, message = await self._obey(command)
            except Exception as error:  # whatever is wrong with one command, the agent goes on
                log.exception("evidence_failed", command=command.id)
                outcome, message = CommandOutcome.FAILED, f"{type(error).__name__}: {error}"
            self._tell(command, outcome, message)

    async def _obey(self, command: Command) -> tuple[CommandOutcome, str]:
        target = self._folder / f"{derived_id('evd', command.id)}.tar.gz"
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        run = self._plan(command, target)
        began_s = self._clock.monotonic_ns() / 1e9
        try:
            ras = await self._ask_ras(command, run)
            run = replace(run, files=[path for path in (ras.path,) if path])
            why = await self._collect(run)
            if why:
                return CommandOutcome.FAILED, why
            size = target.stat().st_size
            if not 0 < size <= run.bytes_max:
                return (
                    CommandOutcome.FAILED,
                    f"the archive has {size} bytes, at most {run.bytes_max} are sent",
                )
            took_s = self._clock.monotonic_ns() / 1e9 - began_s
            why = await self._send(command, target, size)
        finally:
            self._clear()  # the archive, and what a collector that was killed had of it
        if why:
            return CommandOutcome.FAILED, why
        words = f"{size} bytes, training processes: {len(run.processes)}, {took_s:.1f} s"
        return CommandOutcome.DONE, words + (f", RAS: {ras.words}" if ras.words else "")

    async def _ask_ras(self, command: Command, run: Run) -> "_Asked":
        """Its answer as a file beside the archive, or a word why there is none."""
        key = (command.job, command.attempt)
        job = self._agent.roster.jobs.get(key)
        versions = [hello.versions.get("nccl", "") for hello in job.hellos.values()] if job else []
        version = next(filter(None, versions), self._settings.ras_nccl_version)
        choice = choose_ras(self._settings.ras, run.ask and bool(run.processes), version)
        if not choice.asks:
            return _Asked(None, "" if choice is RasChoice.OFF else choice.value)
        pids = [pid for pid, _ in run.processes]
        # A process that cannot be stopped or seen may hold whoever reads its environment.
        environment = await Aside(lambda: read_environment(self._settings.root, pids[0])).ask(READ_S) or {}
        host, port = choose_address(environment, self._settings.ras_address)
        # In a container the job knows itself by other pids: then whose answer it is cannot be told.
        inner = {hello.pid for hello in job.hellos.values()} if job else set()
        answer = await ask_ras(host, port, choice, {*pids, *inner})
        if not answer.is_evidence:
            return _Asked(None, answer.status.value)
        form = answer.form.value if answer.form is RasChoice.JSON else "txt"
        path = self._folder / f"nccl-ras.{form}"
        await asyncio.to_thread(path.write_bytes, answer.content)
        return _Asked(path, answer.status.value)

    def _clear(self) -> None:
        """Nothing stays: one command at a time works in the folder."""
        for left in self._folder.glob("*"):
            with contextlib.suppress(OSError):
                left.unlink(missing_ok=True)

    def _plan(self, command: Command, target: Path) -> Run:
        key = (command.job, command.attempt)
        living = [(each.pid, each.rank) for each in self._agent.roster.living(key) if each.pid]
        arguments = command.arguments
        return Run(
            target=target,
            processes=living,
            total_s=bounded(arguments.get("collect_s"), self._settings.evidence_s_max),
            bytes_max=int(bounded(arguments.get("bytes_max"), self._settings.evidence_bytes_max)),
            ask=arguments.get("ask") != "no",
        )

    async def _send(self, command: Command, path: Path, size: int) -> str:
        """Part by part, each acknowledged; empty once all are there, else why not."""
        digest = await asyncio.to_thread(_digest, path)
        collected_unix_s = self._clock.unix_s()
        incident = command.arguments.get("incident", "")
        for part in range(parts_of(size)):
            data = await asyncio.to_thread(_read_part, path, part)
            value = EvidencePart(
                id=derived_id("evp", command.id, digest, part), command=command.id, incident=incident,
                job=command.job, attempt=command.attempt, node=self._settings.node, part=part,
                parts=parts_of(size), bytes_count=size, sha256=digest,
                data=base64.b64encode(data).decode(), collected_unix_s=collected_unix_s,
            )  # fmt: skip
            event = Event(EVIDENCE, command.id, EventType.EVIDENCE, value.id, value)
            while not await self._sent(event):
                if self._clock.unix_s() > command.expires_unix_s + SEND_S_MAX:
                    return f"part {part + 1} of {parts_of(size)} could not be sent in time"
                await self._clock.sleep(RETRY_S)
        return ""

    async def _sent(self, event: Event) -> bool:
        try:
            async with asyncio.timeout(PART_S_MAX):
                await self._publisher.publish([event])
        except (PublishError, TimeoutError):
            return False
        except PublishRejected as error:
            raise ValueError(f"Kafka refuses a part: {error}") from None
        return True

    def _tell(self, command: Command, outcome: CommandOutcome, message: str) -> None:
        log.info("command_done", id=command.id, job=command.job, outcome=outcome.value, message=message)
        at_unix_s = self._clock.unix_s()
        result = CommandResult(
            command=command.id, node=self._settings.node, job=command.job, attempt=command.attempt,
            generation=command.generation, outcome=outcome, message=message[:1000], at_unix_s=at_unix_s,
        )  # fmt: skip
        event_id = derived_id("res", command.id, outcome.value, message)
        self._agent.push_event(
            Event(COMMAND_RESULTS, command.job, EventType.COMMAND_RESULT, event_id, result)
        )


def make_agent(settings: AgentSettings, kafka: KafkaSettings, key: bytes | None, clock: Clock) -> list[App]:
    """The agent and what ships evidence beside it, in the order of their start; without a command key the
    second does nothing."""
    publisher = KafkaPublisher(kafka, f"agent-{settings.node}", clock)
    agent = AgentApp(settings, clock, publisher)
    return [agent, EvidenceApp(settings, kafka, key, agent, publisher, clock)]


def _digest(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _read_part(path: Path, part: int) -> bytes:
    with path.open("rb") as stream:
        stream.seek(part * PART_BYTES_MAX)
        return stream.read(PART_BYTES_MAX)
