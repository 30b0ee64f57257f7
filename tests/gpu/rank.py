"""One rank of a real NCCL job on GPU 0: rank.py RANK RANKS STORE STEPS prints its median step, s, as JSON."""

import json
import statistics
import sys
import time


def main() -> int:
    import torch
    import torch.distributed as dist

    rank, ranks, store, steps = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    torch.cuda.set_device(0)
    dist.init_process_group("nccl", init_method=f"file://{store}", rank=rank, world_size=ranks)
    small, large = (torch.ones(count, device="cuda") for count in (1024, 1 << 18))
    times = []
    for step in range(steps + 5):
        begin = time.monotonic()
        for _ in range(4):
            dist.all_reduce(small)
        dist.all_reduce(large)
        dist.broadcast(small, 0)
        torch.cuda.synchronize()
        if step >= 5:  # connections are made in the first
            times.append(time.monotonic() - begin)
        small.fill_(1), large.fill_(1)
    version = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
    result = {"median_s": statistics.median(times), "nccl": version}
    dist.destroy_process_group()
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
