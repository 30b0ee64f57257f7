"""`paceline diagnose` of recordings: the live engine's verdict from files, whatever the files lack."""

import random
import tarfile
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest

from paceline.analysis.diagnosis import recorded as module
from paceline.analysis.diagnosis.answer import Diagnosis
from paceline.analysis.diagnosis.run import diagnose
from paceline.analysis.replay import Replay
from paceline.contracts.batch import ROW_DTYPES, Batch, BatchKind, RowKind
from paceline.contracts.recording import RecordKind, encode_record, scan_records
from paceline.contracts.registry import NodeRecord
from paceline.contracts.verdicts import RootKind, VerdictClass
from paceline.fleet import Conditions, Fault, FaultKind, FleetJob, Profile, ProfileName, Topology
from paceline.fleet.layout import CommKind
from tests.unit.analysis.recordings import batch_record, event_record, head, node_contents

AT_S, HANG_S, SLOW_AT_S, SLOW_S = 8.0, 20, 40.0, 70
GUILTY = 5
Contents = dict[str, bytes]


@lru_cache(maxsize=32)
def contents(
    kind: FaultKind | None, attempt: str = "a1", start_s: float = 1.8e9, seconds: int = 0
) -> Contents:
    """Files of a job of 8 ranks on two nodes in which rank 5 is at fault."""
    slow = kind is FaultKind.LATE_RANK
    at_s = SLOW_AT_S if slow else AT_S
    fault = None if kind is None else Fault(kind, GUILTY, CommKind.WORLD, at_s, delay_s=0.1 if slow else 0.0)
    job = FleetJob(
        Topology(2, 1, 4, ranks_per_node=4),
        Profile.named(ProfileName.KERNELS),
        conditions=Conditions(),
        faults=() if fault is None else (fault,),
        job="job",
        attempt=attempt,
        start_unix_s=start_s,
    )
    return node_contents(job, seconds or (SLOW_S if slow else HANG_S), f"-{attempt}")


@pytest.fixture
def answer(tmp_path: Path) -> Callable[[Contents], list[Diagnosis]]:
    def give(files: Contents) -> list[Diagnosis]:
        for name, content in files.items():
            (tmp_path / name).write_bytes(content)
        return diagnose([str(tmp_path)])

    return give


Answer = Callable[[Contents], list[Diagnosis]]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (FaultKind.MISSING_ENTER, VerdictClass.H1),
        (FaultKind.SIZE, VerdictClass.H2),
        (FaultKind.STUCK, VerdictClass.H3),
        (FaultKind.DEAD_PROCESS, VerdictClass.DEAD_PROCESS),
        (FaultKind.LATE_RANK, VerdictClass.S1),
    ],
)
def test_the_rank_is_named_with_file_and_time(
    answer: Answer, kind: FaultKind, expected: VerdictClass
) -> None:
    [found] = answer(contents(kind))
    assert found.verdict_class is expected
    assert [root.rank for root in found.roots if root.kind is RootKind.RANK] == [GUILTY]
    assert found.roots[0].node == "node-00001"
    assert GUILTY not in found.victims
    assert found.seen.ranks_expected == found.seen.ranks_reporting == 8
    when = next(ground for ground in found.grounds if ground.rule == "recorded")
    assert "since 2027-01-15 08:0" in when.statement
    assert [origin.file for origin in when.origins] == ["paceline-node-00001-a1.000000.plrec"]
    assert when.origins[0].line > 1


def test_a_job_without_a_fault_is_calm(answer: Answer) -> None:
    [found] = answer(contents(None, seconds=15))
    assert found.verdict_class is VerdictClass.NONE
    assert found.roots == ()
    assert found.victims == ()


def test_torn_tails_and_garbage_cost_what_they_touch(answer: Answer) -> None:
    draw = random.Random(7)
    damaged: Contents = {}
    for name, content in contents(FaultKind.MISSING_ENTER).items():
        middle = len(content) // 2
        damaged[name] = content[:middle] + draw.randbytes(500) + content[middle:-37]
    [found] = answer(damaged)
    assert found.verdict_class is VerdictClass.H1
    assert [root.rank for root in found.roots] == [GUILTY]
    assert sum("torn or damaged" in note for note in found.seen.notes) == 2
    assert any("cut, or still recording: node-00000, node-00001" in note for note in found.seen.notes)


