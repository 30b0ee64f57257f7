"""Healthy training with everything that looks like a hang and is none; then a pause that is one.

    python -m paceline.lab.demo.soak --minutes 10

In order: a first step that compiles, a declared checkpoint of one rank, a declared evaluation of all
ranks, healthy training until the time is over: no incident may exist. Then one rank pauses without a
word: one incident must open, and resolve by itself. Exit status 0 only then; the last line is JSON.
"""

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

from paceline.contracts.events import EventType
from paceline.lab.demo.faults import Command, Word
from paceline.lab.demo.job import RANKS
from paceline.lab.demo.report import line_of
from paceline.lab.demo.scene import TrainingScene, prepare_home
from paceline.lab.demo.watch import Watch, watching
from paceline.lab.processes import LabError
from paceline.runtime.kafka import KafkaUnavailable, TopicError
from paceline.runtime.runner import AppFailed
from paceline.runtime.settings import KafkaSettings, SettingsError, load_settings

COMPILE_S = 40.0
PAUSE_S = 40.0
SETTLE_S = 20.0
RESOLVE_S_MAX = 60.0
POLL_S = 0.1


class Soak:
    """`result` holds what was seen."""

    def __init__(self, scene: TrainingScene, minutes: float, rank: int) -> None:
        self.result: dict[str, object] = {}
        self._scene = scene
        self._seconds = minutes * 60
        self._rank = rank

    async def act(self) -> None:
        scene = self._scene
        async with watching(load_settings(KafkaSettings), scene.job.job) as watch:
            await scene.wait_for_first_step()
            began = time.monotonic()
            await scene.let_train(SETTLE_S)
            await self._occupy([self._rank], Command.CHECKPOINT)
            await scene.let_train(SETTLE_S)
            await self._occupy(list(range(RANKS)), Command.EVALUATE)
            await scene.let_train(max(SETTLE_S, self._seconds - (time.monotonic() - began)))
            scene.say(f"healthy   {scene.job.steps()} steps, {len(watch.incidents)} incident events")
            self.result = {
                "healthy_s": round(time.monotonic() - began, 1),
                "steps": scene.job.steps(),
                "incidents_while_healthy": [line_of(seen.value) for seen in watch.incidents],
            }
            watch.incidents.clear()
            await self._pause(watch)

    async def _occupy(self, ranks: list[int], command: Command) -> None:
        """`command` for PAUSE_S in `ranks`, until the job steps again."""
        page, before = self._scene.job.page, self._scene.job.steps()
        for rank in ranks:
            page.set(rank, Word.DELAY_NS, int(PAUSE_S * 1e9))
            page.set(rank, Word.COMMAND, command)
        self._scene.say(f"{command.name.lower():9} {PAUSE_S:g} s in {len(ranks)} rank(s)")
        await self._until(lambda: self._scene.job.steps() > before + 2, PAUSE_S + 30)

    async def _pause(self, watch: Watch) -> None:
        began = time.monotonic()
        await self._occupy([self._rank], Command.PAUSE)
        await self._until(lambda: _resolved(watch), RESOLVE_S_MAX)
        events = [seen.value for seen in watch.incidents]
        for event in events:
            self._scene.say(f"{event.type.short:20} {line_of(event)}")
        opened = [event for event in events if event.type is EventType.INCIDENT_OPENED]
        self.result["paused_rank"] = self._rank
        self.result["opened"] = [line_of(event) for event in opened]
        self.result["resolved_s"] = round(time.monotonic() - began, 1) if _resolved(watch) else None

    async def _until(self, condition: Callable[[], bool], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not condition() and time.monotonic() < deadline:
            self._scene.job.check()
            await asyncio.sleep(POLL_S)

    @property
    def right(self) -> bool:
        result = self.result
        opened = result.get("opened")
        return (
            result.get("incidents_while_healthy") == []
            and isinstance(opened, list)
            and len(opened) == 1
            and result.get("resolved_s") is not None
        )


def _resolved(watch: Watch) -> bool:
    return any(seen.value.type is EventType.INCIDENT_RESOLVED for seen in watch.incidents)


def main(argv: list[str] | None = None) -> int:
    """Exit status 0 where nothing was opened while healthy, and one incident opened and resolved."""
    parser = argparse.ArgumentParser(prog="paceline.lab.demo.soak", description=__doc__)
    parser.add_argument("--home", type=Path)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--rank", type=int, default=3, choices=range(RANKS))
    arguments = parser.parse_args(argv)
    scene: TrainingScene | None = None
    try:
        scene = TrainingScene(prepare_home(arguments.home), port=0, quiet=True)
        scene.job.compile_s = COMPILE_S
        scene.launch()
        soak = Soak(scene, arguments.minutes, arguments.rank)
        asyncio.run(scene.run(soak.act))
    except (LabError, SettingsError, AppFailed, KafkaUnavailable, TopicError) as error:
        sys.stderr.write(f"soak: {error}\n")
        return 1
    finally:
        if scene is not None:
            scene.close()
    sys.stdout.write(json.dumps({"right": soak.right, **soak.result}) + "\n")
    return 0 if soak.right else 1


if __name__ == "__main__":
    sys.exit(main())
