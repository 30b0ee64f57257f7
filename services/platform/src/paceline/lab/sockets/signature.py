"""What the counters of each rank showed while the fault lasted: the measured table."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from paceline.agent.pages import PageView
from paceline.contracts.codes import OpState

NS_PER_MS = 1e6


@dataclass(frozen=True)
class EdgeSignature:
    """One row of the edge table since the fault."""

    peer: int
    group: int
    direction: int  # 0 send, 1 receive
    count: int
    wait_ms: float


@dataclass(frozen=True)
class RankSignature:
    """One rank between two readings. Counts of an open round are those of this round only."""

    rank: int
    inside: bool
    round: int
    sends: int  # slices delivered in the open round, else 0
    receives: int
    undelivered: int  # posted and not delivered
    send_wait_ms: float  # since the fault, all peer slots
    recv_wait_ms: float
    duration_ms: float  # median T of the rounds completed since the fault, 0 where there is none
    idle_ms: float  # since the last count or completion
    edges: tuple["EdgeSignature", ...]


def measure(ranks: Sequence[int], before: Sequence[PageView], after: Sequence[PageView], now_ns: int) -> list[
    RankSignature
]:  # fmt: skip
    """One signature for each of `ranks`; views have one frame each."""
    return [_measure(*item, now_ns) for item in zip(ranks, before, after, strict=True)]


def median_ms(view: PageView, since_round: int = 0) -> float:
    """Median T of the rounds completed after `since_round`, 0 where there is none."""
    rounds, times = view.rounds[0], view.round_times[0]
    done = (rounds["state"] == OpState.COMPLETED) & (rounds["round"] > since_round)
    if not done.any():
        return 0.0
    took = (rounds["completed_ns"] - times["started_ns"])[done]
    return float(np.median(took)) / NS_PER_MS


def _measure(rank: int, before: PageView, after: PageView, now_ns: int) -> RankSignature:
    was, frame = before.frames[0], after.frames[0]
    head = int(frame["head_round"])
    sends, receives = 0, 0
    entry = np.flatnonzero((after.rounds[0]["round"] == head) & (after.rounds[0]["completed_ns"] == 0))
    if head and len(entry):
        # The open round began where its predecessor ended: with all of that one's slices counted.
        per_round = _slices_per_round(after)
        sends = int(frame["send_count"]) - per_round[0] * (head - 1)
        receives = int(frame["recv_count"]) - per_round[1] * (head - 1)
    waits = [
        (frame[name] - was[name]).astype(np.float64) / NS_PER_MS for name in ("send_wait_ns", "recv_wait_ns")
    ]
    return RankSignature(
        rank=rank,
        inside=bool(head),
        round=int(frame["round"]),
        sends=sends,
        receives=receives,
        undelivered=int(frame["send_posted"]) - int(frame["send_count"]),
        send_wait_ms=round(float(waits[0].sum()), 1),
        recv_wait_ms=round(float(waits[1].sum()), 1),
        duration_ms=round(median_ms(after, int(was["round"])), 1),
        idle_ms=round((now_ns - int(frame["progress_ns"])) / NS_PER_MS, 1),
        edges=_measure_edges(before, after),
    )


def _measure_edges(before: PageView, after: PageView) -> tuple[EdgeSignature, ...]:
    was = {tuple(row[["peer", "group", "direction"]].tolist()): row for row in before.edges}
    found = []
    for row in after.edges:
        peer, group, direction = (int(row[name]) for name in ("peer", "group", "direction"))
        old = was.get((peer, group, direction))
        count = int(row["count"]) - (int(old["count"]) if old is not None else 0)
        wait_ns = int(row["wait_ns"]) - (int(old["wait_ns"]) if old is not None else 0)
        found.append(EdgeSignature(peer, group, direction, count, round(wait_ns / NS_PER_MS, 1)))
    return tuple(found)


def _slices_per_round(view: PageView) -> tuple[int, int]:
    """Slices of one completed round, sent and received; all rounds of a run are alike."""
    rounds, times = view.rounds[0], view.round_times[0]
    newest = np.flatnonzero((rounds["state"] == OpState.COMPLETED) & (rounds["round"] > 1))
    if len(newest) == 0:
        return 0, 0
    at = newest[int(rounds["round"][newest].argmax())]
    before = int(rounds["round"][at]) - 1
    return int(times["send_count"][at]) // before, int(times["recv_count"][at]) // before
