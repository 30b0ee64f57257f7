"""From an injected fault to the verdict, through real Kafka: `python tests/bench/sim_verdict.py [--json]`.

Starts `paceline up` with default settings in a home of its own, then one `paceline sim` after the other,
and reads `paceline.verdicts.v1`. A run ends with the first verdict of the injected class that names the
injected rank, or after `--limit` seconds. The time counts from the instant at which the simulated job
shows the fault (its own second, on the wall clock of the simulator) to the time of the verdict's record.
Goal: P90 at most 15 s for hangs of 4,096 ranks.
"""

import argparse
import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass

import numpy as np
from aiokafka import AIOKafkaConsumer

from paceline.contracts.topics import VERDICTS
from paceline.contracts.verdicts import VerdictRecord
from paceline.lab.ports import draw_ports
from paceline.runtime.cloud_events import decode_event

GOAL_S = 15.0
START_S_MAX = 180.0
FAULTS = ("h1", "h2-size", "h3", "s1")
_EFFECT = re.compile(r"second ([\d.]+): \S+ took effect at rank (\d+)")


@dataclass
class Run:
    """One simulated job; -1 where nothing came."""

    fault: str
    seed: int
    first_s: float = -1.0  # any verdict
    right_s: float = -1.0  # the class, and the rank alone or in a group
    exact: bool = False  # the rank alone
    verdict: str = ""  # the last one seen


@asynccontextmanager
async def platform() -> AsyncIterator[str]:
    """A running platform; yields the address of its Kafka."""
    with tempfile.TemporaryDirectory(prefix="paceline-sim-") as home:
        command = [sys.executable, "-m", "paceline.contracts.cli", "up", "--home", home]
        command += ["--port", str(draw_ports(1)[0])]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=_environment())  # noqa: ASYNC220
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        try:
            bootstrap = ""
            async with asyncio.timeout(START_S_MAX):
                while not bootstrap:
                    line = await asyncio.to_thread(next, lines, "")
                    if not line:
                        raise RuntimeError("paceline up ended")
                    bootstrap = line.split()[1] if line.startswith("Kafka ") else ""
            yield bootstrap
        finally:
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _environment() -> dict[str, str]:
    """Default settings: nothing of the caller's."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PACELINE_")}
    cache = os.environ.get("PACELINE_CACHE")
    return {**kept, "PACELINE_CACHE": cache} if cache else kept


async def simulate(bootstrap: str, run: Run, options: argparse.Namespace) -> None:
    """Fill `run`."""
    command = [sys.executable, "-m", "paceline.contracts.cli", "sim", "--ranks", str(options.ranks)]
    command += ["--fault", run.fault, "--seed", str(run.seed), "--at", str(options.at)]
    command += ["--seconds", str(int(options.at + options.limit)), "--kafka", bootstrap]
    consumer = AIOKafkaConsumer(
        VERDICTS.name, bootstrap_servers=bootstrap, auto_offset_reset="latest", fetch_max_wait_ms=100
    )
    await consumer.start()
    started_s = 0.0
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    try:
        while line := (await process.stdout.readline()).decode():
            if line.startswith("job "):
                started_s = time.time()
            if found := _EFFECT.match(line):
                injected_s = min(started_s + float(found[1]), time.time())
                with suppress(TimeoutError):
                    async with asyncio.timeout(options.limit):
                        await _listen(consumer, run, injected_s, int(found[2]))
                break
    finally:
        await consumer.stop()
        with suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


async def _listen(consumer: AIOKafkaConsumer, run: Run, injected_s: float, rank: int) -> None:
    job, wanted = f"-{run.fault}-{run.seed}", run.fault.partition("-")[0]
    async for record in consumer:
        _, found = decode_event(VerdictRecord, record.headers, record.value)
        if not found.job.endswith(job):
            continue
        verdict, passed_s = found.verdict, record.timestamp / 1000 - injected_s
        run.verdict = f"{verdict.verdict_class.value} {verdict.summary}"
        run.first_s = run.first_s if run.first_s >= 0 else round(passed_s, 2)
        named = {root.rank for root in verdict.roots} | {one for root in verdict.roots for one in root.ranks}
        if verdict.verdict_class.value.lower() == wanted and rank in named:
            run.right_s = round(passed_s, 2)
            run.exact = rank in {root.rank for root in verdict.roots}
            return


def summary(runs: Sequence[Run], limit_s: float) -> dict[str, object]:
    """Quantiles by fault and over all; a verdict that did not come counts as the limit."""
    table: dict[str, object] = {}
    for fault in [*dict.fromkeys(run.fault for run in runs), "all"]:
        mine = [run for run in runs if fault in (run.fault, "all")]
        times = [run.right_s if run.right_s >= 0 else limit_s for run in mine]
        p50, p90 = np.quantile(times, [0.5, 0.9])
        table[fault] = {
            "runs": len(mine),
            "right": sum(run.right_s >= 0 for run in mine),
            "exact": sum(run.exact for run in mine),
            "p50_s": round(float(p50), 1),
            "p90_s": round(float(p90), 1),
            "worst_s": max(times),
        }
    return table


async def measure(options: argparse.Namespace) -> list[Run]:
    """All runs, one after the other."""
    runs = []
    async with platform() as bootstrap:
        for index in range(options.runs):
            run = Run(options.faults[index % len(options.faults)], options.seed + index)
            await simulate(bootstrap, run, options)
            runs.append(run)
            sys.stderr.write(f"{json.dumps(asdict(run))}\n")
            sys.stderr.flush()
    return runs


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=4096)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--faults", nargs="*", default=list(FAULTS))
    parser.add_argument("--seed", type=int, default=1, help="of the first run; each run has the next one")
    parser.add_argument("--at", type=float, default=60.0, help="second of the fault")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds to wait for the verdict")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    runs = asyncio.run(measure(options))
    table = summary(runs, options.limit)
    if options.json:
        print(json.dumps({"ranks": options.ranks, "goal_s": GOAL_S, **table}))
    else:
        for name, row in table.items():
            print(f"{name:10} {row}")
    hangs = [run for run in runs if run.fault.startswith("h")]
    found = summary(hangs, options.limit)["all"] if hangs else {"p90_s": 0.0}
    assert isinstance(found, dict)
    return 0 if found["p90_s"] <= GOAL_S else 1


if __name__ == "__main__":
    sys.exit(main())
