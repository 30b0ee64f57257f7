"""A few seconds of what `python -m tests.fuzz_adapters` does for minutes, and lines that once were slow."""

import random
import time

import pytest

from paceline.analysis.adapters.catalog import ADAPTERS
from paceline.analysis.adapters.model import Block, LineAdapter
from paceline.analysis.adapters.prefixes import read_line
from paceline.analysis.facts import Origin, Speaker
from tests.fuzz_adapters import (
    GROWTH_BYTES_MAX,
    Findings,
    document_seeds,
    fuzz_documents,
    fuzz_lines,
    kept_bytes,
    line_seeds,
    try_block,
)

SECONDS = 1.2  # of processor time for each kind


def _for_a_while() -> float:
    return time.process_time() + SECONDS


def test_mutated_lines_never_raise_and_end_in_time() -> None:
    findings, ends = Findings(), _for_a_while()
    fuzz_lines(random.Random(20), line_seeds(), lambda: time.process_time() > ends, findings)
    assert not findings.wrong, "\n".join(findings.wrong)
    assert findings.lines > 50
    assert findings.facts > 10  # the mutations leave enough that is read


def test_mutated_documents_never_raise_and_end_in_time() -> None:
    findings, ends = Findings(), _for_a_while()
    fuzz_documents(random.Random(21), document_seeds(), lambda: time.process_time() > ends, findings)
    assert not findings.wrong, "\n".join(findings.wrong)
    assert findings.documents > 50
    assert findings.facts > 10


@pytest.mark.parametrize("adapter", tuple(ADAPTERS.lines), ids=lambda adapter: adapter.name)
def test_an_adapter_keeps_nothing_of_what_it_has_read(adapter: LineAdapter) -> None:
    seeds = [seed for seed in line_seeds() if any(needle in seed for needle in adapter.needles)]
    assert kept_bytes(adapter, random.Random(22), seeds, lines=60) < GROWTH_BYTES_MAX


@pytest.mark.parametrize(
    "text",
    [
        "monitoredBarrier " + "Rank 1 Ranks 1, " * 4000,
        "[rank" + "9" * 60_000 + "]: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1",
        "node-b:" + "7" * 60_000 + ":1 [0] NCCL INFO",
        "a" + " " * 60_000 + "[repeated 6x across cluster",
        "NCCL WARN NET/IB : Got completion from peer 10.1.0.9<" + "4" * 60_000,
        "WorkNCCL(" + "[" * 60_000 + "timed out",
        "Detected mismatch between collectives on ranks. " + "Rank 1 is running " * 3000,
        "tasks not at the barrier: " + "0-99999999," * 4000,
    ],
    ids=lambda text: text[:24],
)
def test_lines_that_once_were_slow_or_raised(text: str) -> None:
    findings = Findings()
    line = read_line(text[:65_536], Origin("one.log", 1), Speaker(), 2026)
    try_block(Block(line, [line] * 64), findings)
    assert not findings.wrong, "\n".join(findings.wrong)
