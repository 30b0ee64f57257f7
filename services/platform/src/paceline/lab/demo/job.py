"""The training job and the node agent of the demo, as child processes."""

import os
import sys
from pathlib import Path

from paceline.contracts.agent_socket import SOCKET_VARIABLE
from paceline.lab.demo.faults import FaultPage, Word
from paceline.lab.demo.inject import page_of
from paceline.lab.paths import short_directory
from paceline.lab.processes import Child, LabError

DP, PP, TP = 2, 2, 2  # as in `train`, which imports torch and is therefore not imported here
RANKS = DP * PP * TP
REPAIRED_RANKS = 4  # of the job that is repaired; a standby comes to them
JOB_STOP_S = 6.0
AGENT_STOP_S = 8.0


class DemoAgent:
    """`paceline agent` as a child process; its files are below `folder`, its socket has a short path."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        sockets = short_directory(folder, "run")
        sockets.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.socket = sockets / "agent.sock"
        self._state = folder / "agent"
        self._child = Child("agent", folder)

    @property
    def is_running(self) -> bool:
        return self._child.is_running

    def launch(self) -> None:
        """On the main thread, once Kafka's address is in the environment."""
        environment = {
            **os.environ,
            SOCKET_VARIABLE: str(self.socket),
            "PACELINE_AGENT_STATE_DIR": str(self._state),
        }
        self._child.start([sys.executable, "-m", "paceline.lab.demo.agent"], environment=environment)

    def stop(self) -> None:
        self._child.stop(timeout_s=AGENT_STOP_S)

    def log_tail(self) -> str:
        return self._child.log_tail()


class DemoJob:
    """Eight ranks and one agent below `home`; the job's id is `job`."""

    def __init__(self, home: Path, job: str, *, step_s: float | None = None, steps: int = 0) -> None:
        self.job = job
        self._home = home / "job"
        self._home.mkdir(parents=True, exist_ok=True)
        for log in self._home.glob("*.log"):
            log.unlink()
        self.page: FaultPage = page_of(self._home, RANKS)
        self._ranks = Child("ranks", self._home)
        self._agent = DemoAgent(self._home)
        self._step_s, self._steps = step_s, steps
        self.compile_s = 0.0  # how long the first step takes longer; set before `launch_ranks`

    @property
    def logs(self) -> Path:
        return self._home

    @property
    def launcher_pid(self) -> int | None:
        return self._ranks.pid

    def ranks_status(self) -> int | None:
        """Exit status of the job, None while it runs."""
        return self._ranks.exit_status

    def launch_ranks(self) -> None:
        """On the main thread; the ranks find the agent when it comes."""
        environment = {
            **os.environ,
            SOCKET_VARIABLE: str(self._agent.socket),
            "PACELINE": "0",  # the launcher is no rank; each rank attaches by itself
            "PACELINE_JOB_ID": self.job,
            "PACELINE_DEMO_FAULTS": str(self._home / "faults"),
            "PACELINE_DEMO_STEPS": str(self._steps),
            "PACELINE_DEMO_COMPILE_S": str(self.compile_s),
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo",  # host names of a fresh machine often resolve to nothing usable
        }
        if self._step_s is not None:
            environment["PACELINE_DEMO_STEP_S"] = str(self._step_s)
        command = [sys.executable, "-m", "paceline.lab.demo.launch", str(self._home)]
        self._ranks.start(command, environment=environment)

    def launch_agent(self) -> None:
        """On the main thread, once Kafka's address is in the environment."""
        self._agent.launch()

    def check(self) -> None:
        """LabError with the log where a process of the job has ended."""
        if not self._ranks.is_running:
            raise LabError(f"the training job ended ({self._ranks.exit_status}):\n{self._tail()}")
        if not self._agent.is_running:
            raise LabError(f"the agent ended, its log says:\n{self._agent.log_tail()}")

    def steps(self) -> int:
        """Steps that every rank has completed."""
        return min(self.page.get(rank, Word.STEPS) for rank in range(RANKS))

    def first_step_ns(self) -> int:
        """CLOCK_MONOTONIC when the last rank had completed its first step."""
        return max(self.page.get(rank, Word.FIRST_NS) for rank in range(RANKS))

    def loss(self) -> float:
        return self.page.get(0, Word.LOSS_MICRO) / 1e6

    def stop(self) -> None:
        """The ranks first, so that the agent still sees their end."""
        self._ranks.stop(timeout_s=JOB_STOP_S)
        self._agent.stop()

    def _tail(self) -> str:
        logs = [self._ranks.log_path, *sorted(self._home.glob("rank[0-9].log"))]
        texts = [log.read_text(errors="replace").strip() for log in logs if log.exists()]
        return next((text[-1500:] for text in texts if text), f"nothing in {self._home}")


def partner_of(rank: int) -> int:
    """The other member of the rank's tensor group."""
    return rank ^ 1
