"""Golden traces: recorded from the scripts here (or from NCCL on a GPU), replayed ever after.

PACELINE_WRITE_GOLDEN=1 writes them and what the pages hold then; the difference is reviewed.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.gpu.traces import TraceError, read_trace
from tests.unit.nccl.calls import Trace
from tests.unit.nccl.conftest import ROOT, NcclProcess, StartNccl, compile_all
from tests.unit.nccl.golden_scripts import SCRIPTS
from tests.unit.nccl.replay import TIERS, environment_of, summary

GOLDEN = Path(__file__).parent / "golden"
WRITE = bool(os.environ.get("PACELINE_WRITE_GOLDEN"))
BYTES_MAX = 40_000
NAMES = sorted(path.stem for path in GOLDEN.glob("*.jsonl")) if not WRITE else sorted(SCRIPTS)


@pytest.fixture(scope="module")
def recorder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recorder") / "recorder.so"
    errors = compile_all([ROOT / "tests/gpu/recorder.cc"], path, ["-fPIC", "-O1"], ["-shared"])
    assert not errors, errors
    return path


def record(trace: Trace, recorder: Path, harness: Path, to: Path, **environment: str) -> list[str]:
    """The lines that the recorder writes of `trace`, which the harness plays to it as NCCL would."""
    with NcclProcess(recorder, harness, trace.version, {"RECORDER_FILE": str(to), **environment}) as process:
        assert process.loaded == f"loaded {trace.version} Recorder"
        process.make(trace, in_turn=True)
        assert process.end() == 0
    return to.read_text().splitlines()


def timeless(lines: list[str]) -> list[dict[str, Any]]:
    return [{key: value for key, value in json.loads(line).items() if key != "ns"} for line in lines]


@pytest.mark.parametrize("name", sorted(SCRIPTS))
def test_recorder_writes_the_trace_that_is_committed(
    name: str, recorder: Path, built: Path, tmp_path: Path
) -> None:
    version, script = SCRIPTS[name]
    lines = record(script(version), recorder, built / "harness", tmp_path / "trace")
    path = GOLDEN / f"{name}.jsonl"
    if WRITE:
        path.write_text("\n".join(lines) + "\n")
    assert timeless(lines) == timeless(path.read_text().splitlines())
    times = [json.loads(line)["ns"] for line in lines[1:]]
    assert times == sorted(times)


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("name", NAMES)
def test_replayed_trace_gives_the_pages_that_are_committed(
    name: str, tier: int, start_nccl: StartNccl
) -> None:
    trace = read_trace((GOLDEN / f"{name}.jsonl").read_text().splitlines())
    process = start_nccl(trace.version, **environment_of(trace, tier))
    process.make(trace, in_turn=True)
    found = summary(process.read())
    path = GOLDEN / f"{name}.pages.json"
    if WRITE:
        pages = json.loads(path.read_text()) if path.exists() else {}
        rows = {**pages, f"tier{tier}": found}
        path.write_text(json.dumps(rows, indent=1) + "\n")
    assert found == json.loads(path.read_text())[f"tier{tier}"]


def test_goldens_are_small_and_cover_what_they_should() -> None:
    assert len(NAMES) >= 5
    for path in GOLDEN.iterdir():
        assert path.stat().st_size < BYTES_MAX, path.name
        assert path.name.partition(".")[0] in NAMES


def test_pages_tell_the_kinds_apart() -> None:
    """So that an empty page in place of a full one would be seen."""
    pages = {name: json.loads((GOLDEN / f"{name}.pages.json").read_text()) for name in NAMES}
    ring = pages["ring-all-reduce-v5"]["tier2"]["frames"][0]
    assert (ring["started"], ring["completed"], ring["send_count"], ring["kernels_done"]) == (3, 3, 12, 5)
    assert pages["ring-all-reduce-v5"]["tier0"]["frames"][0]["send_count"] == 0
    assert pages["ring-all-reduce-v4"]["tier2"]["frames"][0]["completed"] == 3
    sent = pages["messages-v5"]["tier2"]["frames"][0]
    assert (sent["round"], sent["p2p_started"], sent["send_count"]) == (0, 2, 2)
    assert pages["captured-graph-v5"]["tier2"]["process"]["nccl_replays"] == 3
    hung = pages["hung-operation-v5"]["tier2"]["frames"][0]
    assert (hung["head_round"], hung["completed"], hung["channel"]["0"][:4]) == (
        2, 1, [7, 7, "SEND_WAIT", "RECV_WAIT"],
    )  # fmt: skip


def test_a_recording_is_bounded_and_says_so(recorder: Path, built: Path, tmp_path: Path) -> None:
    trace = SCRIPTS["ring-all-reduce-v5"][1](5)
    lines = record(trace, recorder, built / "harness", tmp_path / "trace", RECORDER_CALLS_MAX="60")
    assert len(lines) == 62
    assert json.loads(lines[-1]) == {"call": "cut"}
    played = read_trace(lines)
    assert sum(call["call"] != "sample" for call in played.calls) == 60


HEAD = '{"recorder": 1, "version": 5}'
START = {"call": "start", "thread": 0, "handle": 1, "context": 0, "parent": 0}


@pytest.mark.parametrize(
    "line",
    [
        "no json",
        "[]",
        '{"call": "what", "thread": 0}',
        '{"call": "stop", "thread": 0, "handle": 77}',
        '{"call": "record", "thread": 0, "handle": 0, "state": "x", "argument": null}',
        json.dumps({**START, "type": "What", "fields": {}}),
        json.dumps({**START, "type": "Coll", "fields": {"peer": 1}}),
        json.dumps({**START, "type": "ProxyStep", "fields": {"step": "s"}}),
    ],
)
def test_line_that_no_recorder_writes_is_named(line: str) -> None:
    with pytest.raises(TraceError, match="line 2"):
        read_trace([HEAD, line])
    for head in ("", "{}", '{"recorder": 2, "version": 5}'):
        with pytest.raises(TraceError, match="line 1"):
            read_trace([head, line])


def test_foreign_operation_is_replayed_as_addresses_that_nobody_may_read(start_nccl: StartNccl) -> None:
    init = {
        "thread": 0, "call": "init", "context": 1, "name": "a b", "hash": 5, "nodes": 1, "nranks": 4,
        "rank": 0, "log": True,
    }  # fmt: skip
    fields = {"pid": 1, "channel": 0, "peer": 1, "steps": 4, "chunk": 1, "is_send": 1}
    foreign = {"handle": 0, "context": "raw:0xdead0000", "type": "ProxyOp", "parent": "raw:0xdead1000"}
    lines = [HEAD, json.dumps(init), json.dumps({**START, **foreign, "fields": fields})]
    trace = read_trace(lines)
    process = start_nccl(5, **environment_of(trace, 2))
    process.make(trace, in_turn=True)
    assert process.read().process["nccl_foreign"] == 1
