"""`paceline demo`: platform, agent and job; one fault; the verdict."""

import argparse
import asyncio
import json
import random
import secrets
import sys
import time
from typing import Any, Protocol

import httpx

from paceline.contracts.events import IncidentEvent
from paceline.lab.commands import REPAIRED
from paceline.lab.demo.inject import inject
from paceline.lab.demo.job import RANKS, REPAIRED_RANKS, partner_of
from paceline.lab.demo.receiver import Receipt, Receiver
from paceline.lab.demo.report import Outcome, Times, line_of
from paceline.lab.demo.scene import Scene, TrainingScene, prepare_home
from paceline.lab.demo.watch import Seen, Watch, watching
from paceline.lab.platform import api_url
from paceline.lab.processes import LabError
from paceline.runtime.kafka import KafkaUnavailable, TopicError
from paceline.runtime.runner import AppFailed
from paceline.runtime.settings import KafkaSettings, SettingsError, load_settings

WARMUP_S = 20.0
DECISION_S_MAX = 60.0
WEBHOOK_S_MAX = 20.0
POLL_S = 0.05


class Demo:
    """What happens on the scene: warm-up, fault, verdict, webhook."""

    def __init__(self, arguments: argparse.Namespace, scene: TrainingScene) -> None:
        self.outcome: Outcome | None = None
        self._fault: str = arguments.fault
        self._seed: int = secrets.randbelow(1 << 31) if arguments.seed is None else arguments.seed
        drawn = random.Random(self._seed).randrange(RANKS)
        self._rank: int = drawn if arguments.rank is None else arguments.rank
        self._warmup_s: float = WARMUP_S if arguments.warmup is None else arguments.warmup
        self._once: bool = arguments.once
        self._scene = scene
        self._receiver = Receiver()

    async def act(self) -> None:
        """Sets `outcome`; without --once it stays on until it is stopped."""
        scene = self._scene
        await self._receiver.start()
        try:
            await self._register_receiver()
            async with watching(load_settings(KafkaSettings), scene.job.job) as watch:
                first_step_s = await scene.wait_for_first_step()
                await self._warm_up(watch)
                self.outcome = await self._strike(watch, first_step_s)
                if not self._once:
                    scene.say("Ctrl-C stops everything")
                    await scene.stop.wait()
        finally:
            await self._receiver.stop()

    async def _warm_up(self, watch: Watch) -> None:
        await self._scene.let_train(self._warmup_s)
        if watch.incidents:
            raise LabError(f"an incident before any fault: {line_of(watch.incidents[0].value)}")
        job = self._scene.job
        self._scene.say(f"healthy   {job.steps()} steps, loss {job.loss():.3f}")

    async def _strike(self, watch: Watch, first_step_s: float) -> Outcome:
        scene = self._scene
        partner = partner_of(self._rank)
        stall_ns = await inject(scene.job.page, self._fault, self._rank, partner, RANKS, asyncio.sleep)
        scene.say(f"fault     {self._fault} in rank {self._rank} (seed {self._seed})")
        decision = await watch.wait_for_decision(DECISION_S_MAX)
        if decision is None:
            scene.say(f"no verdict within {DECISION_S_MAX:g} s of the fault; see {scene.job.logs.parent}")
        else:
            scene.say(line_of(decision.value))
        return await self._conclude(watch, decision, stall_ns, first_step_s)

    async def _conclude(
        self, watch: Watch, decision: Seen[IncidentEvent] | None, stall_ns: int, first_step_s: float
    ) -> Outcome:
        verdict = None if decision is None else watch.verdict_like(decision.value.verdict)
        receipt = None if decision is None else await self._wait_for_webhook(decision.value.id)
        return Outcome(
            fault=self._fault,
            rank=self._rank,
            seed=self._seed,
            first_step_s=first_step_s,
            event=None if decision is None else decision.value,
            times=Times(
                verdict_s=_since(stall_ns, verdict.received_ns if verdict else None),
                incident_s=_since(stall_ns, decision.received_ns if decision else None),
                webhook_s=_since(stall_ns, receipt.received_ns if receipt else None),
            ),
            webhook_id=receipt.message_id if receipt else "",
            webhook_signed=receipt.is_signed if receipt else False,
        )

    async def _register_receiver(self) -> None:
        """As a user would: an endpoint of this process, registered through the API."""
        headers = {"Authorization": f"Bearer {self._scene.platform.token}"}
        async with httpx.AsyncClient(base_url=api_url(), headers=headers, timeout=10.0) as client:
            body = {"name": "demo", "url": self._receiver.url}
            response = await client.post("/v1/webhook-endpoints", json=body)
            if response.status_code != 201:
                raise LabError(f"the API refused the webhook endpoint: {response.text[:500]}")
            self._receiver.secret = response.json()["secret"]

    async def _wait_for_webhook(self, event_id: str) -> Receipt | None:
        deadline = time.monotonic() + WEBHOOK_S_MAX
        while time.monotonic() < deadline:
            for receipt in self._receiver.receipts:
                if event_id in receipt.message_id or event_id.encode() in receipt.body:
                    return receipt
            await asyncio.sleep(POLL_S)
        return None


def _since(stall_ns: int, at_ns: int | None) -> float | None:
    return None if at_ns is None else round((at_ns - stall_ns) / 1e9, 3)


class Ending(Protocol):
    """How a demo ended."""

    @property
    def right(self) -> bool: ...

    def as_json(self) -> dict[str, Any]: ...


class Play(Protocol):
    """What `run` needs of a demo."""

    @property
    def outcome(self) -> Ending | None: ...

    async def act(self) -> None: ...


def cast(arguments: argparse.Namespace) -> tuple[Scene, Play]:
    """Scene, and what happens on it. LabError for a rank that the job has not."""
    repairs = arguments.fault in REPAIRED
    ranks = REPAIRED_RANKS if repairs else RANKS
    if arguments.rank is not None and not 0 <= arguments.rank < ranks:
        raise LabError(f"--rank {arguments.rank}: expected 0 to {ranks - 1}")
    if not repairs and arguments.mode != "observe":
        names = " or ".join(REPAIRED)
        raise LabError(f"--mode {arguments.mode}: expected --fault {names}, whose job has a standby")
    home = prepare_home(arguments.home)
    if repairs:
        from paceline.lab.demo.repair import RepairDemo
        from paceline.lab.repair.crew import Crew

        crew = Crew(home, ranks=ranks)
        stage = Scene(home, crew, port=arguments.port, quiet=arguments.json)
        return stage, RepairDemo(arguments, stage, crew)
    scene = TrainingScene(home, port=arguments.port, quiet=arguments.json)
    return scene, Demo(arguments, scene)


def run(arguments: argparse.Namespace) -> int:
    """Exit status of the command; nothing that it started is left when it returns."""
    scene: Scene | None = None
    try:
        scene, play = cast(arguments)
        scene.launch()
        asyncio.run(scene.run(play.act))
    except (LabError, SettingsError, AppFailed, KafkaUnavailable, TopicError, httpx.HTTPError) as error:
        sys.stderr.write(f"paceline demo: {error}\n")
        return 1
    except KeyboardInterrupt:
        return 130
    finally:
        if scene is not None:
            scene.close()
    outcome = play.outcome
    if arguments.json and outcome is not None:
        sys.stdout.write(json.dumps(outcome.as_json()) + "\n")
    if outcome is not None and outcome.right:
        return 0
    is_unrepaired = outcome is not None and arguments.fault in REPAIRED
    return 1 if arguments.once or is_unrepaired else 0