def test_content_that_is_none_is_counted(answer: Answer) -> None:
    files = dict(contents(FaultKind.MISSING_ENTER))
    name = next(iter(files))
    odd = [
        (RecordKind.BATCH, b"no zlib"),
        (RecordKind.EVENT, b"[" * 100_000),
        (RecordKind.EVENT, b'{"type": "dev.paceline.job.recorded.v1", "value": {"job": 1}}'),
        (RecordKind.EVENT, b'{"type": "dev.paceline.job.recorded.v9", "value": {}}'),  # of a newer writer
        (RecordKind.COUNTS, b"[]"),
        (RecordKind.END, b"\xff"),
        (99, b"of a newer writer"),
    ]
    files[name] += b"".join(encode_record(kind, 1, content) for kind, content in odd)
    [found] = answer(files)
    assert [root.rank for root in found.roots] == [GUILTY]
    assert "5 recorded samples could not be read" in found.seen.notes


def test_a_newer_format_is_refused_by_name(answer: Answer) -> None:
    files = dict(contents(FaultKind.MISSING_ENTER))
    words = b'{"version": 2}'
    files["new.plrec"] = encode_record(RecordKind.HEAD, 0, words)
    [found] = answer(files)
    assert found.seen.files_skipped == 1
    assert any("new.plrec" in note and "upgrade" in note for note in found.seen.notes)


def test_a_missing_file_blames_nobody_on_that_node(answer: Answer) -> None:
    files = {
        name: content for name, content in contents(FaultKind.MISSING_ENTER).items() if "node-00000" in name
    }
    [found] = answer(files)
    assert not {root.rank for root in found.roots} & {0, 1, 2, 3}
    assert found.confidence < 0.9


def test_two_attempts_in_one_folder(answer: Answer) -> None:
    first = contents(FaultKind.MISSING_ENTER)
    second = contents(None, "a2", 1.8e9 + 600, seconds=20)
    both = answer({**first, **second})
    assert [found.verdict_class for found in both] == [VerdictClass.H1, VerdictClass.NONE]
    assert [(found.attempt, found.attempts) for found in both] == [(0, 2), (1, 2)]
    assert [root.rank for root in both[0].roots] == [GUILTY]


def test_one_file_that_two_attempts_share(answer: Answer) -> None:
    shared: Contents = {}
    second = contents(FaultKind.SIZE, "a2", 1.8e9 + 600)
    for node in ("node-00000", "node-00001"):
        begin = head(node, f"{node}-a2")
        name = f"paceline-{node}-a1.000000.plrec"
        more = second[f"paceline-{node}-a2.000000.plrec"].removeprefix(begin)
        shared[name] = contents(FaultKind.MISSING_ENTER)[name] + more
    both = answer(shared)
    assert [found.verdict_class for found in both] == [VerdictClass.H1, VerdictClass.H2]


@pytest.mark.parametrize("ahead_s", [-90, 600])
def test_a_clock_that_is_wrong_makes_no_node_silent(answer: Answer, ahead_s: int) -> None:
    files = dict(contents(FaultKind.MISSING_ENTER, seconds=40))
    name = "paceline-node-00000-a1.000000.plrec"
    records = scan_records(files[name])
    files[name] = b"".join(
        encode_record(
            RecordKind(each.kind),
            max(each.time_ns + ahead_s * 10**9, 0),
            files[name][each.offset :][: each.size],
        )
        for each in records
    )
    [found] = answer(files)
    assert found.verdict_class is VerdictClass.H1
    assert [root.rank for root in found.roots] == [GUILTY]
    assert any(f"its clock is {abs(ahead_s)} s" in note for note in found.seen.notes)  # of two, either


def test_recorders_that_share_a_node(answer: Answer) -> None:
    """One wrapper for each rank: files of one node, each with one of its ranks."""
    job = FleetJob(
        Topology(2, 1, 4, ranks_per_node=1),
        Profile.named(ProfileName.KERNELS),
        faults=(Fault(FaultKind.MISSING_ENTER, GUILTY, CommKind.WORLD, AT_S),),
        job="job",
    )
    parts = {f"node-{rank:05d}": [head("host", f"host-{rank}")] for rank in range(8)}
    for second in range(HANG_S):
        batches = job.batches(second)
        for at_s, _, event in job.events(second):
            node = event.node if isinstance(event, NodeRecord) else "node-00000"
            moved = replace(event, node="host") if isinstance(event, NodeRecord) else event
            parts[node].append(event_record(moved, int((job.start_unix_s + at_s) * 1e9)))
        for _, batch in batches:
            record = batch_record(replace(batch, node="host"), batch.sampled_unix_ns)
            parts[batch.node].append(record)
    [found] = answer({f"{node}.plrec": b"".join(records) for node, records in parts.items()})
    assert [root.rank for root in found.roots] == [GUILTY]
    assert found.roots[0].node == "host"
    assert found.seen.ranks_reporting == 8


