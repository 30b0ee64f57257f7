"""Cost of the NCCL profiler plugin per callback and per collective, as one JSON object.

    python tests/bench/nccl_cost.py [--repeats 25] [--operations 4000]

Medians with the 5th and 95th percentile over repeats: `calls` is the cheapest tier (10 callbacks), `kernels`
adds the kernel events of two channels, `network` 64 slices of a ring besides; `clock` is one reading of
CLOCK_MONOTONIC, which a plugin without the time stamp counter pays twice in each callback. Needs a C++
compiler.
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

from paceline.probe.nccl import plugin_path
from tests.bench.probe_cost import summarise

KERNELS = Path(__file__).parents[2] / "kernels"


def measure(folder: str, tier: int, repeats: int, operations: int) -> dict[str, dict[str, dict[str, float]]]:
    """ns per operation and per callback of each kind of operation at one tier."""
    plugin = plugin_path()
    if plugin is None:
        raise SystemExit("nccl_cost: the plugin is not built; run: make setup")
    environment = {
        **os.environ, "PACELINE_NCCL_TIER": str(tier), "PACELINE_NCCL_BUDGET_PERCENT": "100",
        "PACELINE_AGENT_SOCKET": f"{folder}/none",
    }  # fmt: skip
    command = [f"{folder}/nccl_cost", str(plugin), str(repeats), str(operations)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    samples: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for line in done.stdout.splitlines():
        name, per_operation, per_call = line.split()
        samples[name].append((float(per_operation), float(per_call)))
    return {
        name: {
            "operation": summarise([pair[0] for pair in pairs]),
            "callback": summarise([pair[1] for pair in pairs]),
        }
        for name, pairs in samples.items()
        if name != "warm"
    }


def main() -> int:
    parser = argparse.ArgumentParser(description="Cost of the NCCL profiler plugin, as JSON.")
    parser.add_argument("--repeats", type=int, default=25)
    parser.add_argument("--operations", type=int, default=4000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        source = str(KERNELS / "bench/nccl_cost.cc")
        flags = ["-O2", "-std=c++17", *(f"-I{KERNELS}/{name}" for name in ("nccl", "include", "native"))]
        subprocess.run(["g++", *flags, source, "-o", f"{folder}/nccl_cost", "-ldl"], check=True)
        tiers = {
            f"tier{tier}": measure(folder, tier, options.repeats, options.operations) for tier in (0, 1, 2)
        }
    result = {
        **tiers,
        "repeats": options.repeats,
        "operations": options.operations,
        "machine": platform.machine(),
    }
    sys.stdout.write(json.dumps(result) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
