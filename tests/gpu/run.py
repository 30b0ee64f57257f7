"""Everything that needs a GPU, in ten minutes: python tests/gpu/run.py FOLDER [--ranks 2] [--pairs 2]

Builds, records golden traces against real NCCL (two to four ranks on GPU 0, told apart by NCCL_HOSTID, so
that they speak over sockets) and replays them to the plugin, measures tiers 0, 1, 2 and the marks against no
plugin in ABBA pairs, runs the kernels of our own, and writes `result.json` and the traces into FOLDER.
Without a GPU it says why it does nothing, in the same file, and ends with 0.

THIS SCRIPT HAS NEVER BEEN RUN ON A GPU. Its plan, its parsing and its statistics are tested
(tests/unit/gpu); what it does to NCCL follows NCCL's sources and is not proven.
"""

from __future__ import annotations

import argparse
import ctypes
import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT)]

from tests.gpu.pairs import Phase, ratio_of, turns, why_not  # noqa: E402
from tests.gpu.traces import cut, outline, read_trace  # noqa: E402

BUDGET_S = 600.0
RUN_S = 20.0  # of one job: import of torch on all ranks, connections, steps
STEPS = 200
GOLDEN_BYTES_MAX = 39_000
VARIANTS: dict[str, dict[str, str]] = {
    **{f"tier{tier}": {"PACELINE_NCCL_TIER": str(tier)} for tier in (0, 1, 2)},
    "marker": {"PACELINE_NCCL_TIER": "0", "PACELINE_NCCL_MARKER": "1"},
}


class GpuRunError(Exception):
    """A step failed; the message has the end of its output."""


FAILURES = (  # of one phase: the others go on
    GpuRunError, OSError, ValueError, KeyError, RuntimeError, AssertionError, ImportError,
    subprocess.TimeoutExpired,
)  # fmt: skip


def why_no_gpu(load: Callable[[str], Any] = ctypes.CDLL) -> str | None:
    """None where there is a GPU; the driver is asked, nothing else is loaded."""
    try:
        driver = load("libcuda.so.1")
    except OSError as error:
        return f"no NVIDIA driver: {error}"
    if (status := driver.cuInit(0)) != 0:
        return f"the driver does not start: cuInit gives {status}"
    count = ctypes.c_int(0)
    status = driver.cuDeviceGetCount(ctypes.byref(count))
    return (
        None if status == 0 and count.value > 0 else f"no GPU: cuDeviceGetCount gives {status}, {count.value}"
    )


def phases(pairs: int) -> list[Phase]:
    """What is most wanted first."""
    measured = [Phase(name, 2 * pairs * RUN_S) for name in VARIANTS]
    return [Phase("build", 60), Phase("kernels", 45), Phase("trace", 30), *measured]


def environment_of(rank: int, base: Mapping[str, str], extra: Mapping[str, str]) -> dict[str, str]:
    """Of one rank: its own NCCL_HOSTID makes NCCL take the ranks of one GPU for nodes."""
    clean = {name: value for name, value in base.items() if not name.startswith(("PACELINE", "NCCL"))}
    return {
        **clean,
        "NCCL_HOSTID": f"paceline-{rank}",
        "NCCL_SOCKET_IFNAME": "lo",
        "NCCL_IB_DISABLE": "1",
        "NCCL_MNNVL_ENABLE": "0",
        "NCCL_MAX_NCHANNELS": "2",
        "PACELINE_AGENT_SOCKET": "/nonexistent/agent",
        "PACELINE_NCCL_BUDGET_PERCENT": "100",
        "PACELINE_JOB_ID": "gpu-run",
        "RANK": str(rank),
        **extra,
    }


def run_job(ranks: int, steps: int, extra: Mapping[str, str], folder: Path, limit_s: float) -> list[Any]:
    """What each rank printed, with its pid. GpuRunError after `limit_s`, or where a rank fails."""
    until_s = time.monotonic() + limit_s
    with tempfile.TemporaryDirectory() as scratch:
        processes = []
        for rank in range(ranks):
            environment = environment_of(rank, os.environ, extra)
            environment["RECORDER_FILE"] = str(folder / f"trace-{rank}.jsonl")
            command = [sys.executable, str(Path(__file__).with_name("rank.py")), str(rank), str(ranks)]
            processes.append(
                subprocess.Popen(
                    [*command, f"{scratch}/store", str(steps)],
                    stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
                    start_new_session=True,
                )
            )  # fmt: skip
        try:
            return [_answer(process, until_s) for process in processes]
        finally:
            for process in processes:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()


def _answer(process: subprocess.Popen[str], until_s: float) -> Any:
    try:
        out, err = process.communicate(timeout=max(until_s - time.monotonic(), 1.0))
    except subprocess.TimeoutExpired:
        raise GpuRunError("a rank did not come to its end in time") from None
    if process.returncode != 0:
        raise GpuRunError(f"a rank ended with {process.returncode}: {err[-800:]}")
    return {**json.loads(out.splitlines()[-1]), "pid": process.pid}


