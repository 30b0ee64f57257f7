"""Measured rows: which kind a row is follows from its fields, whatever they are called."""

import json
from pathlib import Path

import pytest

from paceline.analysis.adapters.row_fields import bare_name, number_of
from paceline.analysis.facts import CallSeen, Clock, Counted, Membership, PhaseKind, PhaseSeen, SampleRow
from tests.unit.analysis.adapters.reading_lines import facts_of, of_type


def _rows(tmp_path: Path, *rows: object) -> list[SampleRow]:
    return of_type(facts_of(tmp_path, "\n".join(json.dumps(row) for row in rows), "x.txt"), SampleRow)


@pytest.mark.parametrize(
    ("name", "value", "known", "expected"),
    [
        ("pre_ms", 203.0, "own_s", 0.203),
        ("computeTimeMs", 203.0, "own_s", 0.203),
        ("fwdBwdTimeMs", 203.0, "own_s", 0.203),
        ("allreduce_latency_us", 30.0, "collective_s", 3e-5),
        ("coll(us)", 30.0, "collective_s", 3e-5),
        ("perf/step-time", 1.5, "step_s", 1.5),
        ("step_ms", 1500, "step_s", 1.5),
        ("step", 12, "step", 12),
        ("allreduce", 6650, "allreduce", 6650),  # a count or a time: the name alone does not say
        ("send_rate_mbps", 11800, "send_rate", 11800e6),
        ("busbw_gbps", 8.9, "busbw", 8.9e9),
        ("DCGM_FI_DEV_GPU_UTIL", 99, "sm_util", 99),
        ("power_cap_w", 400, "power_cap_w", 400),
        ("recvCount", 489, "receives", 489),
        ("unheard_of", 1, "unheard_of", 1),
    ],
)
def test_names_and_units(name: str, value: float, known: str, expected: float) -> None:
    found, scaled = number_of(bare_name(name), value)
    assert found == known
    assert scaled == pytest.approx(expected)


@pytest.mark.parametrize(
    ("row", "kinds"),
    [
        ({"step": 1, "rank": 0, "pre_ms": 200, "coll_ms": 30, "step_ms": 230}, ["steps"]),
        ({"iteration": 1, "global_rank": 0, "fwd_bwd_time_s": 0.2, "comm_time_s": 0.03}, ["steps"]),
        ({"step": 0, "rank": 1, "compute": 0.2, "comm": 0.031}, ["steps"]),
        ({"step": 0, "rank": 1, "t_compute_ms_avg": 200, "t_comm_ms_avg": 31}, ["steps"]),
        ({"step": 0, "rank": 1, "pre_ms": 200, "coll_ms": 31, "gc_ms": 140}, ["collections", "steps"]),
        ({"step": 0, "rank": 1, "event": "gc", "pause_ms": 140}, ["collections"]),
        ({"step": 0, "rank": 1, "coll_ms": 850, "tail_ms": 5000, "sync_wait_ms": 10}, ["steps"]),
        ({"t_ms": 50, "rank": 0, "op": "AllReduce", "coll_ms": 2.1}, ["operations"]),
        ({"rank": 3, "step": 7, "generation": 2, "duration_s": 1.4}, ["collections"]),
        ({"step": 7, "where": "device_get", "wait_s": 1.4}, ["waits"]),
        ({"capture": 1, "node": 0, "host_at": "a.py:1 f", "sm_util": 96}, ["captures", "telemetry"]),
        ({"t_ms": 500, "action": "nvmlDeviceSetGpuLockedClocks", "mhz": 1300}, ["actions"]),
        ({"src_rank": 0, "dst_rank": 3, "bandwidth_gbps": 25}, ["pairs"]),
        ({"step": 1, "rank": 2, "send_rate_mbps": 11800}, ["rates"]),
        ({"size": 1048576, "busbw_gbps": 8.9, "t": 3}, ["bandwidth"]),
        ({"rank": 0, "sm_util": 100, "mem_util": 0, "power_w": 118}, ["telemetry"]),
        ({"node": "n5", "gpu": 0, "link": 14, "recovery_events": 505}, ["nvlink"]),
        ({"node": "a", "rx_discards": 0, "rx_pause": 0, "cnp_sent": 0}, ["network"]),
        ({"node": "a", "gemm_bench_s": 303.6}, ["other"]),
        ({"loss": 2.0, "lr": 1e-4}, []),
        ({"step": 7, "loss": 2.0}, []),
    ],
)
def test_kind_follows_from_the_fields(tmp_path: Path, row: dict[str, object], kinds: list[str]) -> None:
    assert [fact.kind for fact in _rows(tmp_path, row, row)][: len(kinds)] == kinds
    assert len(_rows(tmp_path, row, row)) == 2 * len(kinds)


