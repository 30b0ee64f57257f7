"""Flight Recorder dumps of one hung job: `paceline diagnose` against torch's fr_trace on the same files.

    python tests/bench/flight_dumps.py [--ranks 64 128] [--pairs 5] [--entries 2000] [--folder DIR]

A set is a folder as torch writes it (flight_sets.py), one random rank of which did not make its last call.
Both tools are run as users run them, start included, in turns, after one run of each that is not counted;
every answer is checked. Beyond PEER_RANKS_MAX fr_trace is left out, it takes hours. A set is removed after
its run.
"""

import argparse
import json
import os
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.bench.flight_sets import PREFIX, DumpSet, draw_odd

LIMIT_S = 900
PEER_RANKS_MAX = 128
FREE_LEFT = 4 << 30  # bytes of the disk that a set leaves
BIN = Path(sys.executable).parent


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, nargs="+", default=[64, 128])
    parser.add_argument("--entries", type=int, default=2000)
    parser.add_argument("--pairs", type=int, default=5, help="runs of each tool, in turns")
    parser.add_argument("--seed", type=int, default=0, help="which rank is the odd one")
    parser.add_argument("--version", default="2.10", help="of the dumps")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--no-peer", action="store_true")
    given = parser.parse_args()
    for ranks in given.ranks:
        folder = Path(tempfile.mkdtemp(prefix="paceline-flight-", dir=given.folder))
        try:
            made = DumpSet(ranks, given.entries, draw_odd(ranks, given.seed), given.seed, given.version)
            write(made, folder)
            measure(made, folder, given.pairs, not given.no_peer and ranks <= PEER_RANKS_MAX)
        finally:
            shutil.rmtree(folder)


def write(made: DumpSet, folder: Path) -> None:
    """The files of a set; ends the program where the disk has no place for them."""
    began = time.perf_counter()
    need, free = made.ranks * len(made.content(0)), shutil.disk_usage(folder).free
    if need + FREE_LEFT > free:
        sys.exit(f"{made.ranks} dumps are {need / 1e9:.1f} GB and {folder} has {free / 1e9:.1f} GB: not run")
    size = made.write(folder)
    took = time.perf_counter() - began
    print(f"{made.ranks} ranks x {made.entries} entries: {size / 1e6:.0f} MB on disk, made in {took:.1f} s, "
          f"rank {made.odd} did not make its last call", flush=True)  # fmt: skip


def measure(made: DumpSet, folder: Path, pairs: int, with_peer: bool) -> None:
    """Both tools in turns on one set."""
    ours: list[Run] = []
    peer: list[Run] = []
    for number in range(-1, pairs):
        mine = run([str(BIN / "paceline"), "diagnose", str(folder), "--json", "--quiet"])
        check(made, mine)
        theirs = run([str(BIN / "torchfrtrace"), str(folder), "-p", PREFIX]) if with_peer else None
        if number >= 0:
            ours.append(mine)
            peer += [theirs] if theirs else []
    show("paceline", ours)
    if not with_peer:
        return
    named = re.findall(r"missing[ _]ranks[^{]*\{([0-9, ]+)\}|[Cc]ulprit rank (\d+)", peer[-1].output)
    show("fr_trace", peer, f", names {sorted({text for pair in named for text in pair if text})[:6]}")
    for what in ("seconds", "cpu_s"):
        ratios = [getattr(b, what) / getattr(a, what) for a, b in zip(ours, peer, strict=True)]
        words = "by the clock" if what == "seconds" else "by CPU"
        print(f"  fr_trace / paceline {words}: {spread(ratios, '.1f')} times", flush=True)


def check(made: DumpSet, run: "Run") -> None:
    """Ends the program where the answer is not that the odd rank did not enter."""
    try:
        answer = json.loads(run.output[run.output.index("{") :])
    except ValueError:
        sys.exit(f"no answer: {run.output[-2000:]}")
    roots = [root.get("rank") for root in answer["roots"]]
    if answer["class"] != "H1" or roots != [made.odd] or answer["coverage"]["ranks_reporting"] != made.ranks:
        sys.exit(f"wrong answer: {answer['class']} {roots[:9]} {answer['summary']} {answer['coverage']}")


def show(name: str, runs: Sequence["Run"], more: str = "") -> None:
    wall, cpu = spread([each.seconds for each in runs]), spread([each.cpu_s for each in runs])
    print(f"  {name:9} {wall} s, CPU {cpu} s, "
          f"peak {max(each.peak_mib for each in runs):.0f} MiB of all processes, "
          f"{max(each.largest_mib for each in runs):.0f} MiB of the largest{more}", flush=True)  # fmt: skip


def spread(values: Sequence[float], form: str = ".2f") -> str:
    """Median, and the smallest and largest."""
    return (
        f"{statistics.median(values):{form}} ({min(values):{form}} to {max(values):{form}}, n={len(values)})"
    )


@dataclass(frozen=True)
class Run:
    """One program, with all its processes."""

    seconds: float
    cpu_s: float  # all processes; on a busy machine the fairer figure
    peak_mib: float  # sum of the resident memory of all processes; shared pages count in each
    largest_mib: float
    output: str


def run(command: list[str]) -> Run:
    """Runs `command` and watches the memory of it and its children."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryFile() as output:
        began = time.perf_counter()
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=_environment())
        peak, largest, stop = [0.0], [0.0], threading.Event()
        watcher = threading.Thread(target=_watch, args=(process.pid, peak, largest, stop))
        watcher.start()
        try:
            process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        seconds = time.perf_counter() - began
        stop.set()
        watcher.join()
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        output.seek(0)
        cpu_s = used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime
        return Run(seconds, cpu_s, peak[0], largest[0], output.read().decode("utf-8", "replace"))


def _environment() -> dict[str, str]:
    """Compiled modules are kept, as they are of what is installed; those of a checkout in a folder apart."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return kept | {"PYTHONPYCACHEPREFIX": str(Path(tempfile.gettempdir()) / "paceline-bench-bytecode")}


def _watch(pid: int, peak: list[float], largest: list[float], stop: threading.Event) -> None:
    page = os.sysconf("SC_PAGE_SIZE")
    while not stop.wait(0.05):
        sizes = [0.0]
        for each in _family(pid):
            try:
                sizes.append(int(Path(f"/proc/{each}/statm").read_text().split()[1]) * page / (1 << 20))
            except (OSError, IndexError):
                continue
        peak[0], largest[0] = max(peak[0], sum(sizes)), max(largest[0], *sizes)


def _family(pid: int) -> list[int]:
    found = [pid]
    for each in found:
        try:
            for task in Path(f"/proc/{each}/task").iterdir():
                found += [int(child) for child in (task / "children").read_text().split()]
        except OSError:
            continue
    return found


if __name__ == "__main__":
    main()