def test_logs_beside_it_say_why(answer: Answer, tmp_path: Path) -> None:
    trace = (
        f"[rank{GUILTY}]: Traceback (most recent call last):\n"
        f'[rank{GUILTY}]:   File "/srv/train.py", line 40, in <module>\n'
        f"[rank{GUILTY}]:     loss = step(batch)\n"
        f"[rank{GUILTY}]: ValueError: bad batch\n"
        "[rank0]: RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by "
        "peer [10.0.0.5]:31001\n"
    )
    (tmp_path / "job.log").write_text(trace)
    [found] = answer(contents(FaultKind.DEAD_PROCESS))
    assert found.verdict_class is VerdictClass.DEAD_PROCESS
    assert [root.rank for root in found.roots] == [GUILTY]
    assert "bad batch" in found.summary
    assert {origin.file for ground in found.grounds for origin in ground.origins} >= {"job.log"}


def test_out_of_an_archive(tmp_path: Path) -> None:
    for name, content in contents(FaultKind.MISSING_ENTER).items():
        (tmp_path / name).write_bytes(content)
    with tarfile.open(tmp_path / "all.tar.gz", "w:gz") as archive:
        for path in sorted(tmp_path.glob("*.plrec")):
            archive.add(path, path.name)
    [found] = diagnose([str(tmp_path / "all.tar.gz")])
    assert [root.rank for root in found.roots] == [GUILTY]


def early(seconds: int) -> Contents:
    """A job that counts no steps yet stands still from its first rounds on."""
    job = FleetJob(
        Topology(1, 1, 8, ranks_per_node=4),
        Profile.named(ProfileName.GLOO),
        faults=(Fault(FaultKind.MISSING_ENTER, GUILTY, CommKind.WORLD, 0.0),),
        job="job",
    )
    return node_contents(job, seconds, "-a1")


def test_a_wait_in_the_first_steps_needs_time(answer: Answer) -> None:
    [short] = answer(early(20))
    assert short.verdict_class is VerdictClass.INCONCLUSIVE
    assert short.roots == ()
    assert f"rank {GUILTY} never entered" in short.summary
    assert short.would_decide == ("a recording of at least 30 s of the wait",)
    [longer] = answer(early(50))
    assert longer.verdict_class is VerdictClass.H1
    assert [root.rank for root in longer.roots] == [GUILTY]


def test_a_slow_job_that_is_cut_inside_a_round_does_not_stand_still(answer: Answer) -> None:
    [found] = answer(contents(FaultKind.LATE_RANK, seconds=52))
    assert found.verdict_class in (VerdictClass.NONE, VerdictClass.S1, VerdictClass.INCONCLUSIVE)


@pytest.mark.parametrize("seed", range(4))
def test_rows_of_random_bytes_raise_nothing(answer: Answer, seed: int) -> None:
    draw = np.random.default_rng(seed)
    records = [head("n", "n")]
    for second in range(20):
        rows = {}
        for kind in (RowKind.PROCESS, RowKind.STATE, RowKind.ROUND, RowKind.EDGE, RowKind.PEER):
            dtype = ROW_DTYPES[kind]
            rows[kind] = np.frombuffer(draw.bytes(8 * dtype.itemsize), dtype).copy()
            rows[kind]["rank"] = draw.integers(0, 8 if seed % 2 else 1 << 32, 8)
        at_ns = (1_800_000_000 + second) * 10**9
        batch = Batch(BatchKind.FRAMES, "job", "a1", "n", 0, 1, second + 1, at_ns, at_ns, rows)
        records.append(batch_record(batch, at_ns))
    [found] = answer({"n.plrec": b"".join(records)})
    assert found.seen.notes == ("cut, or still recording: n",)


def test_samples_of_one_moment_are_taken_in_pieces(answer: Answer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small file may hold a thousand times its size, all of one second."""
    taken: list[int] = []
    real = Replay.take

    def take(self: Replay, batches: Iterable[tuple[str, Batch]]) -> None:
        held = list(batches)
        taken.append(len(held))
        real(self, held)

    monkeypatch.setattr(Replay, "take", take)
    monkeypatch.setattr(module, "AT_ONCE_BYTES", 1)
    [found] = answer(contents(FaultKind.MISSING_ENTER))
    assert found.verdict_class is VerdictClass.H1
    assert set(taken) == {1}


def test_times_at_both_ends_are_no_failure(answer: Answer) -> None:
    """One recorder dates everything with the beginning of time, the other with its end."""
    files: Contents = {}
    for (name, content), time_ns in zip(
        contents(FaultKind.MISSING_ENTER).items(), (0, 2**64 - 1), strict=True
    ):
        files[name] = b"".join(
            encode_record(record.kind, time_ns, content[record.offset : record.offset + record.size])
            for record in scan_records(content)
        )
    assert len(answer(files)) == 1
