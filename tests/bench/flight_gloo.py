"""Real Flight Recorder dumps: eight gloo ranks, six faults, dumped by torch itself.

    python tests/bench/flight_gloo.py [FAULT ...]

prints what this analysis and torch's fr_trace answer on the same files. torch is imported once; the ranks
of each fault are forked from it.
"""

import contextlib
import importlib
import io
import json
import os
import re
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

os.environ |= {"TORCH_FR_BUFFER_SIZE": "2000", "GLOO_SOCKET_IFNAME": "lo", "TORCH_CPP_LOG_LEVEL": "FATAL"}
os.environ |= {"TORCH_DISABLE_ADDR2LINE": "1", "OMP_NUM_THREADS": "1"}

RANKS = 8
ODD = 5
WARM = 4
DUMP_AFTER_S = 2.0  # all others have waited that long for the odd rank
TIMEOUT_S = 60  # of gloo, beyond the dump
LIMIT_S = 150  # for one fault, on a busy machine
PREFIX = "rank_"


def main() -> None:
    as_json = "--json" in sys.argv[1:]
    wanted = [word for word in sys.argv[1:] if not word.startswith("-")] or list(FAULTS)
    found = {}
    if not as_json:
        print(f"{'fault':20} {'dumps':6} {'paceline':60} fr_trace")
    for fault in wanted:
        with tempfile.TemporaryDirectory(prefix="paceline-gloo-") as text:
            folder = Path(text)
            hang(fault, folder)
            ours = found[fault] = judge_folder(folder)
            if not as_json:
                count = len(list(folder.iterdir()))
                print(f"{fault:20} {count:<6} {ours.line:60} {ask_fr_trace(folder)}")
                print(f"{'':27} {ours.summary}")
    if as_json:
        print(json.dumps({fault: asdict(answer) for fault, answer in found.items()}))


def _late(dist: Any, torch: Any, rank: int, second: Any) -> None:
    if rank == ODD:
        time.sleep(DUMP_AFTER_S + 5)
    dist.all_reduce(torch.ones(1024))


def _missing(dist: Any, torch: Any, rank: int, second: Any) -> None:
    if rank != ODD:
        dist.all_reduce(torch.ones(1024))


def _operation(dist: Any, torch: Any, rank: int, second: Any) -> None:
    if rank == ODD:
        dist.broadcast(torch.ones(1024), src=ODD - 1)
    dist.all_reduce(torch.ones(1024))


def _size(dist: Any, torch: Any, rank: int, second: Any) -> None:
    dist.all_reduce(torch.ones(1025 if rank == ODD else 1024))


def _order(dist: Any, torch: Any, rank: int, second: Any) -> None:
    for group in (second, None) if rank == ODD else (None, second):
        dist.all_reduce(torch.ones(1024), group=group)


def _killed(dist: Any, torch: Any, rank: int, second: Any) -> None:
    if rank == ODD:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(torch.ones(1024))


FAULTS: dict[str, Callable[[Any, Any, int, Any], None]] = {
    "late": _late,
    "missing": _missing,
    "operation mismatch": _operation,
    "size mismatch": _size,
    "order inversion": _order,
    "killed": _killed,
}


@dataclass(frozen=True)
class Answer:
    """What the analysis says of one folder."""

    verdict_class: str
    sub_reason: str
    ranks: tuple[int, ...]  # of roots that are named as cause
    candidates: tuple[int, ...]  # of roots whose part is not known
    missing: tuple[int, ...]
    summary: str

    @property
    def line(self) -> str:
        return f"{self.verdict_class} {self.sub_reason} ranks {list(self.ranks or self.candidates)}"


def judge_folder(folder: Path) -> Answer:
    """This analysis on all dumps of `folder`."""
    from paceline.analysis.adapters.flight_files import read_files
    from paceline.analysis.diagnosis.flight import read_flight
    from paceline.analysis.diagnosis.flight_verdict import judge_flight
    from paceline.analysis.facts import FlightDump
    from paceline.contracts.verdicts import Role

    found = read_files(sorted(folder.iterdir()))
    report = read_flight(each for each in found if isinstance(each, FlightDump))
    verdict = judge_flight(report).verdict
    named: dict[bool, list[int]] = {True: [], False: []}
    for root in verdict.roots:
        ranks = root.ranks or ((root.rank,) if root.rank is not None else ())
        named[root.role is Role.INITIATING] += ranks
    return Answer(
        verdict.verdict_class.value,
        verdict.sub_reason.value,
        tuple(sorted(named[True])),
        tuple(sorted(named[False])),
        report.missing,
        verdict.summary,
    )


def ask_fr_trace(folder: Path) -> str:
    """The first ranks that torch's analyser names, or how it failed."""
    from torch.distributed.flight_recorder import fr_trace

    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            fr_trace.main([str(folder), "-p", PREFIX])
    except (Exception, SystemExit) as error:
        return f"{type(error).__name__}: {str(error)[:60]}"
    found = re.search(r"(missing ranks: \{[\d, ]+\}|Culprit rank \d+)", said.getvalue())
    return found[1] if found else "names nobody"


def hang(fault: str, folder: Path) -> None:
    """Eight ranks do what `fault` says; those that are still there dump after DUMP_AFTER_S and end."""
    importlib.import_module("torch.distributed")  # before the forks, so that it is loaded once
    children = []
    with tempfile.TemporaryDirectory(prefix="paceline-gloo-store-") as meeting:
        for rank in range(RANKS):
            child = os.fork()
            if child == 0:
                _run_rank(fault, folder, rank, Path(meeting, "store"))
            children.append(child)
        _wait_for(children)


def _wait_for(children: Sequence[int]) -> None:
    """Reap the ranks; after LIMIT_S they are killed by number."""
    ends = time.monotonic() + LIMIT_S
    left = set(children)
    while left:
        for child in list(left):
            if os.waitpid(child, os.WNOHANG)[0]:
                left.discard(child)
        if time.monotonic() > ends:
            for child in left:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
            return
        time.sleep(0.05)


def _run_rank(fault: str, folder: Path, rank: int, meeting: Path) -> None:
    import torch.distributed

    dist: Any = torch.distributed
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - until the process ends
    try:
        limit = timedelta(seconds=TIMEOUT_S)
        # No TCPStore: its server is a thread of the process that forks, and clients hang after a fork.
        store = dist.FileStore(str(meeting), RANKS)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS, timeout=limit)
        second = dist.new_group(list(range(RANKS)), timeout=limit)
        for _ in range(WARM):
            dist.all_reduce(torch.ones(64))
            dist.all_reduce(torch.ones(16), group=second)
        dist.barrier()
        threading.Thread(target=_dump_later, args=(folder, rank), daemon=True).start()
        with contextlib.suppress(RuntimeError):
            FAULTS[fault](dist, torch, rank, second)
        time.sleep(LIMIT_S)
    finally:
        os._exit(1)


def _dump_later(folder: Path, rank: int) -> None:
    import torch

    time.sleep(DUMP_AFTER_S)
    recorder: Any = torch._C
    content = recorder._distributed_c10d._dump_fr_trace(True, False, False)
    (folder / f"{PREFIX}{rank}.part").write_bytes(content)
    (folder / f"{PREFIX}{rank}.part").rename(folder / f"{PREFIX}{rank}")
    time.sleep(DUMP_AFTER_S)  # others may wait for this rank's sockets while they dump
    os._exit(0)


if __name__ == "__main__":
    main()
