"""What each edge of a member's ring does right now, as proxy steps and our own kernels would say it.

Of a transfer that stands still: the GPU that does not move neither delivers nor takes; whoever is
behind it in the ring waits for data and has none to deliver; who is ahead of it is blocked once the
buffers are full; a link that is down holds what its sender has handed over.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from paceline.contracts.codes import TransferState
from paceline.fleet.counters import BUFFER, SLICES, Totals, distance
from paceline.fleet.history import F64, KindView, Op
from paceline.fleet.tree_reading import uses_tree

U8 = npt.NDArray[np.uint8]
_BLOCKED = (TransferState.SEND_WAIT, TransferState.SEND_PEER_WAIT)


@dataclass(eq=False)
class Activity:
    """Flat (N,): state of the sending and the receiving side, and how long it has waited, seconds."""

    sends: U8
    receives: U8
    send_wait_s: F64
    recv_wait_s: F64


def read_activity(totals: Totals, view: KindView, at: F64, *, proxies: bool) -> Activity:
    """`proxies`: NCCL's proxy steps say it; else our own kernels, which only know waiting for the peer."""
    shape = at.shape
    sends, receives = np.zeros(shape, np.uint8), np.zeros(shape, np.uint8)
    since = np.where(True, at, 0.0)
    for index, op in enumerate(view.ops):
        heads = view.head[op.stages] == index
        if op.over or not heads.any() or uses_tree(totals.groups, op.call.function):
            continue
        sent, received = _sides(totals, op, at[op.stages])
        for out, values in ((sends, sent), (receives, received)):
            part = out[op.stages]
            part[heads] = values[heads]
            out[op.stages] = part
        part_since = since[op.stages]
        started = heads & (op.start <= at[op.stages])
        part_since[started] = op.start[started]
        since[op.stages] = part_since
    age = np.maximum(at - since, 0.0)
    send_wait = np.where(np.isin(sends, _BLOCKED), age, 0.0)
    recv_wait = np.where(receives == TransferState.RECV_WAIT, age, 0.0)
    if not proxies:
        sends, receives = as_kernels(sends), as_kernels(receives)
    return Activity(sends.reshape(-1), receives.reshape(-1), send_wait.reshape(-1), recv_wait.reshape(-1))


def _sides(totals: Totals, op: Op, at: F64) -> tuple[U8, U8]:
    groups = totals.groups
    _, outer, size, inner = groups.shape
    shape = (-1, outer, size, inner)
    started = (op.start <= at).reshape(shape)
    missing = ~started
    waits = missing.any(axis=2, keepdims=True)
    if not op.call.synchronising:
        blocked = np.zeros(started.shape, np.bool_)
    else:
        blocked = distance(missing, -1) * BUFFER < distance(missing, 1) * SLICES
    moving = int(TransferState.MOVING)
    sent = np.where(
        waits, np.where(blocked, TransferState.SEND_PEER_WAIT, TransferState.SEND_GPU_WAIT), moving
    )
    received = np.where(waits, int(TransferState.RECV_WAIT), moving)
    sent, received = (
        np.where(started, side, 0).reshape(at.shape).astype(np.uint8) for side in (sent, received)
    )
    for stuck in op.stuck:
        flat = totals.flat(op, groups.members[stuck.comm])
        behind = (np.arange(size) - stuck.place) % size
        full = ((size - behind) * BUFFER < behind * SLICES) & (stuck.place >= 0)
        side_sent = np.where(full, TransferState.SEND_PEER_WAIT, TransferState.SEND_GPU_WAIT)
        side_received = np.full(size, int(TransferState.RECV_WAIT))
        if stuck.place >= 0:
            holds = TransferState.SEND_WAIT if stuck.link else TransferState.SEND_GPU_WAIT
            takes = TransferState.RECV_WAIT if stuck.link else TransferState.RECV_GPU_WAIT
            side_sent[stuck.place], side_received[stuck.place] = holds, takes
        mask = started.reshape(-1)[flat]
        sent.reshape(-1)[flat[mask]] = side_sent[mask]
        received.reshape(-1)[flat[mask]] = side_received[mask]
    return sent, received


def as_kernels(states: U8) -> U8:
    waits = np.isin(states, (TransferState.SEND_WAIT, TransferState.SEND_PEER_WAIT, TransferState.RECV_WAIT))
    moving = np.where(states > 0, int(TransferState.MOVING), 0)
    found: U8 = np.where(waits, int(TransferState.PEER_WAIT), moving).astype(np.uint8)
    return found