def test_one_file_may_mix_kinds_and_hold_garbage(tmp_path: Path) -> None:
    text = '{"rank": 0, "step": 1, "pre_ms": 2, "coll_ms": 1}\n{"rank": 0, "step"\n\x00{]\n' + "{" * 5000
    text += '\n{"rank": 1e999, "step": 1, "pre_ms": NaN, "coll_ms": 1}\n{"rank": 0, "sm_util": 3}\n'
    rows = of_type(facts_of(tmp_path, text.replace("\x00", "")), SampleRow)
    assert [row.kind for row in rows] == ["steps", "steps", "telemetry"]
    assert rows[1].speaker.rank is None
    assert "own_s" not in rows[1].numbers


def test_counters_become_counts_taken_together(tmp_path: Path) -> None:
    rows = [
        {
            "minute": minute,
            "rank": rank,
            "comm": "dp",
            "op": "AllReduce",
            "launched": 10 * minute - rank,
            "completed": 9,
        }
        for minute in (1, 7)
        for rank in (0, 1)
    ]
    counted = of_type(facts_of(tmp_path, "\n".join(map(json.dumps, rows))), Counted)
    assert [(one.snapshot, one.speaker.rank, one.launched) for one in counted] == [
        (1, 0, 10), (1, 1, 9), (7, 0, 70), (7, 1, 69),
    ]  # fmt: skip
    assert (counted[0].group.name, counted[0].function, counted[0].sends) == ("dp", "all_reduce", None)


def test_issue_orders_become_calls(tmp_path: Path) -> None:
    rows = [{"rank": 0, "k": 2, "op": "send", "peer": 1, "role": "send_next", "shape": [5, 1]}] * 2
    facts = facts_of(tmp_path, "\n".join(map(json.dumps, rows)))
    call = of_type(facts, CallSeen)[0]
    assert (call.work.function, call.work.sequence, call.work.peer, call.work.shapes) == (
        "send",
        2,
        1,
        "[5, 1]",
    )
    assert of_type(facts, SampleRow)[0].words["role"] == "send_next"


def test_collections_are_phases_with_a_duration(tmp_path: Path) -> None:
    row = {"rank": 3, "step": 7, "generation": 2, "duration_s": 1.4}
    phase = of_type(facts_of(tmp_path, json.dumps(row) + "\n"), PhaseSeen)[0]
    assert (phase.kind, phase.duration_s, phase.speaker.rank) == (PhaseKind.COLLECT, 1.4, 3)


def test_times_of_rows(tmp_path: Path) -> None:
    def row(stamp: object) -> dict[str, object]:
        return {"t": stamp, "rank": 0, "sm_util": 1}

    facts = _rows(tmp_path, row("2026-09-05T10:00:00Z"), row(1788602400500), row(3.5))
    assert [(fact.time_s, fact.clock) for fact in facts] == [
        (1788602400.0, Clock.UNIX), (1788602400.5, Clock.UNIX), (3.5, Clock.START),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "document",
    [
        [
            {"rank": 0, "step": 0, "pre_ms": 5, "coll_ms": 1},
            {"rank": 1, "step": 0, "pre_ms": 5, "coll_ms": 1},
        ],
        {"job": "x", "steps": [{"rank": r, "step": 0, "times": {"pre_ms": 5, "coll_ms": 1}} for r in (0, 1)]},
        {"ranks": {"0": {"step": [0], "pre_ms": 5, "coll_ms": 1}, "1": {"pre_ms": 5, "coll_ms": 1}}},
        {"rank": [0, 1], "step": [0, 0], "pre_ms": [5, 5], "coll_ms": [1, 1]},
    ],
)
def test_documents_of_the_same_shapes(tmp_path: Path, document: object) -> None:
    rows = of_type(facts_of(tmp_path, json.dumps(document, indent=1)), SampleRow)
    assert [(row.kind, row.speaker.rank, row.numbers["own_s"]) for row in rows] == [
        ("steps", 0, 0.005), ("steps", 1, 0.005),
    ]  # fmt: skip


def test_a_topology_says_where_ranks_are(tmp_path: Path) -> None:
    document = {"rank_to_gpu": {"12": {"node": "node-b", "pci": "0000:9B:00.0"}}}
    speaker = of_type(facts_of(tmp_path, json.dumps(document, indent=1)), Membership)[0].speaker
    assert (speaker.rank, speaker.host, speaker.gpu) == (12, "node-b", "0000:9b:00")


def test_deep_nesting_is_refused_not_raised(tmp_path: Path) -> None:
    assert facts_of(tmp_path, "[" * 100_000) == []
    assert facts_of(tmp_path, '{"a":' * 5_000 + "1" + "}" * 5_000) == []
