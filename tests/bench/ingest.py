"""One detector process on a real Kafka: `python -m tests.bench.ingest [--seconds 60] [--json]`.

12,500 nodes x 8 ranks x 4 communicators at one sample a second: does one detector keep up (goal: less than
2 s behind), and how fast does it drain a backlog (goal: 3 times real time)? The detector is the real
`DetectorApp` in a process of its own, broker and producer are two more; all share this machine. `lag` is
the age of the newest sample that the detector's state contains, looked at 10 times a second by a thread.

A backlog is written while no detector runs; the next detector restores the snapshot of the one before.
Its speed counts from its first new record to its last one; `restart_s` is all from the start of the process.
There are two: `backlog` has as many records in a batch of Kafka as the live part, `backlog_alone` one, as
thousands of agents make them, each with a producer of its own.
"""

import argparse
import asyncio
import cProfile
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.bench.ingest_load import JOB, Agents, send

ROOT = Path(__file__).parents[2]
PROGRAM = [sys.executable, "-u", "-m", "tests.bench.ingest"]
LAG_GOAL_S, DRAIN_GOAL = 2.0, 3.0
SETTLE_S = 5  # the first seconds: 393,216 members appear
LOOK_S = 0.1
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")


# ---------------------------------------------------------------------- the detector's process


def detect(bootstrap: str, profile: str) -> None:
    """Run the real app until SIGTERM; prints one JSON line for each look at it."""
    from paceline.detector import DetectorApp, DetectorSettings
    from paceline.runtime.logging import configure_logging
    from paceline.runtime.runner import run_apps
    from paceline.runtime.settings import KafkaSettings, LogSettings

    configure_logging(LogSettings(level="warning"))
    app = DetectorApp(DetectorSettings(kafka=KafkaSettings(bootstrap=bootstrap), instance="bench"))

    def look() -> None:
        while True:
            held = next((held for key, held in list(app.core.held.items()) if key.job == JOB), None)
            if held is not None:
                now_s, sampled_s = time.time(), held.sampled_unix_ns / 1e9
                print(json.dumps([now_s, sampled_s, held.next_offset, held.tick_seq, *usage(os.getpid())]))
            time.sleep(LOOK_S)

    threading.Thread(target=look, daemon=True).start()
    profiler = cProfile.Profile(time.thread_time)  # others on the machine do not count
    if profile:
        profiler.enable()
    asyncio.run(run_apps([app]))
    if profile:
        profiler.dump_stats(profile)


