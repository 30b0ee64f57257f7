"""Step time with per-step protection on and off, block by block inside the same processes.

Two gloo ranks train one MLP under DDP. `--idle-ms` adds time in which the CPU has nothing to do to each step,
as when an accelerator computes; without it the training itself uses every core, and whatever protection does
is taken from it. After the warm-up the budget check says which interval holds, and `--interval 0` (the
default) uses that.

Method. A pair is a block of steps with and a block without protection, one right after the other, the order
drawn, so that what the machine does meanwhile falls on both. Each block begins with steps that do not count:
every one that counts follows one of its own kind, and its gate waits for a copy like any other. A step
lasts as long as on its slowest rank. `ratio`: of the blocks' means without the slowest `--trim` of their
steps, which are other processes' time slices; median over the pairs, with a bootstrap 95% interval of that
median. `ratio_all` is the same of plain means, so that a stall that protection makes now and then cannot
hide in what is trimmed. `--control` switches protection on in neither block: what the method finds where
nothing is.
Prints one JSON object. `--checksum` measures checksums and copies instead.

    python tests/bench/protection_cost.py --pairs 40 --idle-ms 60
"""

import argparse
import ctypes
import json
import os
import random
import statistics
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Sequence
from typing import Any

from paceline.trainer.testing.job import free_port

BOOTSTRAPS = 4000
WARMUP_STEPS = 8
BLOCK_STEPS_MAX = 60
MIB = 1 << 20


def interval_of(ratios: Sequence[float], seed: int = 7) -> tuple[float, float]:
    """Bootstrap 95% interval of the median of the pairs' ratios."""
    draw = random.Random(seed)
    medians = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(BOOTSTRAPS))
    return medians[int(0.025 * BOOTSTRAPS)], medians[int(0.975 * BOOTSTRAPS) - 1]


