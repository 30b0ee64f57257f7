"""Recordings of simulated jobs: what one recorder on each node would have written."""

import json
import zlib
from collections import defaultdict
from pathlib import Path

from paceline.contracts.batch import Batch, encode_batch
from paceline.contracts.events import EventType
from paceline.contracts.recording import VERSION, RecordKind, encode_record
from paceline.contracts.registry import CommunicatorRecord, HealthEvent, JobRecord, NodeRecord
from paceline.contracts.schemas import dump_json
from paceline.fleet import FleetJob

_TYPES = {
    JobRecord: EventType.JOB_RECORD,
    NodeRecord: EventType.NODE_RECORD,
    CommunicatorRecord: EventType.COMMUNICATOR_RECORD,
    HealthEvent: EventType.HEALTH,
}
Event = JobRecord | NodeRecord | CommunicatorRecord | HealthEvent


def head(node: str, recorder: str, segment: int = 0, time_ns: int = 0) -> bytes:
    words = {"version": VERSION, "recorder": recorder, "node": node, "segment": segment, "interval_s": 1.0}
    return encode_record(RecordKind.HEAD, time_ns, json.dumps(words).encode())


def event_record(event: Event, time_ns: int) -> bytes:
    words = json.dumps({"type": _TYPES[type(event)].value, "key": "k"}).encode()
    return encode_record(RecordKind.EVENT, time_ns, words[:-1] + b', "value": ' + dump_json(event) + b"}")


def batch_record(batch: Batch, time_ns: int) -> bytes:
    return encode_record(RecordKind.BATCH, time_ns, zlib.compress(encode_batch(batch), 1))


def node_contents(job: FleetJob, seconds: int, suffix: str = "") -> dict[str, bytes]:
    """The file of each node after `seconds` seconds of `job`, by its name."""
    nodes = [job.topology.node_name(node) for node in range(job.topology.nodes)]
    parts: dict[str, list[bytes]] = {node: [head(node, f"{node}{suffix}")] for node in nodes}
    for second in range(seconds):
        # As in a log: the records of the registry of a second come before its samples.
        batches = job.batches(second)
        for at_s, _, event in job.events(second):
            where = [event.node] if isinstance(event, (NodeRecord, HealthEvent)) else nodes[:1]
            for node in where:
                parts[node].append(event_record(event, int((job.start_unix_s + at_s) * 1e9)))
        for _, batch in batches:
            parts[batch.node].append(batch_record(batch, batch.sampled_unix_ns))
    return {f"paceline-{node}{suffix}.000000.plrec": b"".join(found) for node, found in parts.items()}


def write_recording(folder: Path, job: FleetJob, seconds: int, suffix: str = "") -> dict[str, Path]:
    """Files by node, in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    paths: dict[str, Path] = defaultdict(Path)
    for name, content in node_contents(job, seconds, suffix).items():
        path = folder / name
        path.write_bytes(content)
        paths[name.removeprefix("paceline-").removesuffix(f"{suffix}.000000.plrec")] = path
    return paths
