"""Folders of Flight Recorder dumps of one hung job, byte for byte in the form that torch writes.

A job of data-, tensor- and world-parallel groups, 2,000 newest entries of each rank with Python stacks. One
rank never makes its last call in its tensor group: its group waits in that call, all others in the world's
call behind it. Entries are made once for each kind of rank; every rank has its own times and thread number.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

TENSOR = 8
PREFIX = "rank_"
STEP_CALLS = 40  # tensor calls of one step, before two data calls and one of the world
_START_NS = 1_790_000_000_000_000_000
_SITE = "/opt/venv/lib/python3.12/site-packages/"
_MODULES = {
    "tensor_parallel/layers": 961, "transformer/attention": 733, "transformer/transformer_layer": 438,
    "transformer/transformer_block": 549, "models/gpt/gpt_model": 265, "distributed/data_parallel": 22,
    "transformer/module": 178, "pipeline_parallel/schedules": 275, "pipeline_parallel/loop": 446,
}  # fmt: skip
_SHARED_STACK = [
    (f"{_SITE}torch/distributed/distributed_c10d.py", "wrapper", 3105),
    (f"{_SITE}torch/distributed/c10d_logger.py", "inner", 83),
    (f"{_SITE}torch/nn/modules/module.py", "_call_impl", 1784),
    (f"{_SITE}torch/nn/modules/module.py", "_wrapped_call_impl", 1773),
    *[(f"{_SITE}megatron/core/{name}.py", "forward", line) for name, line in _MODULES.items()],
    (f"{_SITE}megatron/training/training.py", "train_step", 1256),
    (f"{_SITE}megatron/training/training.py", "train", 2155),
    (f"{_SITE}megatron/training/training.py", "pretrain", 794),
    ("/workspace/pretrain_gpt.py", "<module>", 312),
]


class Stamp(int):
    """A number of eight bytes that differs in every dump."""


class Thread(str):
    """A word of a fixed length that differs in every dump."""


@dataclass
class TorchPickler:
    """What torch's C++ pickler writes: protocol 2, words by memo, dictionaries by memo where shared."""

    out: bytearray = field(default_factory=bytearray)
    memo: dict[Any, int] = field(default_factory=dict)
    stamps: list[int] = field(default_factory=list)  # where eight bytes of a `Stamp` stand
    threads: list[int] = field(default_factory=list)
    shared: frozenset[int] = frozenset()  # identities of dictionaries that occur more than once

    def put(self, value: Any) -> None:
        out = self.out
        if value is None or isinstance(value, bool):
            out += {None: b"N", True: b"\x88", False: b"\x89"}[value]
        elif isinstance(value, int):
            self._put_number(value)
        elif isinstance(value, str):
            self._put_word(value)
        elif isinstance(value, tuple):
            for part in value:
                self.put(part)
            out += b"\x86"
        elif isinstance(value, list):
            out += b"]("
            for part in value:
                self.put(part)
            out += b"e"
        elif id(value) in self.memo:
            self._put_memo(b"h", b"j", self.memo[id(value)])
        else:
            out += b"}("
            for key, part in value.items():
                self.put(key)
                self.put(part)
            out += b"u"
            if id(value) in self.shared:
                self._remember(id(value))

    def _put_number(self, value: int) -> None:
        if isinstance(value, Stamp):
            self.stamps.append(len(self.out) + 2)
        if 0 <= value < 1 << 8:
            self.out += b"K" + value.to_bytes(1, "little")
        elif 0 <= value < 1 << 16:
            self.out += b"M" + value.to_bytes(2, "little")
        elif -(1 << 31) <= value < 1 << 31:
            self.out += b"J" + value.to_bytes(4, "little", signed=True)
        else:
            self.out += b"\x8a\x08" + value.to_bytes(8, "little", signed=True)

    def _put_word(self, value: str) -> None:
        if value in self.memo:
            self._put_memo(b"h", b"j", self.memo[value])
            return
        text = value.encode()
        if isinstance(value, Thread):
            self.threads.append(len(self.out) + 5)
        self.out += b"X" + len(text).to_bytes(4, "little") + text
        self._remember(value)

    def _remember(self, key: Any) -> None:
        self.memo[key] = len(self.memo)
        self._put_memo(b"q", b"r", self.memo[key])

    def _put_memo(self, short: bytes, wide: bytes, at: int) -> None:
        self.out += short + at.to_bytes(1, "little") if at < 256 else wide + at.to_bytes(4, "little")


