"""A job of one rank that says who it is; an argument names how it ends."""

import sys

import torch
import torch.distributed as dist


def main() -> None:
    dist.init_process_group("gloo")
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    print(type(dist.group.WORLD).__name__, tensor.tolist())
    dist.destroy_process_group()
    if sys.argv[1:] == ["raise"]:
        raise ValueError("the loss is NaN")


if __name__ == "__main__":
    main()
