"""`paceline sim`: a simulated job against a running platform, at one sample a second."""

import argparse
import asyncio
import sys
import time
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paceline.fleet.publish import FleetJob, FleetRecord
    from paceline.runtime.producer import Producer
    from paceline.runtime.settings import KafkaSettings

EVENTS_AT_ONCE_MAX = 500  # registry records whose acknowledgement is awaited together
RANKS_DEFAULT = 64
EPILOG = """\
examples:
  paceline sim --ranks 64 --fault h1                     a rank that never enters
  paceline sim --ranks 4096 --fault s2 --seed 7          a slow link among 4,096 ranks
  paceline sim --shape 8x4x16 --fault h3 --profile nccl2 stuck inside an operation, counts visible
"""


def add(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the subcommand; nothing heavy is imported before it runs."""
    parser = subparsers.add_parser(
        "sim",
        help="simulate a training job and its agents",
        description="Publishes what the agents of a simulated job would publish, once a second, to the "
        "Kafka of a running platform (--kafka or PACELINE_KAFKA_BOOTSTRAP).",
        epilog=EPILOG,
    )
    parser.add_argument("--ranks", type=int, metavar="N", help=f"size of the job (default {RANKS_DEFAULT})")
    parser.add_argument("--shape", metavar="TPxPPxDP", help="instead of --ranks, for example 8x4x16")
    parser.add_argument(
        "--fault", default="none", metavar="F", help="none (default), h1, h2-size, h3, s1, s2 ..."
    )
    parser.add_argument("--seed", type=int, default=0, metavar="S")
    parser.add_argument(
        "--profile", default="nccl2", metavar="P", help="gloo, nccl0, nccl1, nccl2, nvlink, kernels"
    )
    parser.add_argument(
        "--at", type=float, default=60.0, metavar="S", help="second of the fault (default 60)"
    )
    parser.add_argument(
        "--seconds", type=int, default=240, metavar="S", help="length of the job (default 240)"
    )
    parser.add_argument("--kafka", metavar="HOST:PORT", help="PACELINE_KAFKA_BOOTSTRAP")
    parser.add_argument(
        "--dry-run", action="store_true", help="make the records as fast as possible, publish none"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """0 at the end of the job, 1 where Kafka cannot be reached, 2 for a wrong argument."""
    try:
        job = build_job(arguments)
    except ValueError as error:
        return _fail(str(error), 2)
    _say(describe(job))
    if arguments.dry_run:
        return asyncio.run(play(job, arguments.seconds, _Nothing(), paced=False))
    from paceline.runtime.settings import KafkaSettings, SettingsError, load_settings

    try:
        named = {"bootstrap": arguments.kafka} if arguments.kafka else {}
        settings = load_settings(KafkaSettings, **named)
    except SettingsError as error:
        return _fail(str(error), 2)
    return asyncio.run(_publish(job, arguments.seconds, settings))


def build_job(arguments: argparse.Namespace) -> "FleetJob":
    """The job that the arguments describe; ValueError names the argument that cannot be."""
    from paceline.fleet.faults import FaultKind, draw_faults
    from paceline.fleet.layout import Topology
    from paceline.fleet.profiles import Profile
    from paceline.fleet.publish import FleetJob

    if arguments.shape:
        parts = arguments.shape.split("x")
        if len(parts) != 3 or not all(part.isdigit() for part in parts):
            raise ValueError(f"--shape is {arguments.shape!r}, expected TPxPPxDP such as 8x4x16")
        tp, pp, dp = map(int, parts)
        topology = Topology(tp=tp, pp=pp, dp=dp)
    else:
        topology = Topology.for_ranks(RANKS_DEFAULT if arguments.ranks is None else arguments.ranks)
    known = [kind.value for kind in FaultKind]
    if arguments.fault not in ("none", *known):
        raise ValueError(f"--fault is {arguments.fault!r}, expected none or one of {', '.join(known)}")
    if arguments.seconds < 1:
        raise ValueError(f"--seconds is {arguments.seconds}, expected 1 or more")
    faults = (
        draw_faults(arguments.fault, topology, arguments.seed, arguments.at)
        if arguments.fault != "none"
        else ()
    )
    now = time.time()
    return FleetJob(
        topology,
        Profile.named(arguments.profile),
        faults=faults,
        seed=arguments.seed,
        job=f"sim-{topology.ranks}-{arguments.fault}-{arguments.seed}",
        attempt=f"a{int(now):x}",
        start_unix_s=now,
    )


def describe(job: "FleetJob") -> str:
    topology = job.topology
    shape = f"TP {topology.tp} x PP {topology.pp} x DP {topology.dp}"
    return (
        f"job {job.job}, attempt {job.attempt}: {topology.ranks} ranks ({shape}) on {topology.nodes} nodes, "
        f"{job.shards} shards, profile {job.profile.name.value}"
    )


class _Nothing:
    """Publishes nothing."""

    async def publish(self, records: "Sequence[FleetRecord]") -> None:
        del records


class KafkaSink:
    """Publishes through the runtime's producer: frames may be dropped, everything else is awaited."""

    def __init__(self, producer: "Producer") -> None:
        from paceline.contracts.topics import TOPICS

        self._producer = producer
        self._topics = {topic.name: topic for topic in TOPICS}

    async def publish(self, records: "Sequence[FleetRecord]") -> None:
        """KafkaUnavailable where a registry or health record was not acknowledged in time."""
        for start in range(0, len(records), EVENTS_AT_ONCE_MAX):
            part = records[start : start + EVENTS_AT_ONCE_MAX]
            await asyncio.gather(
                *(
                    self._producer.send(self._topics[one.topic], one.key, one.value, one.headers)
                    for one in part
                )
            )


async def play(job: "FleetJob", seconds: int, sink: "KafkaSink | _Nothing", *, paced: bool) -> int:
    """Make and publish `seconds` seconds of the job, at real time where `paced`."""
    sent: Counter[str] = Counter()
    started, behind_s, told, size_bytes = time.monotonic(), 0.0, False, 0
    for second in range(seconds):
        records = await asyncio.to_thread(job.records, second)
        await sink.publish(records)
        sent.update(record.topic for record in records)
        size_bytes += sum(len(record.value) for record in records)
        if not told and (fired := job.truth().fired):
            told = True
            where = f"rank {fired[0].fault.rank} in {fired[0].fault.group.value}, round {fired[0].round}"
            _say(f"second {fired[0].at_s:.1f}: {fired[0].fault.kind.value} took effect at {where}")
        ahead_s = second + 1 - (time.monotonic() - started)
        behind_s = max(behind_s, -ahead_s)
        if paced and ahead_s > 0:
            await asyncio.sleep(ahead_s)
    await sink.publish(job.last_records(seconds))
    spent = time.monotonic() - started
    rows = ", ".join(f"{count} to {topic}" for topic, count in sorted(sent.items()))
    _say(f"{seconds} s in {spent:.1f} s: {rows}; {size_bytes / 1e6:.1f} MB")
    if paced and behind_s > 1.0:
        _say(f"this machine fell behind real time by up to {behind_s:.1f} s; use fewer ranks")
    return 0


async def _publish(job: "FleetJob", seconds: int, settings: "KafkaSettings") -> int:
    from paceline.runtime.kafka import KafkaUnavailable
    from paceline.runtime.producer import Producer

    producer = Producer(settings, "sim")
    await producer.start()
    try:
        status = await play(job, seconds, KafkaSink(producer), paced=True)
        if producer.dropped:
            _say(f"{producer.dropped} frames were dropped: Kafka did not take them fast enough")
        return status
    except KafkaUnavailable as error:
        return _fail(f"{error}; is the platform running (paceline up)?", 1)
    finally:
        await producer.stop()


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _fail(message: str, status: int) -> int:
    sys.stderr.write(f"paceline sim: {message}\n")
    return status
