"""Cost of the NCCL profiler plugin per callback and per collective, as one JSON object.

    python -m tests.bench.nccl_cost [--repeats 25] [--operations 4000] [--channels 2] [--against PLUGIN.so]

CPU nanoseconds, medians with the 5th and 95th percentile over repeats: `calls` is the cheapest tier,
`kernels` adds the kernel events of each channel, `network` 32 slices of a ring for each besides; `clock` is
one reading of CLOCK_MONOTONIC, which a plugin without the time stamp counter pays twice in each callback.
`instructions` is null where this machine does not count them.

`--against` drives another profiler plugin of version 5, for example NCCL's Inspector, with the same script in
turn with ours, in one process: each gets the events it asks for. `ratio` is ours to theirs, repeat by repeat.
Needs a C++ compiler.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

from paceline.probe.nccl import plugin_path
from tests.bench.probe_cost import summarise

KERNELS = Path(__file__).parents[2] / "kernels"


Samples = dict[str, list[tuple[float, float, float, float]]]


def play(folder: str, tier: int, options: argparse.Namespace) -> Samples:
    """ns and instructions per operation, ns per callback, callbacks per operation, by what was measured."""
    plugin = plugin_path()
    if plugin is None:
        raise SystemExit("nccl_cost: the plugin is not built; run: make setup")
    environment = {
        **os.environ, "PACELINE_NCCL_TIER": str(tier), "PACELINE_NCCL_BUDGET_PERCENT": "100",
        "PACELINE_AGENT_SOCKET": f"{folder}/none",
    }  # fmt: skip
    command = [f"{folder}/nccl_cost", str(options.repeats), str(options.operations), str(options.channels)]
    command += [str(plugin), *([str(options.against)] if options.against else [])]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    if done.returncode != 0:
        raise SystemExit(f"nccl_cost: exit status {done.returncode}: {done.stderr.strip()}")
    samples: Samples = defaultdict(list)
    for line in done.stdout.splitlines():
        name, operation, instructions, callback, callbacks = line.split()
        samples[name].append((float(operation), float(instructions), float(callback), float(callbacks)))
    del samples["warm"]
    return samples


def describe(samples: Samples) -> dict[str, object]:
    """Medians and spreads; with another plugin the ratio of the paired repeats too."""
    found: dict[str, object] = {}
    for name, rows in samples.items():
        operation, instructions, callback, callbacks = zip(*rows, strict=True)
        found[name] = {
            "operation": summarise(operation),
            "callback": summarise(callback),
            "instructions": round(statistics.median(instructions)) or None,
            "callbacks": callbacks[0],
        }
    mine = next(rows for name, rows in samples.items() if name not in ("other", "clock"))
    if "other" in samples:
        pairs = list(zip(mine, samples["other"], strict=True))
        ratios = sorted(own[0] / other[0] for own, other in pairs)
        last = len(ratios) - 1
        found["ratio"] = [
            round(ratios[place], 3) for place in (round(0.05 * last), last // 2, round(0.95 * last))
        ]
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description="Cost of the NCCL profiler plugin, as JSON.")
    parser.add_argument("--repeats", type=int, default=25)
    parser.add_argument("--operations", type=int, default=4000)
    parser.add_argument("--channels", type=int, default=2)
    parser.add_argument("--tiers", default="012")
    parser.add_argument("--against", type=Path, help="another profiler plugin")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        source = str(KERNELS / "bench/nccl_cost.cc")
        flags = ["-O2", "-std=c++17", *(f"-I{KERNELS}/{name}" for name in ("nccl", "include", "native"))]
        subprocess.run(["g++", *flags, source, "-o", f"{folder}/nccl_cost", "-ldl"], check=True)
        tiers = {f"tier{tier}": describe(play(folder, int(tier), options)) for tier in options.tiers}
    result = {
        **tiers,
        "repeats": options.repeats,
        "operations": options.operations,
        "channels": options.channels,
        "machine": platform.machine(),
    }
    sys.stdout.write(json.dumps(result) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
