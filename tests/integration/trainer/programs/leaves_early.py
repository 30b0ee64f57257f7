"""Rank 0 ends with status 3 while an operation is in flight that rank 1 never joins."""

import sys
from datetime import timedelta

import torch
import torch.distributed as dist


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=20))
    tensor = torch.ones(4)
    dist.all_reduce(tensor)
    if dist.get_rank() == 0:
        work = dist.all_reduce(tensor, async_op=True)
        dist.distributed_c10d._get_default_store().set("left", "1")
        if sys.argv[1:] == ["drop"]:
            del work
        sys.exit(3)
    dist.distributed_c10d._get_default_store().get("left")


if __name__ == "__main__":
    main()
