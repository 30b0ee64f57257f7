"""What the GPU itself wrote into a frame: how far the stream of a communicator has come.

The host runs ahead of the GPU and then often stands in a synchronisation, where no hook tells anybody
that rounds have ended. The trailer of the frame does: `gpu_arrive` is the newest round that the stream
has come to, `gpu_leave` the newest that it is through with, both below a tag that tells the users of one
slot apart (docs/adr/0036-gpu-marks.md).
"""

import numpy as np
import numpy.typing as npt

from paceline.contracts.codes import OpKind, OpState
from paceline.contracts.layout import MARK_ROUND_BITS
from paceline.probe.snapshot import BLOCK_DTYPE

Array = npt.NDArray[np.void]
_ROUND_MASK = np.uint64((1 << MARK_ROUND_BITS) - 1)


def apply_marks(blocks: bytearray) -> bytearray:
    """Blocks of BLOCK_DTYPE with rounds that the GPU is through with over, and those that it has not come to
    not started.

    Pure. A frame without a tag, and one whose marks contradict its rounds, stays as it is.
    """
    blocks = blocks[:]
    table = np.frombuffer(blocks, BLOCK_DTYPE)
    frames, rounds = table["frame"], table["rounds"]
    tags = frames["gpu_tag"]
    for at in np.flatnonzero((tags != 0) & ((tags & _ROUND_MASK) == 0)):
        entered = int(frames["round"][at])
        come = _round_of(int(frames["gpu_arrive"][at]), int(tags[at]))
        left = _round_of(int(frames["gpu_leave"][at]), int(tags[at]))
        if left <= come <= entered:
            _place(rounds[at], come, left)
            _move_head(frames[at : at + 1], rounds[at], left)
    return blocks


def _round_of(mark: int, tag: int) -> int:
    """0 where the mark is an earlier communicator's, or none."""
    return mark - tag if mark >> MARK_ROUND_BITS == tag >> MARK_ROUND_BITS else 0


def _is_open(ring: Array) -> npt.NDArray[np.bool_]:
    begun = (ring["state"] == OpState.ENTERED) | (ring["state"] == OpState.STARTED)
    return np.asarray(begun & (ring["kind"] == OpKind.COLLECTIVE) & (ring["completed_ns"] == 0))


def _place(ring: Array, come: int, left: int) -> None:
    """A call that has not returned stays entered even where the stream has come to it."""
    is_open = _is_open(ring)
    ring["state"][is_open & (ring["round"] <= left)] = OpState.COMPLETED
    ring["state"][is_open & (ring["round"] > come)] = OpState.ENTERED


def _move_head(frame: Array, ring: Array, left: int) -> None:
    head, entered, completed = (int(frame[name][0]) for name in ("head_round", "round", "completed"))
    newest = np.flatnonzero((ring["issue"] == frame["issue"]) & (ring["issue"] > 0))
    if len(newest):
        frame["state"] = ring["state"][newest[0]]
    if head == 0 or head > left:
        return
    if left == entered:
        frame["head_round"] = frame["head_signature"] = frame["head_entered_ns"] = 0
    else:
        found = np.flatnonzero(_is_open(ring) & (ring["round"] == left + 1))
        if len(found) == 0:
            return  # more in flight than the ring holds: what the host has seen is all there is
        entry = ring[found[0]]
        frame["head_round"], frame["head_signature"] = left + 1, entry["signature"]
        frame["head_entered_ns"] = entry["entered_ns"]
    over = max(left - completed, 0)
    frame["completed"] += np.uint64(over)
    frame["enqueued"] = np.maximum(frame["enqueued"], frame["completed"])
    frame["open_ops"] -= np.uint32(min(over, int(frame["open_ops"][0])))
