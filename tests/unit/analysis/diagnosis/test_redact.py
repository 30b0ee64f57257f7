"""Nothing of hosts, users, paths and addresses remains in what is written."""

import io
import json
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from paceline.analysis.diagnosis.answer import Blame, Diagnosis, Ground
from paceline.analysis.diagnosis.html import make_page
from paceline.analysis.diagnosis.picture import make_picture, redacted
from paceline.analysis.diagnosis.redact import Redactor
from paceline.analysis.diagnosis.text import Answer
from paceline.analysis.diagnosis.trace import write_trace
from paceline.analysis.facts import Fact, Origin, ProcessFault, ProcessFaultKind, Speaker
from paceline.contracts.verdicts import RootKind
from tests.unit.analysis.diagnosis.example_answers import START_S, example_diagnosis, example_facts

LETTERS = "bcdfghkmvwxz"
WORD = st.text(LETTERS, min_size=4, max_size=8)


@dataclass(frozen=True)
class Secrets:
    host: str
    domain: str
    user: str
    folder: str
    v4: str
    v6: str

    @property
    def originals(self) -> tuple[str, ...]:
        return (self.host, self.domain, self.user, self.folder, self.v4, self.v6)


@st.composite
def secrets(draw: st.DrawFn) -> Secrets:
    octets = st.integers(10, 250)
    return Secrets(
        host=f"{draw(WORD)}-{draw(st.integers(1, 9999))}",
        domain=f"{draw(WORD)}q.{draw(WORD)}z",
        user=f"{draw(WORD)}j",
        folder=f"{draw(WORD)}y",
        v4=".".join(str(draw(octets)) for _ in range(4)),
        v6=f"fd{draw(st.integers(10, 99))}:{draw(octets):x}::{draw(octets):x}:{draw(octets):x}",
    )


def sentences(names: Secrets) -> list[str]:
    full = f"{names.host}.{names.domain}"
    home = f"/home/{names.user}/{names.folder}"
    return [
        f"rank 3 on {names.host} (also {full}) of {names.user} failed",
        f"{names.user}@{full}: read {home}/train.py:12, then ../{names.folder}/data.json",
        f"connect to {names.v4}:29500 and [{names.v6}]:4242 from {names.v6} timed out",
        f'File "{home}/my code/{names.folder}.py", line 3, in step; tcp://{full}:29500',
        f"MASTER_ADDR={full} saw {names.host.upper()} and {names.folder}/sub/rank_3.log",
    ]


def answer_with(names: Secrets) -> tuple[Diagnosis, list[Fact]]:
    words = sentences(names)
    place = Origin(f"{names.folder}/{names.host}/rank_3.log", 7)
    root = Blame(RootKind.NODE, node=names.host, name=words[0], why=words[1], gpu="0000:9b:00")
    base = example_diagnosis(8)
    diagnosis = replace(
        base,
        roots=(root,),
        communicator=words[0],
        phase=words[3],
        action=replace(base.action, target=names.host, reason=words[1]),
        seen=replace(base.seen, notes=(f"{place.file}: damaged", *words)),
        grounds=tuple(Ground("rule", text, (place,)) for text in words),
        summary=words[2],
        would_decide=tuple(words),
        export_next={"MASTER_ADDR": names.host, "TORCH_FR_DUMP_TEMP_FILE": "/tmp/trace_rank_"},
    )
    faults: list[Fact] = [
        ProcessFault(
            origin=place, speaker=Speaker(rank=3, host=f"{names.host}.{names.domain}"), time_s=START_S,
            kind=ProcessFaultKind.EXCEPTION, text=text, exception="ValueError", frames=(text,),
        )
        for text in words
    ]  # fmt: skip
    return diagnosis, [*example_facts(8), *faults]


def everything_written(diagnosis: Diagnosis, facts: list[Fact], paths: list[str]) -> str:
    redactor = Redactor()
    redactor.learn_all(paths, facts, diagnosis)
    covered = redactor.redact_diagnosis(diagnosis)
    plain = make_picture(covered, facts, lambda fact: fact.speaker.rank)
    picture = redacted(plain, redactor)
    terminal, trace = io.StringIO(), io.StringIO()
    Console(file=terminal, width=2000).print(Answer(covered))
    write_trace(trace, covered, picture)
    as_json = json.dumps(covered.as_json(), ensure_ascii=False)
    return "\n".join([terminal.getvalue(), trace.getvalue(), as_json, make_page(covered, picture)])


@settings(max_examples=25, deadline=None)
@given(secrets())
def test_no_original_remains(names: Secrets) -> None:
    written = everything_written(*answer_with(names), [f"/data/{names.folder}/run"]).lower()
    left = [original for original in names.originals if original.lower() in written]
    assert not left
    for kept in ("host-1", "0000:9b:00", "rank_", "/tmp/trace_rank_", "path-1", "file-"):
        assert kept in written


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("rank 3 of gpu-06641, GPU 0000:9b:00", "rank 3 of gpu-06641, GPU 0000:9b:00"),
        ("on gpu-0664.site.example and GPU-0664", "on host-1 and host-1"),
        ("/opt/lib/python3.11/site-packages/torch/nn/a.py:4", "path-1/torch/nn/a.py:4"),
        ("c10d::ProcessGroupNCCL at 12:34:56, TCP/IP 7/9", "c10d::ProcessGroupNCCL at 12:34:56, TCP/IP 7/9"),
        ("NCCL 2.30.7, PG 0 (default_pg)", "NCCL 2.30.7, PG 0 (default_pg)"),
        ("zoe@login.example", "user-1@host-2"),
        ("logs/3/stderr.log", "file-1.log"),
    ],
)
def test_what_is_covered_and_what_stays(text: str, expected: str) -> None:
    redactor = Redactor()
    redactor.learn_host("gpu-0664")
    redactor.learn_host("gpu-0664.site.example")
    redactor.learn_file("logs/3/stderr.log")
    redactor.cover("on gpu-0664")
    assert redactor.cover(text) == expected


def test_a_host_that_looks_like_a_pseudonym_is_not_confused() -> None:
    redactor = Redactor()
    for host in ("real-7", "host-1"):
        redactor.learn_host(host)
    assert redactor.cover("real-7 host-1") == "host-2 host-3"


def test_ten_thousand_hosts_are_quick() -> None:
    redactor = Redactor()
    for number in range(10_000):
        redactor.learn_host(f"gpu-{number:05d}.site.example")
    text = " and ".join(f"gpu-{number:05d}" for number in range(0, 10_000, 500))
    assert "gpu-" not in redactor.cover(text)


def test_a_host_that_is_a_word_is_covered_where_it_stands_alone() -> None:
    redactor = Redactor()
    for host in ("a", "vm", "on"):
        redactor.learn_host(host)
    assert redactor.cover("a") != "a"
    assert redactor.cover("on") != "on"
    assert redactor.cover("a rank on vm") == "a rank on host-3"