def build(folder: Path) -> dict[str, Any]:
    """The plugin as installed, and the recorder."""
    from paceline.probe.nccl import plugin_path

    plugin = plugin_path()
    if plugin is None:
        raise GpuRunError("the plugin is not built; run: make setup")
    recorder = folder / "recorder.so"
    source = str(Path(__file__).with_name("recorder.cc"))
    command = ["g++", "-std=c++17", "-O2", "-fPIC", "-shared", source, "-o", str(recorder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise GpuRunError(f"the recorder does not compile: {done.stderr[-800:]}")
    return {"plugin": str(plugin), "recorder": str(recorder)}


def record_traces(folder: Path, ranks: int, plugin: Path) -> dict[str, Any]:
    """Of each rank the whole recording, its beginning as a golden trace, and what the plugin's page holds
    then: NAME.jsonl and NAME.pages.json belong into tests/unit/nccl/golden."""
    from tests.unit.nccl.replay import TIERS, replay_file  # needs pytest, which no other phase does

    answers = run_job(ranks, 3, {"NCCL_PROFILER_PLUGIN": str(folder / "recorder.so")}, folder, 3 * RUN_S)
    found: dict[str, Any] = {}
    for rank, answer in enumerate(answers):
        lines = (folder / f"trace-{rank}.jsonl").read_text().splitlines()
        golden = folder / f"nccl-{answer['nccl']}-rank{rank}.jsonl"
        golden.write_text("\n".join(cut(lines, GOLDEN_BYTES_MAX)) + "\n")
        pages = {f"tier{tier}": replay_file(golden, plugin, folder, tier) for tier in TIERS}
        golden.with_suffix(".pages.json").write_text(json.dumps(pages, indent=1) + "\n")
        found[f"rank{rank}"] = outline(read_trace(lines))
    return found


def measure(variant: Mapping[str, str], plugin: str, folder: Path, ranks: int, pairs: int) -> dict[str, Any]:
    """A: no plugin, B: with it; the slowest rank of each run counts."""
    times: dict[str, list[float]] = {"A": [], "B": []}
    extra = {"A": {"NCCL_PROFILER_PLUGIN": "none"}, "B": {"NCCL_PROFILER_PLUGIN": plugin, **variant}}
    for side in turns(pairs):
        answers = run_job(ranks, STEPS, extra[side], folder, 3 * RUN_S)
        times[side].append(max(answer["median_s"] for answer in answers))
    return {"step_s": times, "ratio": dataclasses.asdict(ratio_of(times["A"], times["B"]))}


def run_kernels() -> dict[str, Any]:
    script = Path(__file__).with_name("kernels.py")
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, check=False, timeout=120, cwd=ROOT
    )
    if done.returncode != 0:
        raise GpuRunError(f"kernels: {done.stdout[-400:]} {done.stderr[-800:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def run_all(folder: Path, ranks: int, pairs: int, budget_s: float) -> dict[str, Any]:
    """Every phase that fits into what is left of the time; one that fails does not end the others."""
    until_s = time.monotonic() + budget_s
    result: dict[str, Any] = {"ranks": ranks, "pairs": pairs, "done": {}, "failed": {}, "left_out": {}}
    steps: dict[str, Callable[[], dict[str, Any]]] = {
        "build": lambda: build(folder),
        "kernels": run_kernels,
        "trace": lambda: record_traces(folder, ranks, Path(result["done"]["build"]["plugin"])),
    }

    def measured(variant: Mapping[str, str]) -> dict[str, Any]:
        return measure(variant, result["done"]["build"]["plugin"], folder, ranks, pairs)

    steps.update({name: partial(measured, variant) for name, variant in VARIANTS.items()})
    for phase in phases(pairs):
        if (refused := why_not(phase, until_s - time.monotonic())) is not None:
            result["left_out"][phase.name] = refused
            continue
        begin_s = time.monotonic()
        try:
            result["done"][phase.name] = steps[phase.name]()
        except FAILURES as error:
            result["failed"][phase.name] = f"{type(error).__name__}: {error}"
        print(f"{phase.name}: {time.monotonic() - begin_s:.0f} s", flush=True)
    return result


def main(arguments: list[str] | None = None, reason: Callable[[], str | None] = why_no_gpu) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--ranks", type=int, choices=(2, 3, 4), default=2)
    parser.add_argument("--pairs", type=int, choices=range(2, 11), default=2)
    parser.add_argument("--budget-s", type=float, default=BUDGET_S)
    options = parser.parse_args(arguments)
    options.folder.mkdir(parents=True, exist_ok=True)
    skipped = reason()
    result = (
        {"skipped": skipped}
        if skipped is not None
        else run_all(options.folder, options.ranks, options.pairs, options.budget_s)
    )
    (options.folder / "result.json").write_text(json.dumps(result, indent=1))
    print(f"skipped: {skipped}" if skipped is not None else f"result: {options.folder}/result.json")
    return 1 if result.get("failed") else 0


if __name__ == "__main__":
    sys.exit(main())