def usage(pid: int) -> tuple[float, float]:
    """CPU seconds so far and resident MiB of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND, int(fields[21]) * PAGE / 2**20


class Detector:
    """The process and what it has told so far."""

    def __init__(self, bootstrap: str, profile: str) -> None:
        self.started_s = time.time()
        self.looks: list[list[float]] = []
        self._process = subprocess.Popen(
            [*PROGRAM, "--detector", bootstrap, "--profile", profile],
            stdout=subprocess.PIPE,
            text=True,
        )
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.looks.append(json.loads(line))

    def wait(self, sampled_s: float, limit_s: float) -> float:
        """Until its state contains a sample of `sampled_s`; returns when that was."""
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline and self._process.poll() is None:
            for look in self.looks[-50:]:
                if look[1] >= sampled_s:
                    return look[0]
            time.sleep(0.05)
        raise RuntimeError(f"the detector did not get there within {limit_s:g} s: {self.looks[-1:]}")

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()


# ---------------------------------------------------------------------- the producer's process


def produce(bootstrap: str, folder: str, options: argparse.Namespace, partition: int) -> None:
    """Make all files, then send each at a line on standard input; one JSON line for each."""
    agents = Agents(options.ranks, options.rounds, partition)
    began, cpu = time.time(), time.process_time()
    live_s, seconds = options.seconds + SETTLE_S, options.backlog
    first_ns = time.time_ns()
    live = agents.prepare(Path(folder, "live"), live_s, first_ns, options.per_batch)
    begin_ns = first_ns + live_s * 10**9
    backlog = agents.prepare(Path(folder, "backlog"), seconds, begin_ns, options.per_batch)
    alone = agents.prepare(Path(folder, "alone"), seconds, begin_ns + seconds * 10**9, 1)
    made = {"seconds": time.time() - began, "cpu_s": time.process_time() - cpu, "record_bytes": agents.size}
    print(json.dumps({**made, "first_s": first_ns / 1e9, "kafka_bytes": live.ends[-1] / live.records}))
    for prepared, paced in ((live, True), (backlog, False), (alone, False)):
        sys.stdin.readline()
        cpu = time.process_time()
        started_s, late_s = send(prepared, bootstrap, paced=paced)
        spent = time.process_time() - cpu
        last_s = prepared.first_unix_ns / 1e9 + prepared.seconds - 1 / agents.nodes - 1e-3
        print(json.dumps({"started_s": started_s, "late_s": late_s, "cpu_s": spent, "last_s": last_s,
                          "seconds": time.time() - started_s, "records": prepared.records}))  # fmt: skip


# ---------------------------------------------------------------------- both together


def run(options: argparse.Namespace) -> dict[str, Any]:
    from aiokafka.partitioner import murmur2

    from paceline.contracts.topics import FRAMES
    from paceline.lab.kafka import LocalKafka
    from paceline.runtime.kafka import create_topics
    from paceline.runtime.settings import KafkaSettings

    partition = (murmur2(f"{JOB}:0".encode()) & 0x7FFFFFFF) % FRAMES.partitions
    with tempfile.TemporaryDirectory(prefix="paceline-ingest-") as folder:
        kafka = LocalKafka(Path(folder))
        bootstrap = kafka.start()
        command = [*PROGRAM, "--producer", bootstrap, "--folder", folder]
        command += ["--partition", str(partition), "--ranks", str(options.ranks)]
        command += ["--rounds", str(options.rounds), "--seconds", str(options.seconds)]
        command += ["--backlog", str(options.backlog), "--per-batch", str(options.per_batch)]
        producer = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        try:
            asyncio.run(create_topics(KafkaSettings(bootstrap=bootstrap)))
            return _run(options, bootstrap, producer, kafka.pid or 0)
        finally:
            producer.kill()
            producer.wait()
            kafka.stop()


def _run(
    options: argparse.Namespace, bootstrap: str, producer: "subprocess.Popen[str]", broker: int
) -> dict[str, Any]:
    made = _answer(producer)
    first = Detector(bootstrap, options.profile)
    time.sleep(3.0)
    broker_cpu, _ = usage(broker)
    _go(producer)
    sent = _answer(producer)
    broker_cpu = usage(broker)[0] - broker_cpu
    try:
        first.wait(sent["last_s"], 60.0)
    finally:
        first.stop()
    backlogs = {}
    for name in ("backlog", "backlog_alone"):
        _go(producer)
        piled = _answer(producer)
        drains = Detector(bootstrap, options.profile and f"{options.profile}.{name}")
        try:
            done_s = drains.wait(piled["last_s"], 120.0)
        finally:
            drains.stop()
        backlogs[name] = _backlog(drains, done_s, piled, options)
    shift_s = sent["started_s"] - made["first_s"]
    return {
        "nodes": options.ranks // 8,
        "communicators_per_rank": 4,
        "rounds_per_member": options.rounds,
        "records_per_kafka_batch": options.per_batch,
        "record_bytes": made["record_bytes"],
        "kafka_bytes_per_record": round(made["kafka_bytes"]),
        "live": _live(first.looks, shift_s, sent, options),
        "producer": {
            "prepare_s": round(made["seconds"], 1),
            "prepare_cpu_s": round(made["cpu_s"], 1),
            "send_cpu_s": round(sent["cpu_s"], 2),
            "late_s": round(sent["late_s"], 2),
        },
        "broker_cpu_s": round(broker_cpu, 1),
        **backlogs,
    }


def _go(producer: "subprocess.Popen[str]") -> None:
    assert producer.stdin is not None
    producer.stdin.write("go\n")
    producer.stdin.flush()


def _answer(producer: "subprocess.Popen[str]") -> dict[str, float]:
    assert producer.stdout is not None
    line = producer.stdout.readline()
    if not line:
        raise RuntimeError("the producer ended")
    found: dict[str, float] = json.loads(line)
    return found


def _live(
    looks: Sequence[Sequence[float]], shift_s: float, sent: dict[str, float], options: argparse.Namespace
) -> dict[str, Any]:
    """Figures of the seconds after the first SETTLE_S."""
    begin, end = sent["started_s"] + SETTLE_S, sent["started_s"] + sent["seconds"]
    inside = np.array([look for look in looks if begin <= look[0] <= end])
    lag = inside[:, 0] - inside[:, 1] - shift_s
    spent_s = inside[-1, 0] - inside[0, 0]
    records = (inside[-1, 2] - inside[0, 2]) / spent_s
    return {
        "seconds": options.seconds,
        "lag_median_s": round(float(np.median(lag)), 2),
        "lag_p99_s": round(float(np.quantile(lag, 0.99)), 2),
        "lag_worst_s": round(float(lag.max()), 2),
        "lag_settle_s": round(max(x[0] - x[1] - shift_s for x in looks if x[0] < begin), 2),
        "records_per_s": round(records),
        "ticks": round(inside[-1, 3] - inside[0, 3]),
        "cpu_cores": round((inside[-1, 4] - inside[0, 4]) / spent_s, 2),
        "cpu_s": round(inside[-1, 4] - inside[0, 4], 1),
        "rss_mib": round(float(inside[:, 5].max())),
    }


def _backlog(
    detector: Detector, done_s: float, piled: dict[str, float], options: argparse.Namespace
) -> dict[str, Any]:
    looks = detector.looks
    moving = next((index for index, look in enumerate(looks) if look[2] > looks[0][2]), 0)
    begin = looks[max(moving - 1, 0)]
    last = next(look for look in looks if look[0] >= done_s)
    spent_s = max(done_s - begin[0], LOOK_S)
    return {
        "seconds": options.backlog,
        "records": round(piled["records"]),
        "drain_s": round(spent_s, 2),
        "times_real_time": round(options.backlog / spent_s, 2),
        "records_per_s": round((last[2] - begin[2]) / spent_s),
        "cpu_s": round(last[4] - begin[4], 1),
        "restart_s": round(done_s - detector.started_s, 1),
        "preload_s": round(piled["seconds"], 1),
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=100_000, help="a multiple of 8")
    parser.add_argument("--rounds", type=int, default=1, help="kept rounds of each member in a second")
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--backlog", type=int, default=20, help="seconds")
    parser.add_argument("--per-batch", type=int, default=8, help="records in one batch of Kafka")
    parser.add_argument("--profile", default="", help="cProfile of the first detector into this file")
    parser.add_argument("--json", action="store_true")
    for name in ("--detector", "--producer", "--folder"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    parser.add_argument("--partition", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.detector:
        detect(options.detector, options.profile)
        return 0
    if options.producer:
        produce(options.producer, options.folder, options, options.partition)
        return 0
    found = run(options)
    print(json.dumps(found) if options.json else json.dumps(found, indent=2))
    kept = found["live"]["lag_worst_s"] < LAG_GOAL_S
    drained = min(found[name]["times_real_time"] for name in ("backlog", "backlog_alone"))
    return 0 if kept and drained >= DRAIN_GOAL else 1


if __name__ == "__main__":
    sys.exit(main())
