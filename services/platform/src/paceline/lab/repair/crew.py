"""Jobs under supervisors beside one node agent, in place of the eight ranks of the other demos."""

import asyncio
import secrets
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from paceline.contracts.agent_socket import SOCKET_VARIABLE
from paceline.lab.demo.job import DemoAgent
from paceline.lab.processes import LabError
from paceline.lab.repair.registry import standbys_ready
from paceline.store import Database
from paceline.trainer.testing import Fault, RepairJob
from paceline.trainer.testing.job import Nursery, Outcome, assert_equal

READY_S_MAX = 90.0
POLL_S = 0.05
ATTEMPT = "a1"


class Crew:
    """One agent, and supervisors as forks of one process that has imported torch. `stop` ends everything."""

    def __init__(self, home: Path, *, ranks: int = 4, standbys: int = 1) -> None:
        self.ranks, self.standbys = ranks, standbys
        self.agent = DemoAgent(home / "job")
        self._nursery: Nursery | None = None
        self._jobs: list[RepairJob] = []

    def launch_ranks(self) -> None:
        """torch is imported meanwhile; the ranks follow with `start`."""
        self._nursery = Nursery()

    def launch_agent(self) -> None:
        self.agent.launch()

    def stop(self) -> None:
        """The ranks first, so that the agent still sees their end."""
        for job in self._jobs:
            job.close()
        self._jobs.clear()
        if self._nursery is not None:
            self._nursery.close()
            self._nursery = None
        self.agent.stop()

    async def start(
        self, store: Database, command: Sequence[str], faults: Sequence[Fault], name: str
    ) -> RepairJob:
        """A job whose standbys are warm and whose ranks wait for `open_gate`; LabError where it does not
        come so far."""
        job = RepairJob(
            command, self.ranks, self.standbys, faults, controller=False, nursery=self._nursery,
            environment=job_environment(self.agent.socket, f"{name}-{secrets.token_hex(4)}"),
        )  # fmt: skip
        self._jobs.append(job)
        await asyncio.to_thread(job.start)
        until = time.monotonic() + READY_S_MAX
        while await standbys_ready(store, job.name, self.ranks + self.standbys) < self.standbys:
            if time.monotonic() > until or all_ended(job):
                raise LabError(f"no warm standby within {READY_S_MAX:g} s:\n{job.output()}")
            if not self.agent.is_running:
                raise LabError(f"the agent ended, its log says:\n{self.agent.log_tail()}")
            await asyncio.sleep(POLL_S)
        return job

    def close(self, job: RepairJob) -> None:
        """Nothing of the job is left; the others go on."""
        job.close()
        self._jobs.remove(job)

    async def uninterrupted(self, command: Sequence[str]) -> dict[int, Outcome]:
        """What the ranks record where nothing happens: no agent, no standby, no fault."""
        job = RepairJob(command, self.ranks, nursery=self._nursery)
        self._jobs.append(job)
        try:
            await asyncio.to_thread(job.start)
            statuses = await asyncio.to_thread(job.await_end)
            if any(statuses):
                raise LabError(f"the uninterrupted run ended with {statuses}:\n{job.output()}")
            return job.outcomes()
        finally:
            self.close(job)


def job_environment(socket: Path, name: str) -> Mapping[str, str]:
    """What makes a `RepairJob` speak with the agent at `socket`."""
    return {
        SOCKET_VARIABLE: str(socket),
        "PACELINE_ATTEMPT": ATTEMPT,
        "PACELINE_JOB_ID": name,
        "GLOO_SOCKET_IFNAME": "lo",  # host names of a fresh machine often resolve to nothing usable
    }


def all_ended(job: RepairJob) -> bool:
    return all(process.poll() is not None for process in job.processes)


async def await_fault(job: RepairJob, timeout_s: float) -> float:
    """Unix seconds of the first fault that was injected; LabError where none was."""
    until = time.monotonic() + timeout_s
    while not (times := job.fault_times()):
        if time.monotonic() > until or all_ended(job):
            raise LabError(f"no fault within {timeout_s:g} s:\n{job.output()}")
        await asyncio.sleep(POLL_S)
    return times[0] + time.time() - time.monotonic()  # the injector writes the monotonic clock


async def await_end(job: RepairJob, timeout_s: float) -> bool:
    """Whether every process of the job has ended in time."""
    until = time.monotonic() + timeout_s
    while not all_ended(job):
        if time.monotonic() > until:
            return False
        await asyncio.sleep(POLL_S)
    return True


def difference(job: RepairJob, whole: Mapping[int, Outcome], replayed_max: int = 1) -> str:
    """Empty where losses, samples and final states of the job are those of `whole` to the bit, and at most
    `replayed_max` steps were run again; else what differs."""
    try:
        assert_equal(job.outcomes(), whole, replayed_max)
    except (AssertionError, OSError, ValueError) as error:
        return str(error) or "different"
    return ""
