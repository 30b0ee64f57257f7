"""`paceline demo`: platform, agent and job; one fault; the verdict."""

import argparse
import asyncio
import json
import logging
import os
import random
import secrets
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import httpx

from paceline.contracts.events import IncidentEvent
from paceline.lab.demo.inject import inject
from paceline.lab.demo.job import RANKS, DemoJob, partner_of
from paceline.lab.demo.receiver import Receipt, Receiver
from paceline.lab.demo.report import Outcome, Times, as_json, line_of
from paceline.lab.demo.watch import Seen, Watch, watching
from paceline.lab.paths import HOME_VARIABLE, home_directory
from paceline.lab.platform import API_PORT, LocalPlatform, api_url, free_port
from paceline.lab.processes import LabError, own_age_s
from paceline.runtime.app import App
from paceline.runtime.kafka import KafkaUnavailable, TopicError
from paceline.runtime.logging import configure_logging
from paceline.runtime.runner import AppFailed, run_apps
from paceline.runtime.settings import (
    KafkaSettings,
    LogSettings,
    SettingsError,
    TelemetrySettings,
    load_settings,
)
from paceline.runtime.telemetry import configure_telemetry

FIRST_STEP_S_MAX = 120.0
DECISION_S_MAX = 60.0
WEBHOOK_S_MAX = 20.0
POLL_S = 0.1
JOB = "demo"


