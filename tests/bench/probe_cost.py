"""Cost of the probe per operation, in C and through Python, as one JSON object.

    python tests/bench/probe_cost.py [--repeats 25] [--pairs 100000]

Numbers are nanoseconds per enter + complete (and, for `python_full`, per enter + returned + complete):
median, 5th and 95th percentile and minimum over repeats. The Python loops are charged with their own
empty loop, which is subtracted. Needs a C++ compiler.
"""

import argparse
import json
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from paceline.contracts.codes import DType, Function, ReduceOp, Source
from paceline.probe.writer import Page

KERNELS = Path(__file__).parents[2] / "kernels"


def writer_sources() -> list[str]:
    """The writer without its Python binding."""
    sources = sorted((KERNELS / "native").glob("*.cc"))
    return [str(source) for source in sources if '"module.h"' not in source.read_text()]


def summarise(samples_ns: Sequence[float]) -> dict[str, float]:
    """Median and spread of `samples_ns`, one decimal."""
    ordered = sorted(samples_ns)
    last = len(ordered) - 1
    return {
        "median_ns": round(statistics.median(ordered), 1),
        "p5_ns": round(ordered[round(0.05 * last)], 1),
        "p95_ns": round(ordered[round(0.95 * last)], 1),
        "min_ns": round(ordered[0], 1),
    }


def measure_c(repeats: int, pairs: int) -> list[float]:
    """ns per pair and repeat of the C++ bench, compiled with the flags of the extension."""
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        raise SystemExit("probe_cost needs a C++ compiler: apt-get install g++")
    with tempfile.TemporaryDirectory() as folder:
        target = f"{folder}/probe_cost"
        includes = [f"-I{KERNELS}/include", f"-I{KERNELS}/native"]
        bench = str(KERNELS / "bench/probe_cost.cc")
        command = [
            compiler,
            "-O2",
            "-std=c++17",
            "-pthread",
            *includes,
            bench,
            *writer_sources(),
            "-o",
            target,
        ]
        subprocess.run(command, check=True)
        printed = subprocess.run(
            [target, str(repeats), str(pairs)], check=True, capture_output=True, text=True
        ).stdout
    return [float(line) for line in printed.split()]


def measure_python(repeats: int, pairs: int, full: bool) -> list[float]:
    """ns per pair and repeat through the extension; `full` calls `returned` too."""
    page = Page.create("bench", "1", 0, 8, 0, "bench")
    slot = page.open_communicator(1, 0, 0, 8, 0, Source.TORCH_HOOK)
    enter, returned, complete = page.enter, page.returned, page.complete
    function, dtype, reduce_op = int(Function.ALL_REDUCE), int(DType.FLOAT32), int(ReduceOp.SUM)

    def run_pairs() -> None:
        for _ in range(pairs):
            complete(enter(slot, function, dtype, reduce_op, -1, 1024, 4096, 1024), 0)

    def run_full() -> None:
        for _ in range(pairs):
            ticket = enter(slot, function, dtype, reduce_op, -1, 1024, 4096, 1024)
            returned(ticket)
            complete(ticket, 0)

    def run_empty() -> None:
        for _ in range(pairs):
            pass

    work = run_full if full else run_pairs
    work()
    samples = [(_timed_ns(work) - _timed_ns(run_empty)) / pairs for _ in range(repeats)]
    page.close()
    return samples


def _timed_ns(work: Callable[[], None]) -> int:
    start = time.perf_counter_ns()
    work()
    return time.perf_counter_ns() - start


def main() -> int:
    parser = argparse.ArgumentParser(description="Cost of the probe per operation, as JSON.")
    parser.add_argument("--repeats", type=int, default=25)
    parser.add_argument("--pairs", type=int, default=100_000)
    options = parser.parse_args()
    result = {
        "c": summarise(measure_c(options.repeats, options.pairs)),
        "python": summarise(measure_python(options.repeats, options.pairs, full=False)),
        "python_full": summarise(measure_python(options.repeats, options.pairs, full=True)),
        "repeats": options.repeats,
        "pairs": options.pairs,
        "python_version": platform.python_version(),
        "machine": platform.machine(),
    }
    sys.stdout.write(json.dumps(result) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
