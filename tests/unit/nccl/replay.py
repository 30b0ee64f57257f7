"""Plays a recorded trace to the plugin and says what its page holds then, without times.

    python -m tests.unit.nccl.replay TRACE.jsonl [--tier 2] [--plugin PLUGIN.so]

prints that as JSON. A recording of NCCL (tests/gpu/run.py) becomes a golden trace with it.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from paceline.contracts.codes import Algorithm, FrameFlag, Function, OpKind, OpState, Protocol, TransferState
from paceline.probe.nccl import plugin_path
from paceline.probe.snapshot import FrameDetail, PageSnapshot
from tests.gpu.traces import read_trace
from tests.unit.nccl.calls import Trace
from tests.unit.nccl.conftest import NcclProcess, build_harness

TIERS = (0, 2)
VERSIONS = {4: "22705", 5: "22809"}  # of NCCL, by that of the interface
_PROCESS = (
    "frames_open", "communicators_dropped", "operations_dropped", "errors", "nccl_tier", "nccl_events",
    "nccl_foreign", "nccl_dropped", "nccl_late", "nccl_replays",
)  # fmt: skip
_FRAME = (
    "comm", "instance", "comm_rank", "nranks", "nnodes", "context", "round", "nccl_seq", "channels", "peer",
    "open_ops", "count", "bytes", "signature", "head_round", "started", "enqueued", "completed",
    "p2p_started", "send_count", "send_bytes", "recv_count", "recv_bytes", "send_posted", "recv_posted",
    "kernels_started", "kernels_done", "proxies_open", "dropped", "foreign",
)  # fmt: skip


def environment_of(trace: Trace, tier: int) -> dict[str, str]:
    """Of the process that plays `trace`: no budget, since it calls at full speed."""
    return {
        "HARNESS_NCCL_VERSION": VERSIONS[trace.version],
        "PACELINE_NCCL_TIER": str(tier),
        "PACELINE_NCCL_BUDGET_PERCENT": "100",
    }


def summary(snapshot: PageSnapshot) -> dict[str, Any]:
    """Everything of a page that the same calls give again."""
    return {
        "process": {name: int(snapshot.process[name]) for name in _PROCESS},
        "frames": [
            _frame(frame, detail) for frame, detail in zip(snapshot.frames, snapshot.details, strict=True)
        ],
    }


def _frame(frame: np.void, detail: FrameDetail) -> dict[str, Any]:
    rounds = detail.newest()[0]
    return {
        **{name: int(frame[name]) for name in _FRAME},
        "function": Function(int(frame["function"])).name,
        "algorithm": Algorithm(int(frame["algorithm"])).name,
        "protocol": Protocol(int(frame["protocol"])).name,
        "state": OpState(int(frame["state"])).name,
        "flags": [flag.name for flag in FrameFlag if int(frame["flags"]) & flag],
        "channel": {
            str(at): [
                int(row["sends"]),
                int(row["recvs"]),
                TransferState(int(row["send_state"])).name,
                TransferState(int(row["recv_state"])).name,
                int(row["kernel_state"]),
            ]
            for at, row in enumerate(frame["channel"])
            if row.tobytes() != b"\0" * row.nbytes
        },
        "edges": sorted(
            [int(row[name]) for name in ("peer", "group", "direction", "count", "bytes")]
            for row in detail.edges
        ),
        "peers": sorted(
            [int(row["peer"]), *(int(n) for name in ("posted", "completed", "head_seq") for n in row[name])]
            for row in detail.peers
        ),
        "rounds": [
            [
                int(row["round"]),
                OpKind(int(row["kind"])).name,
                Function(int(row["function"])).name,
                OpState(int(row["state"])).name,
                int(row["count"]),
                int(row["peer"]),
            ]
            for row in rounds
        ],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("trace", type=Path)
    parser.add_argument("--tier", type=int, choices=(0, 1, 2), default=2)
    parser.add_argument("--plugin", type=Path, default=plugin_path())
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = replay_file(options.trace, options.plugin, Path(folder), options.tier)
    sys.stdout.write(json.dumps(found, indent=1) + "\n")
    return 0


def replay_file(path: Path, plugin: Path, folder: Path, tier: int) -> dict[str, Any]:
    """What the page holds after the trace of `path`; the harness is built in `folder` once."""
    trace = read_trace(path.read_text().splitlines())
    harness = folder / "harness"
    if not harness.exists() and (errors := build_harness(harness, "-O1")):
        raise RuntimeError(errors)
    with NcclProcess(plugin, harness, trace.version, environment_of(trace, tier)) as process:
        process.make(trace, in_turn=True)
        return summary(process.read())


if __name__ == "__main__":
    sys.exit(main())