class Demo:
    """One run. Everything it starts is stopped by `close`, in any state."""

    def __init__(self, arguments: argparse.Namespace, home: Path) -> None:
        self.fault: str = arguments.fault
        self.seed: int = secrets.randbelow(1 << 31) if arguments.seed is None else arguments.seed
        drawn = random.Random(self.seed).randrange(RANKS)
        self.rank: int = drawn if arguments.rank is None else arguments.rank
        if not 0 <= self.rank < RANKS:
            raise LabError(f"--rank {self.rank}: expected 0 to {RANKS - 1}")
        self._warmup_s: float = arguments.warmup
        self._once: bool = arguments.once
        self._quiet: bool = arguments.json
        self._home = home
        self._started_ns = time.monotonic_ns() - int(own_age_s() * 1e9)
        self._stop = asyncio.Event()
        self._receiver = Receiver()
        port = free_port(API_PORT) if arguments.port is None else arguments.port or free_port(0)
        self.platform = LocalPlatform(home, port=port, durable=False)
        # Webhooks go to no loopback address by default; the demo's own receiver is there.
        self.platform.export("PACELINE_NOTIFIER_ALLOWED_NETWORKS", "127.0.0.1/32")
        self.job = DemoJob(home, f"{JOB}-{secrets.token_hex(4)}")

    def launch(self) -> None:
        """Everything that takes seconds, side by side; on the main thread."""
        self.job.launch_ranks()
        self.platform.launch(fresh=True)
        self.job.launch_agent()

    def close(self) -> None:
        self.job.stop()
        self.platform.stop()

    async def run(self) -> Outcome | None:
        """None where it was stopped before there was an outcome."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._stop.set)
        await self.platform.prepare(fresh=True)
        telemetry = configure_telemetry(load_settings(TelemetrySettings), "paceline-demo")
        apps: Sequence[App] = self.platform.build()
        started = asyncio.Event()
        serving = asyncio.create_task(
            run_apps(apps, stop=self._stop, handle_signals=False, on_started=started)
        )
        try:
            return await self._play(apps, serving, started)
        finally:
            self._stop.set()
            await self._receiver.stop()
            await asyncio.gather(serving, return_exceptions=True)
            telemetry.shutdown()

    async def _play(
        self, apps: Sequence[App], serving: "asyncio.Task[None]", started: asyncio.Event
    ) -> Outcome | None:
        playing = asyncio.create_task(self._act(apps, started))
        stopping = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait({serving, playing, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if serving.done():
                serving.result()
            return playing.result() if playing.done() else None
        finally:
            for task in (playing, stopping):
                task.cancel()
            await asyncio.gather(playing, stopping, return_exceptions=True)

    async def _act(self, apps: Sequence[App], started: asyncio.Event) -> Outcome:
        await started.wait()
        await self.platform.wait_ready(apps)
        await self._register_receiver()
        async with watching(load_settings(KafkaSettings), self.job.job) as watch:
            first_step_s = await self._wait_for_first_step()
            await self._warm_up(watch)
            stall_ns = await inject(
                self.job.page, self.fault, self.rank, partner_of(self.rank), RANKS, _sleep
            )
            self._say(f"fault     {self.fault} in rank {self.rank} (seed {self.seed})")
            decision = await watch.wait_for_decision(DECISION_S_MAX)
            outcome = await self._conclude(watch, decision, stall_ns, first_step_s)
            if decision is not None:
                self._say(line_of(decision.value))
            else:
                self._say(f"no verdict within {DECISION_S_MAX:g} s of the fault")
            if not self._once:
                self._say("Ctrl-C stops everything")
                await self._stop.wait()
            return outcome

    async def _wait_for_first_step(self) -> float:
        deadline = time.monotonic() + FIRST_STEP_S_MAX
        while self.job.steps() < 1:
            self.job.check()
            if time.monotonic() > deadline:
                raise LabError(f"no step of all ranks within {FIRST_STEP_S_MAX:g} s; logs: {self.job.logs}")
            await asyncio.sleep(POLL_S)
        seconds = (self.job.first_step_ns() - self._started_ns) / 1e9
        self._say(f"job       {self.job.job}, {RANKS} ranks, first healthy step after {seconds:.1f} s")
        age_s = own_age_s()
        self._say(f"console   {self.platform.url}, up after {age_s:.1f} s, token {self.platform.token}")
        return round(seconds, 3)

    async def _warm_up(self, watch: Watch) -> None:
        deadline = time.monotonic() + self._warmup_s
        while time.monotonic() < deadline:
            self.job.check()
            await asyncio.sleep(POLL_S)
        if watch.incidents:
            raise LabError(f"an incident before any fault: {line_of(watch.incidents[0].value)}")
        self._say(f"healthy   {self.job.steps()} steps, loss {self.job.loss():.3f}")

    async def _conclude(
        self, watch: Watch, decision: "Seen[IncidentEvent] | None", stall_ns: int, first_step_s: float
    ) -> Outcome:
        verdict_ns = incident_ns = None
        receipt: Receipt | None = None
        if decision is not None:
            incident_ns = decision.received_ns
            verdict = watch.verdict_like(decision.value.verdict)
            verdict_ns = verdict.received_ns if verdict else None
            receipt = await self._wait_for_webhook(decision.value.id)
        times = Times(
            *(
                None if at_ns is None else round((at_ns - stall_ns) / 1e9, 3)
                for at_ns in (verdict_ns, incident_ns, receipt.received_ns if receipt else None)
            )
        )
        return Outcome(
            fault=self.fault,
            rank=self.rank,
            seed=self.seed,
            first_step_s=first_step_s,
            event=decision.value if decision else None,
            times=times,
            webhook_id=receipt.message_id if receipt else "",
            webhook_signed=receipt.is_signed if receipt else False,
        )

    async def _register_receiver(self) -> None:
        """As a user would: an endpoint of this process, registered through the API."""
        await self._receiver.start()
        headers = {"Authorization": f"Bearer {self.platform.token}"}
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

    def _say(self, line: str) -> None:
        stream = sys.stderr if self._quiet else sys.stdout
        stream.write(line + "\n")
        stream.flush()


async def _sleep(seconds: float) -> None:
    await asyncio.sleep(seconds)


def run(arguments: argparse.Namespace) -> int:
    """Exit status of the command; nothing that it started is left when it returns."""
    home = (Path(arguments.home).expanduser().absolute() if arguments.home else home_directory()) / "demo"
    home.mkdir(parents=True, exist_ok=True)
    os.environ[HOME_VARIABLE] = str(home)
    demo: Demo | None = None
    outcome: Outcome | None = None
    try:
        configure_logging(load_settings(LogSettings))
        _log_to(home / "platform.log")
        demo = Demo(arguments, home)
        demo.launch()
        outcome = asyncio.run(demo.run())
    except (LabError, SettingsError, AppFailed, KafkaUnavailable, TopicError, httpx.HTTPError) as error:
        sys.stderr.write(f"paceline demo: {error}\n")
        return 1
    except KeyboardInterrupt:
        return 130
    finally:
        if demo is not None:
            demo.close()
    if arguments.json and outcome is not None:
        sys.stdout.write(json.dumps(as_json(outcome)) + "\n")
    if not arguments.once:
        return 0
    return 0 if outcome is not None and outcome.right else 1


def _log_to(path: Path) -> None:
    """The services' log goes to a file: the terminal is for the one line."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, logging.StreamHandler):
            handler.setStream(path.open("w"))
