"""From SIGKILL of a random rank to the first step of the full world, phases apart, beside a whole restart.

Each run is a DDP job of `--ranks` gloo ranks with one warm standby under supervisors, led by the
controller of the testing kit; rank and phase come from the seed of the run. The figure is the time from
the moment before the signal to the moment at which the controller has heard of the first step of every
member. The restart kills all ranks, starts them again, loads the newest checkpoint and makes one step; its
figure ends with the last rank's first step. Both on the same machine in the same run. Prints one JSON
object.

    python tests/bench/recovery.py --runs 20 --restarts 5
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paceline.contracts.recovery import RecoveryPhase
from paceline.trainer.testing import Fault, RepairJob, draw_fault
from paceline.trainer.testing.job import RESULTS_VARIABLE, Nursery, assert_equal, free_port

PROGRAM = Path(__file__).parents[1] / "integration" / "trainer" / "programs" / "repaired.py"
STEPS = 14
PAUSE_S = 0.05  # of each step, as a job that computes elsewhere
RESTART_S_MAX = 120.0


def spread(values: Sequence[float]) -> dict[str, float]:
    return {
        "median": round(statistics.median(values), 4),
        "min": round(min(values), 4),
        "max": round(max(values), 4),
        "n": len(values),
    }


def one_repair(
    nursery: Nursery, fault: Fault, ranks: int, words: Sequence[str], whole: Any
) -> dict[str, Any]:
    """Times of one recovery, in seconds, and what reached the joiner, in bytes; `different` compares the
    result with the whole run's.

    Phases are those of the slowest member, with one exception: `build` is the rendezvous of the member that
    came last, so that nothing of it is waiting for others to come to the end of their step.
    """
    with RepairJob([str(PROGRAM), *words], ranks, standbys=1, faults=[fault], nursery=nursery) as job:
        job.await_end()
        (killed_s,) = job.fault_times()
        resumed = job.controller.of_kind("resumed")
        reports = [event.detail for event in job.controller.of_kind("phase_report")]
        exits = job.controller.of_kind("child_exit")
        ordered = job.controller.of_kind("recovery")
        phases: dict[str, float] = defaultdict(float)
        moved: dict[str, int] = defaultdict(int)
        met = [one.duration_ms / 1e3 for one in reports if one.phase is RecoveryPhase.RENDEZVOUS]
        for report in reports:
            name = report.phase.value
            phases[name] = max(phases[name], report.duration_ms / 1e3)
            moved[name] = max(moved[name], report.bytes)
        phases["build"] = min(met)
        phases["detect"] = exits[0].at_s - killed_s
        phases["order"] = ordered[0].at_s - exits[0].at_s
        outcomes = job.outcomes()
        try:
            assert_equal(outcomes, whole)
            equal = ""
        except AssertionError as error:
            equal = str(error)
        return {
            "rank": fault.rank,
            "phase": fault.phase,
            "total_s": resumed[-1].at_s - killed_s,
            "recoveries": len(ordered),
            "replayed": max(outcome.replayed for outcome in outcomes.values()),
            "phases": dict(phases),
            "bytes": dict(moved),
            "different": equal,
        }


def one_restart(ranks: int, words: Sequence[str]) -> float:
    """Seconds from the death of all ranks to the first step of the last one after a relaunch."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(PROGRAM), *words, "--checkpoint", f"{folder}/checkpoint.pt"]

        def launch(results: Path) -> list["subprocess.Popen[bytes]"]:
            results.mkdir()
            port = str(free_port())
            return [
                subprocess.Popen(
                    command,
                    env={
                        **os.environ, "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
                        "RANK": str(rank), "WORLD_SIZE": str(ranks), RESULTS_VARIABLE: str(results),
                    },
                )
                for rank in range(ranks)
            ]  # fmt: skip

        def await_steps(results: Path, number: int) -> None:
            until = time.monotonic() + RESTART_S_MAX
            files = [results / f"rank-{rank}.jsonl" for rank in range(ranks)]
            while not all(file.exists() and file.read_bytes().count(b"\n") >= number for file in files):
                if time.monotonic() > until:
                    raise TimeoutError(f"no step {number} on all ranks within {RESTART_S_MAX} s")
                time.sleep(0.002)

        first, second = Path(folder) / "first", Path(folder) / "second"
        processes = launch(first)
        await_steps(first, 6)
        killed_s = time.monotonic()
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()
        again = launch(second)
        await_steps(second, 1)
        took_s = time.monotonic() - killed_s
        for process in again:
            process.kill()
            process.wait()
        return took_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--restarts", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    words = ["--steps", str(STEPS), "--pause", str(PAUSE_S)]
    runs: list[dict[str, Any]] = []
    failed: list[str] = []
    with Nursery() as nursery:
        with RepairJob([str(PROGRAM), *words], arguments.ranks, nursery=nursery) as job:
            job.await_end()
            whole = job.outcomes()
        for number in range(arguments.runs):
            try:
                fault = draw_fault(arguments.seed + number, arguments.ranks, STEPS)
                runs.append(one_repair(nursery, fault, arguments.ranks, words, whole))
            except (TimeoutError, OSError, ValueError, IndexError) as error:
                failed.append(str(error)[-600:])
    restarts = [one_restart(arguments.ranks, words) for _ in range(arguments.restarts)]
    names = sorted({name for run in runs for name in run["phases"]})
    result = {
        "ranks": arguments.ranks,
        "step_pause_s": PAUSE_S,
        "recovered": len(runs),
        "of": arguments.runs,
        "different": [run["different"] for run in runs if run["different"]],
        "replayed_max": max((run["replayed"] for run in runs), default=-1),
        "kill_to_first_full_step_s": spread([run["total_s"] for run in runs]) if runs else None,
        "phases_s": {name: spread([run["phases"].get(name, 0.0) for run in runs]) for name in names},
        "faults": [f"rank {run['rank']} {run['phase']} {run['total_s']:.3f}" for run in runs],
        "restart_s": spread(restarts) if restarts else None,
        "failed": failed,
    }
    if runs and restarts:
        ours = statistics.median([run["total_s"] for run in runs])
        result["ratio"] = round(statistics.median(restarts) / ours, 1)
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
