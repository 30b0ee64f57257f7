"""Mutated inputs for every adapter of the catalog: `python -m tests.fuzz_adapters --minutes 10 [--seed N]`.

An adapter must not raise (a document adapter may raise `UnusableInput`), must not take longer than the bound
for a bounded input, must not give facts without end, and must not keep what it has read. Inputs are the
incidents, lines made of the adapters' own needles, and both after mutations that hurt parsers: cuts, splices,
huge numbers, and parts repeated until a line has 64 kB.
"""

import argparse
import json
import pickle
import random
import re
import signal
import sys
import time
import traceback
import tracemalloc
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from paceline.analysis.adapters.catalog import ADAPTERS
from paceline.analysis.adapters.model import (
    LINE_CHARS_MAX,
    LOOKAHEAD_LINES,
    Block,
    Document,
    DocumentAdapter,
    LineAdapter,
    UnusableInput,
)
from paceline.analysis.adapters.prefixes import read_line
from paceline.analysis.facts import Fact, Origin, Speaker
from paceline.contracts.batch import Batch, BatchKind, encode_batch
from paceline.contracts.recording import RecordKind, encode_record

CASES = Path(__file__).parent / "incidents" / "cases"
# Processor time for a line of 64 kB and its look-ahead: up to 1.1 s where both cores are busy; a quadratic
# search takes many times that.
LINE_SECONDS_MAX = 2.0
DOCUMENT_SECONDS_MAX = 5.0  # for 1 MiB
STOP_SECONDS = 4.0  # an exponential search is ended here
DOCUMENT_BYTES = 1 << 20
FACTS_PER_LINE_MAX = 5_000
GROWTH_BYTES_MAX = 400_000  # kept by one adapter after as many lines again
_BITS: tuple[str, ...] = (
    *" \ta09-()[]{}<>\"',:;=./\\%#|\x00\ré" + "\u2028",
    "9" * 400,
    "-1",
    "\x1b[0m",
    "NaN",
    "Infinity",
    "1e999",
    "null",
    "[[",
    "{{",
    "Rank ",
    "rank=",
    "0x",
    "ffff:ff:ff.f",
    "): ",
    " - ",
    "...",
    "true",
)


class TookTooLong(Exception):
    pass


@dataclass
class Findings:
    """What was tried and what went wrong; the first of each kind with its input."""

    lines: int = 0
    documents: int = 0
    facts: int = 0
    slowest: tuple[float, str] = (0.0, "")
    wrong: list[str] = field(default_factory=list)
    told: dict[str, int] = field(default_factory=dict)

    def add(self, what: str, adapter: str, sample: str | bytes) -> None:
        kind = f"{adapter} {re.sub(r'[0-9.]+', '', what)[:120]}"
        self.told[kind] = self.told.get(kind, 0) + 1
        if self.told[kind] <= 3 and len(self.wrong) < 40:
            self.wrong.append(f"{adapter}: {what}\n    {sample[:300]!r} ({len(sample)} long)")


def line_seeds() -> list[str]:
    """Lines of the incidents, each shape once, and the needles of every adapter."""
    shapes: dict[str, str] = {}
    for path in sorted(CASES.rglob("*")):
        if path.suffix in (".log", ".txt", ".out", ".jsonl"):
            for line in path.read_text("utf-8", "replace").splitlines():
                shape = "".join(character for character in line if not character.isdigit())[:200]
                shapes.setdefault(shape, line)
    needles = [needle for adapter in ADAPTERS.lines for needle in adapter.needles]
    return [*shapes.values(), *needles]


def _recording() -> bytes:
    batch = Batch(BatchKind.FRAMES, "job", "a1", "n1", 0, 1, 1, 1, 1)
    head = json.dumps({"version": 1, "recorder": "r", "node": "n1", "segment": 0}).encode()
    event = json.dumps({"type": "dev.paceline.job.node_recorded.v1", "value": {"job": "job"}}).encode()
    payloads = [
        (RecordKind.HEAD, head),
        (RecordKind.EVENT, event),
        (RecordKind.BATCH, zlib.compress(encode_batch(batch))),
    ]
    return b"".join(encode_record(kind, 1, payload) for kind, payload in payloads)


