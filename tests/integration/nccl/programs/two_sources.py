"""One job that communicates through gloo and through NCCL: eight forked ranks, torch loaded once.

    two_sources.py PLUGIN HOOKED SOCKET SOCKET      HOOKED: ranks with the trainer's hook, as 5,6,7

Gloo is real. NCCL's calls are those it would make to the profiler plugin, made here through ctypes by the
same thread, without a GPU. A rank without the hook has the plugin's own page and link; in one with it both
sources write one page. Ranks 5 to 7 have a gloo group besides. Each step is a round of the NCCL world and one
of that group.

In step STUCK rank 7 calls neither. Ranks 0 to 5 have called NCCL's, and 5 and 6 wait in gloo's: 6 comes to
NCCL only behind it. Goes on when a line comes.
"""

import os
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parents[4]))
from tests.unit.nccl.calls import Operation, Trace
from tests.unit.nccl.plugin_calls import PluginCalls

RANKS, PAIRED, CULPRIT = 8, (5, 6, 7), 7
STEPS, STUCK = 24, 20
STEP_S = 0.05


def run_rank(rank: int, meeting: Path, plugin: str, hooked: bool, go: int) -> None:
    if hooked:
        from paceline import trainer  # its extension in a process without the hook would keep the plugin off

        trainer.attach()
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=RANKS)
    paired = dist.new_group(list(PAIRED))
    nccl = PluginCalls(plugin)
    trace = Trace()
    context = trace.init(nranks=RANKS, rank=rank)
    tensor = torch.ones(4)
    waiting: list[Operation] = []  # launched, not ended
    for step in range(1, STEPS + 1):
        if step == STUCK and rank == CULPRIT:
            os.read(go, 1)  # in the user's own code
        first = rank != 6 or step != STUCK
        if first:
            waiting.append(call_nccl(trace, context, step))
            nccl.make(trace)
        if step == STUCK and rank < PAIRED[0]:
            os.read(go, 1)  # what torch.cuda.synchronize() would wait for
        if rank in PAIRED:
            dist.all_reduce(tensor, group=paired)
        if not first:
            waiting.append(call_nccl(trace, context, step))
        for operation in waiting:
            trace.end_kernels(operation)
        waiting.clear()
        nccl.make(trace)
        if hooked:
            trainer.step()
        time.sleep(STEP_S)
    dist.barrier()
    dist.destroy_process_group()
    trace.finalize(context)
    nccl.make(trace)


def call_nccl(trace: Trace, context: int, step: int) -> Operation:
    """Called, launched, begun by the GPU."""
    operation = trace.enter(context, count=1024 * step)
    trace.launch_kernels(operation)
    trace.begin_task(operation, channels=1)
    trace.end_task(operation)
    trace.begin_kernels(operation, 1)
    return operation


def main() -> int:
    plugin, hooked = sys.argv[1], {int(rank) for rank in sys.argv[2].split(",") if rank}
    sockets = sys.argv[3:]
    wake, go = os.pipe()
    children = []
    with TemporaryDirectory(prefix="paceline-meeting-") as folder:
        for rank in range(RANKS):
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    os.close(go)
                    os.environ |= {
                        "RANK": str(rank),
                        "WORLD_SIZE": str(RANKS),
                        "LOCAL_RANK": str(rank % 4),
                        "PACELINE_AGENT_SOCKET": sockets[rank * len(sockets) // RANKS],
                    }
                    run_rank(rank, Path(folder, "store"), plugin, rank in hooked, wake)
                    status = 0
                except BaseException as error:
                    sys.stderr.write(f"rank {rank}: {error!r}\n")
                finally:
                    sys.stderr.flush()
                    os._exit(status)
            children.append(child)
        sys.stdin.readline()
        os.write(go, bytes(RANKS))
        return sum(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0 for child in children)


if __name__ == "__main__":
    sys.exit(main())