class Training:
    """One rank's model, stepped with or without protection."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        import torch
        from torch.nn.parallel import DistributedDataParallel

        torch.manual_seed(1)
        layers: list[Any] = []
        for _ in range(arguments.layers):
            layers += [torch.nn.Linear(arguments.width, arguments.width), torch.nn.GELU()]
        self.model = torch.nn.Sequential(*layers)
        self.forward = DistributedDataParallel(self.model)
        if arguments.zero:
            from torch.distributed.optim import ZeroRedundancyOptimizer

            self.optimizer: Any = ZeroRedundancyOptimizer(self.model.parameters(), torch.optim.AdamW, lr=1e-3)
        else:
            self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.batch = torch.randn(arguments.batch, arguments.width)
        self.idle_s = arguments.idle_ms / 1e3
        self.optimizer_s: list[float] = []
        self.count = 0

    def step(self, protector: Any) -> float:
        """Seconds of one step; `protector` is None where it is off."""
        started_s = time.perf_counter()
        if protector is not None:
            protector.begin_step()
        self.optimizer.zero_grad()
        time.sleep(self.idle_s)
        self.forward(self.batch).square().mean().backward()
        writing_s = time.perf_counter()
        self.optimizer.step()
        self.optimizer_s.append(time.perf_counter() - writing_s)
        if protector is not None:
            protector.end_step(self.count)
            self.count += 1
        return time.perf_counter() - started_s


def make_protector(training: Training, rank: int, size: int) -> Any:
    import torch.distributed as dist

    from paceline.trainer.protection import Member, Protected, Protector, ShardIdentity

    objects = {"model": training.model, "optimizer": training.optimizer}
    protector = Protector(Protected(objects, replicas=size))
    endpoints: list[Any] = [None] * size
    dist.all_gather_object(endpoints, protector.endpoint)
    members = [Member(other, endpoint, f"node-{other}") for other, endpoint in enumerate(endpoints)]
    protector.join(ShardIdentity("bench", rank), members, b"b" * 32, 1)
    return protector


def worker(arguments: argparse.Namespace) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    training = Training(arguments)
    protector = make_protector(training, rank, size)
    for _ in range(WARMUP_STEPS):
        training.step(protector)
        protector.before_write()
    plain = [training.step(None) for _ in range(WARMUP_STEPS)]
    found = protector.budget(
        statistics.median(plain), statistics.median(training.optimizer_s), 1.0 if arguments.idle_ms else 0.0
    )
    chosen = torch.tensor([arguments.interval or found.interval_steps])
    dist.all_reduce(chosen, op=dist.ReduceOp.MAX)
    protector.interval_steps = int(chosen)
    before = (protector.counters.overruns, protector.counters.stall_s, protector.counters.protected)
    rows = run_pairs(arguments, training, protector)
    slowest = torch.tensor(rows, dtype=torch.float64)  # pairs x (off, on) x steps, in seconds
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    if rank == 0:
        print(json.dumps(report(arguments, slowest.tolist(), protector, found, before)))
    dist.barrier()
    protector.close()
    os._exit(0)


def run_pairs(arguments: argparse.Namespace, training: Training, protector: Any) -> list[list[list[float]]]:
    """Of each pair the seconds of the steps without protection, and of those with it."""
    import torch
    import torch.distributed as dist

    interval = int(protector.interval_steps)
    steps = min(max(arguments.steps, 2 * interval), BLOCK_STEPS_MAX)
    draw, rows = random.Random(3), []
    until_s = time.monotonic() + arguments.max_s
    for _ in range(arguments.pairs):
        late = torch.tensor(time.monotonic() > until_s, dtype=torch.int32)
        dist.all_reduce(late)
        if late:
            break
        times: dict[bool, list[float]] = {}
        for on in (True, False) if draw.random() < 0.5 else (False, True):
            given = protector if on and not arguments.control else None
            dist.barrier()
            for _ in range(interval):
                training.step(given)
            times[on] = [training.step(given) for _ in range(steps)]
            time.sleep(training.idle_s)  # the last copy comes to its end, as it would in the next step
            protector.before_write()  # nothing of an `on` block runs into an `off` one
        rows.append([times[False], times[True]])
    return rows


def trimmed_mean(values: Sequence[float], share: float) -> float:
    """Without the largest `share` of `values`."""
    return statistics.fmean(sorted(values)[: len(values) - int(share * len(values))])


def ratios_of(rows: Sequence[Sequence[Sequence[float]]], trim: float) -> list[float]:
    return [trimmed_mean(on, trim) / trimmed_mean(off, trim) for off, on in rows]


def report(
    arguments: argparse.Namespace,
    rows: list[list[list[float]]],
    protector: Any,
    found: Any,
    before: tuple[int, float, int],
) -> dict[str, Any]:
    ratios, plain = ratios_of(rows, arguments.trim), ratios_of(rows, 0.0)
    (low, high), (plain_low, plain_high) = interval_of(ratios), interval_of(plain)
    counters = protector.counters
    return {
        "bench": "protection_cost",
        "ranks": 2,
        "zero": arguments.zero,
        "control": arguments.control,
        "pairs": len(rows),
        "steps_per_block": len(rows[0][0]),
        "interval_steps": protector.interval_steps,
        "bytes_shared": counters.bytes_shared,
        "bytes_own": counters.bytes_own,
        "step_ms_off": round(
            statistics.median(trimmed_mean(off, arguments.trim) for off, _ in rows) * 1e3, 3
        ),
        "step_ms_on": round(statistics.median(trimmed_mean(on, arguments.trim) for _, on in rows) * 1e3, 3),
        "ratio": round(statistics.median(ratios), 4),
        "ratio_low": round(low, 4),
        "ratio_high": round(high, 4),
        "ratio_all": round(statistics.median(plain), 4),
        "ratio_all_low": round(plain_low, 4),
        "ratio_all_high": round(plain_high, 4),
        "within_1_percent": low >= 0.99 and high <= 1.01,
        "protected": counters.protected - before[2],
        "overruns": counters.overruns - before[0],
        "stall_ms": round((counters.stall_s - before[1]) * 1e3, 3),
        "capture_ms": round(counters.capture_s / max(1, counters.protected) * 1e3, 3),
        "copy_ms": round(counters.copy_s * 1e3, 3),
        "list_ms": round(counters.list_s * 1e3, 3),
        "seal_ms": round(counters.seal_s * 1e3, 3),
        "budget": {
            "reason": found.reason.value,
            "interval_steps": found.interval_steps,
            "overhead": round(found.overhead, 5),
            "detail": found.detail,
        },
        "load_average": os.getloadavg()[0],
    }


def measure_checksums(size: int) -> dict[str, Any]:
    """GiB per second of one thread, best of five."""
    import torch

    from paceline.trainer.protection.checksum import checksum
    from paceline.trainer.protection.memory import memory_of

    torch.set_num_threads(1)
    data = torch.randint(0, 256, (size,), dtype=torch.uint8)
    other = torch.empty_like(data)
    calls: dict[str, Callable[[], object]] = {
        "memmove": lambda: ctypes.memmove(other.data_ptr(), data.data_ptr(), size),
        "zlib_crc32": lambda: zlib.crc32(memory_of(data)),
        "checksum": lambda: checksum(data),
    }
    best: dict[str, float] = dict.fromkeys(calls, float("inf"))
    for _ in range(5):
        for name, call in calls.items():
            started_s = time.perf_counter()
            call()
            best[name] = min(best[name], time.perf_counter() - started_s)
    speeds = {f"{name}_gib_s": round(size / (1 << 30) / seconds, 3) for name, seconds in best.items()}
    return {"bench": "protection_checksum", "mib": size // MIB, **speeds, "load_average": os.getloadavg()[0]}


def launch(arguments: argparse.Namespace) -> int:
    environment = dict(os.environ) | {"OMP_NUM_THREADS": "1", "PACELINE_PROTECTION_COST_WORKER": "1"}
    environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    ranks = [
        subprocess.Popen([sys.executable, __file__, *sys.argv[1:]], env=environment | {"RANK": str(rank)})
        for rank in range(2)
    ]
    try:
        return max(abs(rank.wait(arguments.timeout_s)) for rank in ranks)
    finally:
        for rank in ranks:
            if rank.poll() is None:
                rank.kill()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0] if __doc__ else None)
    parser.add_argument("--pairs", type=int, default=40)
    parser.add_argument("--max-s", type=float, default=600.0, help="no further pair after that")
    parser.add_argument("--steps", type=int, default=8, help="steps of a block, at least two intervals")
    parser.add_argument("--trim", type=float, default=0.25, help="share of a block's steps, the slowest ones")
    parser.add_argument("--control", action="store_true", help="protection in neither block of a pair")
    parser.add_argument("--interval", type=int, default=0, help="0: what the budget check says")
    parser.add_argument("--idle-ms", type=float, default=0.0, help="idle time of the CPU in each step")
    parser.add_argument("--zero", action="store_true", help="ZeroRedundancyOptimizer")
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--checksum", action="store_true")
    parser.add_argument("--mib", type=int, default=64, help="with --checksum")
    parser.add_argument("--timeout-s", type=float, default=900)
    arguments = parser.parse_args()
    if arguments.checksum:
        print(json.dumps(measure_checksums(arguments.mib * MIB)))
        return 0
    if os.environ.get("PACELINE_PROTECTION_COST_WORKER") == "1":
        worker(arguments)
        return 0
    return launch(arguments)


if __name__ == "__main__":
    sys.exit(main())