def document_seeds() -> list[bytes]:
    """Documents of the incidents that any adapter recognises, and a small dump as a pickle."""
    seeds = [path.read_bytes() for path in sorted(CASES.rglob("*.json")) if path.stat().st_size < 65_536]
    seeds += [json.dumps(json.loads(seed)).encode() for seed in seeds[:20]]
    entry = {
        "record_id": 0, "pg_id": 0, "process_group": ("0", "default_pg"), "collective_seq_id": 1,
        "p2p_seq_id": 0,
        "op_id": 1, "profiling_name": "nccl:all_reduce", "time_created_ns": 5, "input_sizes": [[4]],
        "output_sizes": [[4]], "input_dtypes": ["Float"], "output_dtypes": ["Float"], "state": "completed",
        "time_discovered_started_ns": None, "time_discovered_completed_ns": 9, "retired": True,
        "timeout_ms": 600000,
        "is_p2p": False, "frames": [],
    }  # fmt: skip
    dump = {
        "version": "2.10",
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}},
        "pg_status": {
            "0": {"last_enqueued_collective": 1, "last_started_collective": 1, "last_completed_collective": 1}
        },
        "entries": [entry, {**entry, "collective_seq_id": 2, "state": "started"}],
    }
    seeds += [pickle.dumps(dump, protocol) for protocol in (2, 4)]
    seeds.append(_recording())
    operation = {"coll": "AllReduce", "coll_sn": 7, "coll_exec_time_us": 10, "coll_msg_size_bytes": 8}
    header = {"id": "0x7f8c496ae9f661", "rank": 0, "n_ranks": 8}
    seeds.append(
        json.dumps({"header": header, "metadata": {"hostname": "h"}, "coll_perf": operation}).encode()
    )
    comma = {"cat": "COLL", "ph": "X", "comm_hash": "0x1", "rank": 0, "seq_num": 4, "dur": 9}
    seeds.append(json.dumps({**comma, "name": "all_reduce", "args": {"size": 4}}).encode())
    kinds = {adapter.name: 0 for adapter in ADAPTERS.documents}
    chosen: list[bytes] = []
    for seed in seeds:  # a few for each kind, so that every adapter has its share
        found = next((a.name for a in ADAPTERS.documents if a.recognise(Document("x", seed))), "")
        if not found or kinds[found] < 6:
            kinds[found] = kinds.get(found, 0) + 1
            chosen.append(seed)
    return chosen


def mutated(rng: random.Random, text: str, others: Sequence[str]) -> str:
    """`text` after one to four mutations, at most 64 kB long."""
    for _ in range(rng.randint(1, 4)):
        text = rng.choice(_MUTATIONS)(rng, text, others)[:LINE_CHARS_MAX]
    return text


def _cut(rng: random.Random, text: str, others: Sequence[str]) -> str:
    at, end = sorted((rng.randint(0, len(text)), rng.randint(0, len(text))))
    return text[:at] + text[end:]


def _insert(rng: random.Random, text: str, others: Sequence[str]) -> str:
    at = rng.randint(0, len(text))
    return text[:at] + rng.choice(_BITS) * rng.choice((1, 1, 1, 2, 50)) + text[at:]


def _splice(rng: random.Random, text: str, others: Sequence[str]) -> str:
    other = rng.choice(others)
    return text[: rng.randint(0, len(text))] + other[rng.randint(0, len(other)) :]


def _number(rng: random.Random, text: str, others: Sequence[str]) -> str:
    places = [at for at, character in enumerate(text[:5000]) if character.isdigit()]
    if not places:
        return _insert(rng, text, others)
    at = rng.choice(places)
    return (
        text[:at] + rng.choice(("", "-5", "9" * 30, "9" * 5000, "0", "1.5", "x", "٣", "²")) + text[at + 1 :]
    )


