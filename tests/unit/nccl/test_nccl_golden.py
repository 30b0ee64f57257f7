"""Traces as JSON: written once by the scripts here or recorded on a GPU, and replayed ever after."""

import os
from pathlib import Path

import pytest

from tests.unit.nccl.calls import Trace
from tests.unit.nccl.conftest import StartNccl

GOLDEN = Path(__file__).parent / "golden"
FULL = {"PACELINE_NCCL_TIER": "2", "PACELINE_NCCL_BUDGET_PERCENT": "100"}


def synthetic(version: int) -> Trace:
    """A ring over the network, an operation without, a broadcast, messages: as NCCL's sources order them."""
    trace = Trace(version)
    context = trace.init(rank=1)
    trace.run(context, rank=1)
    trace.run(context, network=False, function="ReduceScatter", dtype="ncclBfloat16")
    trace.run(context, rank=1, function="Broadcast", root=2)
    messages = trace.messages(context, ("Send", 2, 100), ("Recv", 0, 100))
    trace.launch_kernels(messages)
    trace.begin_messages(messages)
    trace.end_task(messages)
    trace.begin_kernels(messages, 1)
    trace.end_kernels(messages)
    return trace


@pytest.mark.parametrize("version", [4, 5])
def test_replayed_trace_gives_the_same_frame(start_nccl: StartNccl, version: int) -> None:
    path = GOLDEN / f"synthetic-v{version}.json"
    if os.environ.get("PACELINE_WRITE_GOLDEN"):
        path.write_text(synthetic(version).dump())
    trace = Trace.load(path.read_text())
    assert trace.calls == synthetic(version).calls
    process = start_nccl(version, HARNESS_NCCL_VERSION="22705" if version == 4 else "22809", **FULL)
    process.make(trace)
    frame = process.frame()
    assert (frame["started"], frame["completed"], frame["p2p_started"]) == (3, 3, 2)
    assert (frame["send_count"], frame["recv_count"], frame["kernels_done"]) == (16, 16, 8)
    rounds = process.detail().newest()[0]
    collectives = rounds[rounds["round"] > 0]
    assert collectives["function"].tolist() == [1, 5, 2]
    assert collectives["peer"].tolist() == [-1, -1, 2]
