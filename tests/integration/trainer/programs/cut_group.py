"""Two ranks, one frozen: what is stuck is freed by shutting the group's own sockets, and no others.

Ends as a script does, through the interpreter's own end; says as JSON what it saw.
"""

import json
import signal
import socket
import sys
import time
import warnings
from typing import Any

import torch
import torch.distributed as dist
from zygote import GUARD_S, Line, Ranks  # type: ignore[import-not-found]

from paceline.trainer import groups as rebuildable

warnings.simplefilter("ignore")
c10d: Any = dist  # its stores are not in its type stubs


def other(line: Line, endpoint: str) -> None:
    rebuildable.install("test")
    store = rebuildable.join_store(endpoint)
    dist.init_process_group("gloo", store=store, rank=1, world_size=2)
    dist.barrier()
    signal.raise_signal(signal.SIGSTOP)


def main() -> None:
    with Ranks() as ranks:
        ours, theirs = socket.socketpair()
        frozen = ranks.fork(lambda line: other(line, line.hear("endpoint")))
        groups = rebuildable.install("test")
        store, endpoint = rebuildable.host_store("127.0.0.1")
        frozen.tell(endpoint=endpoint)
        dist.init_process_group("gloo", store=store, rank=0, world_size=2)
        dist.barrier()
        frozen.await_stopped()
        works: list[Any] = [
            dist.all_reduce(torch.ones(1 << 18), async_op=True),
            dist.irecv(torch.zeros(4), 1),
        ]
        assert not works[1].is_completed()
        began = time.monotonic()
        groups.abort(0, "it is frozen")
        said: dict[str, Any] = {"abort_ms": (time.monotonic() - began) * 1e3}
        while groups.life.stuck and time.monotonic() < began + GUARD_S:
            time.sleep(0.001)
        said |= {"stuck": groups.life.stuck, "free_ms": (time.monotonic() - began) * 1e3}
        store.set("still", "there")
        ours.sendall(b"x")
        said["others live"] = [store.get("still").decode(), theirs.recv(1).decode()]
    json.dump(said, sys.stdout)


if __name__ == "__main__":
    main()
