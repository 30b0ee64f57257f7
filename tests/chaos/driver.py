"""Drives one fake job from a test."""

import asyncio
import json
import os
import signal
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).with_name("fake_job.py")
ANSWER_S_MAX = 30.0
POLL_S = 0.03
TRAINING_STEPS = 8  # beyond the warm-up of a job that counts steps


@dataclass(frozen=True)
class RankState:
    pid: int
    steps: int
    place: str  # running, held, inside, ended
    exit: int | None


class FakeJob:
    """One attempt of one job on one node."""

    def __init__(self, process: Process, job: str, attempt: str, world: int) -> None:
        self.job = job
        self.attempt = attempt
        self.world = world
        self._process = process
        self._lock = asyncio.Lock()
        self.pids: list[int] = []

    @classmethod
    async def launch(
        cls,
        sockets: Sequence[Path],
        job: str,
        *,
        attempt: str = "a1",
        world: int = 4,
        tp: int = 2,
        gap_ms: float = 25.0,
    ) -> "FakeJob":
        """Fork the ranks; returns once all of them have trained for some steps."""
        process = await asyncio.create_subprocess_exec(
            sys.executable, str(SCRIPT), *(f"--socket={path}" for path in sockets), "--job", job,
            "--attempt", attempt, "--world", str(world), "--tp", str(tp), "--gap-ms", str(gap_ms),
            stdin=PIPE, stdout=PIPE,
        )  # fmt: skip
        started = cls(process, job, attempt, world)
        started.pids = [state.pid for state in await started._read()]
        await started.reach(TRAINING_STEPS)
        return started

    async def status(self) -> list[RankState]:
        async with self._lock:
            self._write({"do": "status"})
            return await self._read()

    def tell(self, rank: int, do: str, **more: Any) -> None:
        """A command for one rank, or for all with rank -1."""
        self._write({"rank": rank, "do": do, **more})

    def kill(self, rank: int, number: signal.Signals) -> None:
        """A signal for one rank, or for all with rank -1."""
        for pid in self.pids if rank < 0 else [self.pids[rank]]:
            os.kill(pid, number)

    async def place(self, rank: int, place: str) -> None:
        """Until `rank` is there."""
        await self._until(lambda ranks: ranks[rank].place == place, f"rank {rank} {place}")

    async def reach(self, steps: int) -> None:
        """Until every rank has done `steps` steps."""
        await self._until(lambda ranks: min(rank.steps for rank in ranks) >= steps, f"{steps} steps")

    async def progress(self, steps: int = TRAINING_STEPS) -> None:
        """Until every rank has done `steps` more than the slowest has now."""
        await self.reach(min(rank.steps for rank in await self.status()) + steps)

    async def stuck(self, rank: int, do: str, group: str = "world", **more: Any) -> None:
        """Give the order and wait until the rank obeys."""
        self.tell(rank, do, group=group, **more)
        await self.place(rank, "held" if do == "hold" else "inside")

    async def exits(self) -> list[int]:
        """Exit statuses, once all ranks have ended."""
        await self._until(lambda ranks: all(rank.exit is not None for rank in ranks), "all ended")
        return [rank.exit if rank.exit is not None else 0 for rank in await self.status()]

    async def close(self) -> None:
        """End in order what still lives, whatever state it is in; then the launcher."""
        if self._process.returncode is None:
            for state in await self.status():
                if state.exit is None:
                    os.kill(state.pid, signal.SIGCONT)
            self.tell(-1, "leave")
            await self.exits()
        await self.abandon()

    async def abandon(self) -> None:
        """The launcher kills what is left and ends."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        await asyncio.wait_for(self._process.wait(), ANSWER_S_MAX)

    async def _until(self, condition: Any, what: str) -> None:
        deadline = time.monotonic() + ANSWER_S_MAX
        while not condition(ranks := await self.status()):
            assert time.monotonic() < deadline, f"{self.job}: not {what} within {ANSWER_S_MAX:g} s: {ranks}"
            await asyncio.sleep(POLL_S)

    def _write(self, command: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command).encode() + b"\n")

    async def _read(self) -> list[RankState]:
        assert self._process.stdout is not None
        line = await asyncio.wait_for(self._process.stdout.readline(), ANSWER_S_MAX)
        assert line, f"the launcher of {self.job} has ended"
        return [RankState(**rank) for rank in json.loads(line)]
