"""`make bench`: every figure of docs/performance.md, one program after the other.

Prints a line for each program as it ends and a table at the end; all JSON goes to
`.paceline/bench.json`. Timings on a shared machine are noisy: what matters compares in one run, in
interleaved pairs, and the programs print medians with their spread.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
OUTPUT = ROOT / ".paceline" / "bench.json"
PROGRAM_S_MAX = 1200
FAULTS = ("h1", "h2", "h3", "s1")
PROGRAMS: Mapping[str, Sequence[str]] = {
    "probe_cost": ["tests/bench/probe_cost.py"],
    "nccl_cost": ["-m", "tests.bench.nccl_cost"],
    "nccl_shim_cost": ["-m", "tests.bench.nccl_shim_cost"],
    "step_time": ["tests/bench/step_time.py"],
    "agent_cost": ["tests/bench/agent_cost.py"],
    "detector_step": ["tests/bench/detector_step.py"],
    "ingest": ["-m", "tests.bench.ingest", "--json"],
    "sim_verdict": ["tests/bench/sim_verdict.py", "--runs", "12", "--at", "30", "--json"],
    "judge": ["-m", "tests.bench.judge"],
    "recovery": ["tests/bench/recovery.py"],
    "repair_platform": ["-m", "tests.bench.repair_platform"],
    "planned_session": ["-m", "tests.bench.planned_session", "--connect-ms", "50"],
    "planned_session_bare": ["-m", "tests.bench.planned_session"],
    **{
        f"demo_{fault}": ["-m", "paceline.contracts.cli", "demo", "--fault", fault, "--once", "--json"]
        for fault in FAULTS
    },
}


def run_program(name: str) -> object:
    """The JSON of the program's last line, else its lines; an object with `error` where it failed."""
    command = [sys.executable, *PROGRAMS[name]]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=PROGRAM_S_MAX, check=False
    )
    lines = done.stdout.strip().splitlines()
    if done.returncode != 0 or not lines:
        return {"error": f"exit status {done.returncode}", "stderr": done.stderr[-2000:]}
    try:
        result: object = json.loads(lines[-1])
    except ValueError:
        return lines  # a table for people
    return result


def flatten(value: object, prefix: str = "") -> list[tuple[str, object]]:
    """Leaves of nested JSON with dotted names; lists stay as they are."""
    if not isinstance(value, dict):
        return [(prefix, value)]
    return [
        leaf
        for key, part in value.items()
        for leaf in flatten(part, f"{prefix}.{key}" if prefix else str(key))
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description="run the benchmarks and print their figures")
    parser.add_argument("names", nargs="*", metavar="PROGRAM", help=f"of {', '.join(PROGRAMS)}")
    names = parser.parse_args().names or list(PROGRAMS)
    results: dict[str, object] = {}
    for name in names:
        started = time.monotonic()
        results[name] = run_program(name)
        print(f"{name}: {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    OUTPUT.write_text(json.dumps(results, indent=2) + "\n")
    for name, result in results.items():
        if isinstance(result, list):
            print(f"{name}\n" + "\n".join(map(str, result)))
        for key, value in flatten(result) if isinstance(result, dict) else ():
            print(f"{name:14} {key:44} {value}")
    return 1 if any(isinstance(r, dict) and "error" in r for r in results.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
