"""Cost of a call of NCCL through the preloaded shim, as one JSON object.

    python -m tests.bench.nccl_shim_cost [--repeats 101] [--calls 4000]

The library behind is a stand-in whose functions return at once, so what is left is the way there: CPU
nanoseconds per call `direct` and through the `shim`, in turn, and the `added` ones pair by pair; medians
with the 5th and 95th percentile over repeats. `observing` writes rounds into a page, `only_forwarding` is
the same with PACELINE_DISABLED=1. `messages` is a group of a send and a receive, divided by its four calls.
Without CUDA the shim does not ask the driver whether a stream is captured; with CUDA that comes on top.
Needs a C++ compiler.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

from paceline.probe.nccl import shim_path
from tests.bench.probe_cost import summarise

KERNELS = Path(__file__).parents[2] / "kernels"
LIBRARY = "libnccl.so.2"
MODES = {"observing": {}, "only_forwarding": {"PACELINE_DISABLED": "1"}}
Pairs = dict[str, list[tuple[float, float]]]  # kind of call: (direct, through the shim)


def build(folder: Path) -> Path:
    """The stand-in and the program that is linked with it."""
    flags = [
        "g++",
        "-O2",
        "-std=c++17",
        *(f"-I{KERNELS}/{name}" for name in ("nccl_shim", "nccl", "include")),
    ]
    library, program = folder / LIBRARY, folder / "nccl_shim_cost"
    for command in (
        [*flags, "-fPIC", "-shared", f"-Wl,-soname,{LIBRARY}", f"{KERNELS}/bench/stub_nccl.cc"],
        [*flags, f"{KERNELS}/bench/nccl_shim_cost.cc", "-Wl,--no-as-needed", str(library), "-ldl"],
    ):
        target = library if "-shared" in command else program
        subprocess.run([*command, "-o", str(target)], check=True)
    return program


def play(program: Path, shim: Path, mode: str, repeats: int, calls: int) -> Pairs:
    """One run of the program, which says itself whether the shim observes."""
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("PACELINE")},
        "LD_PRELOAD": str(shim), "LD_LIBRARY_PATH": str(program.parent),
        "PACELINE_AGENT_SOCKET": f"{program.parent}/none", "PACELINE_JOB_ID": "bench", **MODES[mode],
    }  # fmt: skip
    command = [str(program), str(repeats), str(calls), LIBRARY]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    if done.returncode != 0:
        raise SystemExit(f"nccl_shim_cost: exit status {done.returncode}: {done.stderr.strip()}")
    page, *lines = done.stdout.splitlines()
    if page != f"page {int(mode == 'observing')}":
        raise SystemExit(f"nccl_shim_cost: {mode}: {page}, so what was measured is something else")
    pairs: Pairs = defaultdict(list)
    for line in lines:
        name, direct, through = line.split()
        pairs[name].append((float(direct), float(through)))
    return pairs


def describe(pairs: Pairs) -> dict[str, object]:
    """Medians and spreads; what the shim adds is taken pair by pair."""
    return {
        name: {
            "direct": summarise([direct for direct, _ in rows]),
            "shim": summarise([through for _, through in rows]),
            "added": summarise([through - direct for direct, through in rows]),
        }
        for name, rows in pairs.items()
    }


def main() -> int:
    parser = argparse.ArgumentParser(description="Cost of the preloaded shim per call of NCCL, as JSON.")
    parser.add_argument("--repeats", type=int, default=101)
    parser.add_argument("--calls", type=int, default=4000)
    options = parser.parse_args()
    shim = shim_path()
    if shim is None:
        raise SystemExit("nccl_shim_cost: the shim is not built; run: make setup")
    with tempfile.TemporaryDirectory() as folder:
        program = build(Path(folder))
        found = {mode: describe(play(program, shim, mode, options.repeats, options.calls)) for mode in MODES}
    result = {**found, "repeats": options.repeats, "calls": options.calls, "machine": platform.machine()}
    sys.stdout.write(json.dumps(result) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
