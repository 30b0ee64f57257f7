"""Three ranks, one of which is lost inside an operation of each kind; a fourth process takes its place.

Arguments: `kill` or `freeze`, then kinds. Says as JSON, kind by kind, what the survivors saw and whether
the same operation is right in the new generation.
"""

import json
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from zygote import GUARD_S, Line, Ranks  # type: ignore[import-not-found]

from paceline.trainer import groups as rebuildable
from paceline.trainer.groups.install import maker

warnings.simplefilter("ignore")
c10d: Any = dist  # its stores are not in its type stubs
SIZE = 3
BIG = 1 << 18  # elements
MARK = 7.0


def filled(n: int, value: float) -> torch.Tensor:
    return torch.full((n,), float(value))


class Operations:
    """Each runs one operation of `n` elements, says whether the result is right, and keeps what it wrote."""

    def __init__(self) -> None:
        self.written: list[torch.Tensor] = []

    def _out(self, tensor: torch.Tensor) -> torch.Tensor:
        self.written = [tensor]
        return tensor

    def allreduce(self, n: int, me: int) -> bool:
        out = self._out(filled(n, me + 1))
        dist.all_reduce(out)
        return float(out[-1]) == sum(range(1, SIZE + 1))

    def allgather(self, n: int, me: int) -> bool:
        out = self._out(torch.zeros(SIZE * n))
        dist.all_gather_into_tensor(out, filled(n, me + 1))
        return out[::n].tolist() == [1.0, 2.0, 3.0]

    def reduce_scatter(self, n: int, me: int) -> bool:
        out = self._out(torch.zeros(n))
        dist.reduce_scatter_tensor(out, filled(n * SIZE, me + 1))
        return float(out[-1]) == sum(range(1, SIZE + 1))

    def broadcast(self, n: int, me: int) -> bool:
        out = self._out(filled(n, me + 1))
        dist.broadcast(out, 1)
        return float(out[-1]) == 2.0

    def alltoall(self, n: int, me: int) -> bool:
        out = self._out(torch.zeros(SIZE * n))
        dist.all_to_all_single(out, filled(n * SIZE, me + 1))
        return out[::n].tolist() == [1.0, 2.0, 3.0]

    def send_recv(self, n: int, me: int) -> bool:
        """Around the ring."""
        out = self._out(torch.zeros(n))
        sending: Any = dist.isend(filled(n, me + 1), (me + 1) % SIZE)
        dist.recv(out, (me - 1) % SIZE)
        sending.wait()
        return float(out[-1]) == (me - 1) % SIZE + 1

    def barrier(self, n: int, me: int) -> bool:
        self.written = []
        dist.barrier()
        return True


VICTIM = 1


def serve(line: Line, groups: Any) -> None:
    """The control thread: hands an abort on while the training thread is in an operation."""
    line.hear("abort")
    groups.abort(0, "the controller says so")


def member(line: Line, kind: str, rank: int) -> None:
    groups = rebuildable.install("test")
    server, endpoint = rebuildable.host_store("127.0.0.1")
    line.tell(endpoint=endpoint)
    store = c10d.PrefixStore("first", rebuildable.join_store(line.hear("first")))
    dist.init_process_group("gloo", store=store, rank=rank, world_size=SIZE)
    operations = Operations()
    call: Callable[[int, int], bool] = getattr(operations, kind)
    assert all(call(64, rank) for _ in range(10))
    if rank == VICTIM:
        threading.Thread(target=call, args=(BIG, rank), daemon=True).start()
        time.sleep(0.002)
        signal.raise_signal(signal.SIGSTOP)
        time.sleep(GUARD_S)
    control = threading.Thread(target=serve, args=(line, groups))
    control.start()
    raised = "nothing"
    try:
        while True:
            assert call(BIG, rank)
    except RuntimeError as error:
        ended = groups.ended_by(error)
        raised = type(ended).__name__ if ended is not None else repr(error)
    written = operations.written
    for tensor in written:
        tensor.fill_(MARK)
    line.tell(raised=raised)
    control.join()
    again(line, groups, call, rank, written)
    del server


def again(line: Line, groups: Any, call: Any, rank: int, written: list[torch.Tensor]) -> None:
    at = line.hear("rebuild")
    report = groups.rebuild(1, 0, rebuildable.join_store(at), rank, SIZE, GUARD_S)
    right = [bool(call(n, dist.get_rank())) for n in (64, BIG)]
    line.tell(right=right, left=report.left_groups)
    line.hear("look")
    until = time.monotonic() + 2.0
    while groups.report().stuck_operations and time.monotonic() < until:
        time.sleep(0.01)
    line.tell(kept=all(bool((tensor == MARK).all()) for tensor in written))


def newcomer(line: Line, kind: str) -> None:
    groups = rebuildable.install("test")
    made = maker()
    assert made is not None
    made.stay_outside(Nobody())
    dist.init_process_group("gloo", store=c10d.HashStore(), rank=VICTIM, world_size=SIZE)
    line.tell(endpoint="")
    again(line, groups, getattr(Operations(), kind), VICTIM, [])


class Nobody:
    """The groups of a process that waits for its place."""

    def build(self, *_: Any) -> Any:
        return None


def lose(kind: str, how: str) -> dict[str, Any]:
    with Ranks() as ranks:
        members = [ranks.fork(member, kind, rank) for rank in range(SIZE)]
        late = ranks.fork(newcomer, kind)
        endpoints = [child.hear("endpoint") for child in (*members, late)]
        for child in members:
            child.tell(first=endpoints[0])
        victim = members.pop(VICTIM)
        victim.await_stopped()
        if how == "kill":
            victim.signal(signal.SIGKILL)
            first = members[0].hear("raised")  # both are its neighbours; nobody has told them anything yet
        started = time.monotonic()
        for child in members:
            child.tell(abort=True)
        raised = [first] if how == "kill" else []
        raised += [child.hear("raised") for child in members[len(raised) :]]
        took_s = time.monotonic() - started
        for child in (*members, late):
            child.tell(rebuild=endpoints[0])
        said = {"raised": raised, "took_s": took_s}
        said["right"] = [child.hear("right") for child in (*members, late)]
        if how == "freeze":
            victim.signal(signal.SIGCONT)  # what was in flight goes on, in a generation that is over
        for child in (*members, late):
            child.tell(look=True)
        said["kept"] = [child.hear("kept") for child in (*members, late)]
        return said


def main() -> None:
    how, *kinds = sys.argv[1:]
    json.dump({kind: lose(kind, how) for kind in kinds}, sys.stdout)
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