def pumped(rng: random.Random, text: str, others: Sequence[str] = ()) -> str:
    """A part of the line again and again: what makes a search without bounds slow."""
    at = rng.randint(0, len(text))
    part = text[at : at + rng.choice((1, 1, 2, 3, 8, 20))] or rng.choice(_BITS)
    if rng.random() < 0.3:
        part = rng.choice(_BITS)
    return (text[:at] + part * (LINE_CHARS_MAX // max(1, len(part))))[: LINE_CHARS_MAX - 20] + text[
        at : at + 20
    ]


def _flip(rng: random.Random, text: str, others: Sequence[str]) -> str:
    at = rng.randint(0, max(0, len(text) - 1))
    return text[:at] + chr(rng.choice((0, 9, 34, 40, 58, 91, 127, 233, 0x2028, 0xFFFD))) + text[at + 1 :]


_MUTATIONS: tuple[Callable[[random.Random, str, Sequence[str]], str], ...] = (
    _cut, _insert, _insert, _splice, _splice, _number, _number, _flip,
)  # fmt: skip


def fuzz_lines(
    rng: random.Random, seeds: Sequence[str], until: Callable[[], bool], findings: Findings
) -> None:
    """Blocks of mutated lines, each offered to every adapter."""
    number = 0
    while not until():
        texts = [rng.choice(seeds) for _ in range(rng.choice((1, 4, 12, LOOKAHEAD_LINES + 1)))]
        texts = [mutated(rng, text, seeds) if rng.random() < 0.6 else text for text in texts]
        if rng.random() < 0.25:
            texts[0] = pumped(rng, texts[0])
        if rng.random() < 0.03:  # a log of one very long line after the other
            texts = [pumped(rng, text) for text in texts]
        lines = []
        for text in texts:
            number += 1
            origin = Origin(f"f{number // 4000}.log", number)
            with _limited(findings, "prefixes", text, LINE_SECONDS_MAX):
                lines.append(read_line(text, origin, Speaker(), 2026))
        if lines:
            try_block(Block(lines[0], lines[1 : LOOKAHEAD_LINES + 1]), findings)


def try_block(
    block: Block, findings: Findings, adapters: Sequence[LineAdapter] = tuple(ADAPTERS.lines)
) -> None:
    findings.lines += 1
    for adapter in adapters:
        if not any(needle in block.line.text for needle in adapter.needles):
            continue  # never offered
        with _limited(findings, adapter.name, block.line.text, LINE_SECONDS_MAX):
            _take(adapter.name, adapter.read(block), findings, block.line.text)


def fuzz_documents(
    rng: random.Random, seeds: Sequence[bytes], until: Callable[[], bool], findings: Findings
) -> None:
    """Mutated documents, read by every adapter that takes them for its own."""
    words = [seed.decode("latin-1") for seed in seeds]
    while not until():
        text = rng.choice(words)
        for _ in range(rng.randint(0, 3)):
            text = rng.choice(_MUTATIONS)(rng, text, words)
        if rng.random() < 0.1:
            at = rng.randint(0, len(text))
            text = text[:at] + text[at : at + rng.choice((1, 9, 40, 300))] * rng.choice((10, 500)) + text[at:]
        content = text[:DOCUMENT_BYTES].encode("latin-1", "replace")
        findings.documents += 1
        for adapter in ADAPTERS.documents:
            try_document(adapter, Document("dump_rank_3.json", content), findings)


def try_document(adapter: DocumentAdapter, document: Document, findings: Findings) -> None:
    with _limited(findings, adapter.name, document.content, DOCUMENT_SECONDS_MAX):
        try:
            if adapter.recognise(document):
                _take(adapter.name, adapter.read(document), findings, document.content)
        except UnusableInput as error:
            if document.name not in str(error):
                findings.add(f"refused without saying which input: {error}", adapter.name, document.content)


def _take(name: str, facts: Iterator[Fact], findings: Findings, sample: str | bytes) -> None:
    count = 0
    for fact in facts:
        count += 1
        if not isinstance(fact, Fact):
            findings.add(f"gives {type(fact).__name__}, no fact", name, sample)
        if isinstance(sample, str) and count > FACTS_PER_LINE_MAX:
            findings.add(f"more than {FACTS_PER_LINE_MAX} facts of one line", name, sample)
            break
    findings.facts += count


class _limited:
    """Notes what raises or takes longer than the bound; ends what takes far longer."""

    def __init__(self, findings: Findings, name: str, sample: str | bytes, bound_s: float) -> None:
        self._findings, self._name, self._sample, self._bound_s = findings, name, sample, bound_s

    def __enter__(self) -> None:
        signal.signal(signal.SIGVTALRM, _too_long)
        signal.setitimer(signal.ITIMER_VIRTUAL, STOP_SECONDS)
        self._began = time.thread_time()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        took = time.thread_time() - self._began
        if took > self._findings.slowest[0]:
            self._findings.slowest = (took, f"{self._name}: {self._sample[:120]!r}")
        if took > self._bound_s:
            self._findings.add(f"took {took:.2f} s", self._name, self._sample)
        if kind is not None and issubclass(kind, Exception) and kind is not TookTooLong:
            where = traceback.format_exception(error)[-2:]
            self._findings.add(" ".join("".join(where).split()), self._name, self._sample)
        return kind is not None and issubclass(kind, Exception)


def _too_long(number: int, frame: object) -> None:
    raise TookTooLong


def kept_bytes(adapter: LineAdapter, rng: random.Random, seeds: Sequence[str], lines: int) -> int:
    """Memory that the adapter keeps for `lines` more lines of one log after as many before."""
    sizes: list[int] = []
    tracemalloc.start()
    try:
        for half in range(2):
            for index in range(lines):
                text = mutated(rng, rng.choice(seeds), seeds)[:2000] + rng.choice(adapter.needles)
                line = read_line(text, Origin("one.log", half * lines + index + 1), Speaker(), 2026)
                for _ in adapter.read(Block(line, ())):
                    pass
            sizes.append(sum(trace.size for trace in _own(tracemalloc.take_snapshot())))
    finally:
        tracemalloc.stop()
    return sizes[1] - sizes[0]


def _own(snapshot: tracemalloc.Snapshot) -> list[tracemalloc.Statistic]:
    only = (tracemalloc.Filter(True, "*/paceline/analysis/*"),)
    return snapshot.filter_traces(only).statistics("filename")


def _at(when: float) -> Callable[[], bool]:
    return lambda: time.monotonic() >= when


def main() -> int:
    parser = argparse.ArgumentParser(description="Fuzz every adapter of `paceline diagnose`.")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    rng, findings = random.Random(options.seed), Findings()
    ends = time.monotonic() + options.minutes * 60
    lines, documents = line_seeds(), document_seeds()
    while time.monotonic() < ends and len(findings.wrong) < 40:
        fuzz_lines(rng, lines, _at(min(ends, time.monotonic() + 5.0)), findings)
        fuzz_documents(rng, documents, _at(min(ends, time.monotonic() + 5.0)), findings)
        print(f"{findings.lines} lines, {findings.documents} documents, {findings.facts} facts", flush=True)
    for adapter in ADAPTERS.lines:
        if (kept := kept_bytes(adapter, rng, lines, 2000)) > GROWTH_BYTES_MAX:
            findings.add(f"keeps {kept} bytes more after 2000 lines more", adapter.name, "")
    print(f"slowest: {findings.slowest[0]:.3f} s in {findings.slowest[1]}")
    print("\n".join(findings.wrong) or "nothing wrong")
    return 1 if findings.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