@dataclass(frozen=True)
class Template:
    """Entries of one kind of rank as bytes, and what is changed in them."""

    content: np.ndarray[Any, np.dtype[np.uint8]]
    stamps: np.ndarray[Any, np.dtype[np.int64]]
    times: np.ndarray[Any, np.dtype[np.int64]]
    threads: tuple[int, ...]
    tail: bytes


@dataclass
class DumpSet:
    """A job of `ranks`, of which `odd` did not make its last call."""

    ranks: int
    entries: int
    odd: int
    seed: int = 0
    version: str = "2.10"
    _templates: dict[tuple[Any, ...], Template] = field(default_factory=dict)

    @property
    def calls(self) -> int:
        """Of a rank since its start: whole steps, and more than its ring holds."""
        return (self.entries // STEP_CALLS + 25) * STEP_CALLS

    def write(self, folder: Path) -> int:
        """One file for each rank; bytes written."""
        size = 0
        for rank in range(self.ranks):
            content = self.content(rank)
            (folder / f"{PREFIX}{rank}").write_bytes(content)
            size += len(content)
        return size

    def content(self, rank: int) -> bytes:
        """The dump of one rank."""
        groups = self._groups(rank)
        pickler = TorchPickler()
        self._put_head(pickler, groups, rank)
        kind = 0 if rank == self.odd else 1 if rank // TENSOR == self.odd // TENSOR else 2
        words = tuple(pickler.memo[word] for pair in groups for word in pair)
        template = self._templates.get((kind, len(pickler.memo), words))
        if template is None:
            template = self._templates[kind, len(pickler.memo), words] = self._template(pickler, groups, kind)
        draw = np.random.default_rng((self.seed, rank))
        filled = template.content.copy()
        times = (
            template.times + int(draw.integers(0, 50_000_000)) + draw.integers(0, 90_000, len(template.times))
        )
        for byte in range(8):
            filled[template.stamps + byte] = (times >> (8 * byte)) & 255
        number = f"{140_000_000_000_000 + int(draw.integers(0, 1 << 40)):015}".encode()
        for at in template.threads:
            filled[at : at + len(number)] = np.frombuffer(number, np.uint8)
        return bytes(pickler.out) + filled.tobytes() + template.tail

    def _groups(self, rank: int) -> list[tuple[str, str]]:
        """Names count as torch counts them: the world, then all tensor groups, then all data groups."""
        tensors = (self.ranks + TENSOR - 1) // TENSOR
        return [
            ("0", "default_pg"),
            (str(1 + rank // TENSOR), "TENSOR_MODEL_PARALLEL_GROUP"),
            (str(1 + tensors + rank % TENSOR), "DATA_PARALLEL_GROUP"),
        ]

    def _put_head(self, pickler: TorchPickler, groups: list[tuple[str, str]], rank: int) -> None:
        first = rank // TENSOR * TENSOR
        members: list[range] = [
            range(self.ranks),
            range(first, min(first + TENSOR, self.ranks)),
            range(rank % TENSOR, self.ranks, TENSOR),
        ]
        made = self.calls - (2 if rank == self.odd else 0)
        counts = [0, 0, 0]
        for number in range(made):
            counts[_call(number)[0]] += 1
        library = "comm_lib_version" if self.version == "2.10" else "nccl_version"
        pickler.out += b"\x80\x02}("
        for key, value in {
            "version": self.version,
            "pg_config": {
                name: {"name": name, "desc": description, "ranks": _ranks(who)}
                for (name, description), who in zip(groups, members, strict=True)
            },
            library: "2.27.5",
            "pg_status": {
                str(at): {"last_enqueued_collective": count, "last_started_collective": -1,
                          "last_completed_collective": count - (at == 0 and rank != self.odd)}
                for at, count in enumerate(counts)
            },
        }.items():  # fmt: skip
            pickler.put(key)
            pickler.put(value)
        pickler.put("entries")
        pickler.out += b"]("

    def _template(self, head: TorchPickler, groups: list[tuple[str, str]], kind: int) -> Template:
        """Entries of the odd rank (0), of its tensor group (1), of all others (2)."""
        entries, frames = self._entries(groups, kind)
        pickler = TorchPickler(memo=dict(head.memo), shared=frozenset(map(id, frames)))
        for entry in entries:
            pickler.put(entry)
        content, at = np.frombuffer(bytes(pickler.out), np.uint8), len(pickler.out)
        pickler.out += b"eu"
        pickler._remember("")  # torch puts the outermost dictionary into the memo as well
        stamps = np.array(pickler.stamps, np.int64)
        times = np.array(
            [int.from_bytes(pickler.out[at : at + 8], "little") for at in pickler.stamps], np.int64
        )
        return Template(content, stamps, times, tuple(pickler.threads), bytes(pickler.out[at:]) + b".")

    def _entries(self, groups: list[tuple[str, str]], kind: int) -> tuple[list[dict[str, Any]], list[Any]]:
        frames: dict[tuple[str, str, int], dict[str, Any]] = {}
        last = self.calls - (2 if kind == 0 else 0)
        counts = [0, 0, 0]
        made = []
        for number in range(last):
            group, function, sizes = _call(number)
            counts[group] += 1
            if number < last - self.entries:
                continue
            stack = [] if number % 3 == 2 else _stack(frames, function, number % 4)
            done = kind == 0 or number < last - (2 if kind == 1 else 1)
            made.append(_entry(number, counts[group], group, groups[group], function, sizes, stack, done))
        return made, list(frames.values())


def _call(number: int) -> tuple[int, str, tuple[list[int], list[int]]]:
    """Group, function and sizes of call `number`; the last but one of every step is a tensor call."""
    at = number % STEP_CALLS
    small, big = [4096, 1, 5120], [4096 * TENSOR, 1, 5120]
    if at == STEP_CALLS - 1:
        return 0, "nccl:all_reduce", ([1], [1])
    if at in (STEP_CALLS - 3, STEP_CALLS - 4):
        return 2, "nccl:all_reduce", ([25_000_000 + at], [25_000_000 + at])
    if at % 2:
        return 1, "nccl:_all_gather_base", (small, big)
    return 1, "nccl:_reduce_scatter_base", (big, small)


def _stack(
    frames: dict[tuple[str, str, int], dict[str, Any]], function: str, site: int
) -> list[dict[str, Any]]:
    """Frames of one place in the program; equal ones are one object, as torch keeps them."""
    own = [(f"{_SITE}torch/distributed/distributed_c10d.py", function[5:], 4000 + site)]
    layers = [(f"{_SITE}megatron/core/tensor_parallel/mappings.py", "apply", 100 + site)]
    found = []
    for frame in own + _SHARED_STACK[:2] + layers + _SHARED_STACK[2:]:
        file, name, line = frame
        found.append(frames.setdefault(frame, {"name": name, "filename": file, "line": line}))
    return found


def _entry(
    number: int, sequence: int, group: int, pair: tuple[str, str], function: str,
    sizes: tuple[list[int], list[int]], stack: list[dict[str, Any]], done: bool,
) -> dict[str, Any]:  # fmt: skip
    created = _START_NS + number * 3_000_000
    return {
        "frames": stack, "record_id": number, "pg_id": group, "process_group": pair,
        "thread_name": "pt_main_thread", "thread_id": Thread("140100120005504"),
        "collective_seq_id": sequence, "p2p_seq_id": 0, "op_id": sequence,
        "profiling_name": function, "time_created_ns": Stamp(created), "input_sizes": [sizes[0]],
        "input_dtypes": ["BFloat16"], "output_sizes": [sizes[1]], "output_dtypes": ["BFloat16"],
        "state": "completed" if done else "scheduled", "time_discovered_started_ns": None,
        "time_discovered_completed_ns": Stamp(created + 2_000_000) if done else None, "retired": done,
        "timeout_ms": 600_000, "is_p2p": False,
    }  # fmt: skip


def _ranks(members: range) -> str:
    return "[" + ", ".join(map(str, members)) + "]"


def draw_odd(ranks: int, seed: int) -> int:
    return random.Random(seed).randrange(ranks)


def shared_dictionaries(record: dict[str, Any]) -> Iterator[int]:
    """Identities of the frames that more than one place of a loaded dump refers to."""
    seen: set[int] = set()
    for entry in record["entries"]:
        for frame in entry.get("frames", ()):
            if id(frame) in seen:
                yield id(frame)
            seen.add(id(frame))
