"""What a fault costs: GPU hours lost so far, and throughput regained if one root were healthy.

A hang loses every rank of the job for as long as it lasts; a slow fault the share of each step that it
takes. What a step loses is the rise of its measured duration; which part of that one root causes is
its own time where that is observed, else T against Tbase of its keys, which is an upper bound since
communication may overlap with computation. Where the inputs are missing nothing is estimated
(docs/adr/0023-fleet-memory.md).
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from paceline.analysis.evidence import JobEvidence
from paceline.analysis.policy import JudgePolicy
from paceline.analysis.slow_keys import SlowKey, measure
from paceline.analysis.slow_own import OwnTimes, read_own_times
from paceline.contracts.verdicts import REGAINS_MAX, Regain, Role, Root, RootKind, SlowLoss

_OWN_SHARE_MIN = 0.3  # of what a step has lost; a smaller rise does not explain it, as in slow_own
_LINK_KINDS = (RootKind.LINK, RootKind.NODE, RootKind.DOMAIN, RootKind.GROUP)


@dataclass(frozen=True)
class Stretch:
    """A time during which the job lost `share` of its ranks' work; null = slow, and not known by how much."""

    begin_unix_s: float
    end_unix_s: float
    share: float | None
    at_most: bool = False


@dataclass(frozen=True)
class Loss:
    """`rank_hours` of the stretches that are known; `unknown_s` lasted those that are not."""

    rank_hours: float
    unknown_s: float
    at_most: bool  # part of it is an upper bound


def hours_lost(ranks: int, stretches: Iterable[Stretch]) -> Loss:
    """Rank hours lost by a job of `ranks` ranks. Stretches may overlap: a moment counts once, by the
    largest known share. Stretches that end before they begin, as clocks may say, count as nothing."""
    spans = [span for span in stretches if span.end_unix_s > span.begin_unix_s]
    cuts = sorted({at for span in spans for at in (span.begin_unix_s, span.end_unix_s)})
    lost_s = unknown_s = 0.0
    at_most = False
    for begin, end in pairwise(cuts):
        here = [span for span in spans if span.begin_unix_s <= begin and span.end_unix_s >= end]
        known = [span for span in here if span.share is not None]
        if known:
            worst = max(known, key=lambda span: (span.share or 0.0, not span.at_most))
            lost_s += (end - begin) * min(max(worst.share or 0.0, 0.0), 1.0)
            at_most |= worst.at_most
        elif here:
            unknown_s += end - begin
    return Loss(lost_s * ranks / 3600, unknown_s, at_most)


def slow_loss(evidence: JobEvidence, roots: Sequence[Root], policy: JudgePolicy) -> SlowLoss:
    """What the slow fault of `roots` takes from each step, and what each root is worth."""
    measured = [measure(evidence, row, policy) for row in _rows_of(evidence, roots)]
    keys = [key for key in measured if key is not None]
    own = read_own_times(evidence)
    steps = _read_steps(evidence, keys, own)
    initiating = [root for root in roots if root.role is Role.INITIATING and root.kind is not RootKind.NONE]
    return SlowLoss(
        share=None if steps.lost_us is None else round(steps.lost_us / steps.step_us, 4),
        at_most=steps.at_most,
        step_s=steps.step_us / 1e6,
        usual_step_s=own.base_step_us / 1e6,
        reason=steps.reason,
        regains=tuple(_regain(root, keys, own, steps) for root in initiating[:REGAINS_MAX]),
    )


def _rows_of(evidence: JobEvidence, roots: Sequence[Root]) -> Iterator[np.void]:
    """Base lines of the communicators that a root is in: to measure all again would double a judgement."""
    named = {rank for root in roots for rank in (root.rank, root.peer_rank, *root.ranks) if rank is not None}
    wanted = np.array(sorted(named), np.int64)
    for row, comm in zip(evidence.baselines, evidence.index_of(evidence.baselines["comm"]), strict=True):
        if comm >= 0 and np.isin(wanted, evidence.members(int(comm))).any():
            yield row


@dataclass(frozen=True)
class _Steps:
    step_us: float  # 0 = not known
    lost_us: float | None  # of it; below step_us
    at_most: bool
    reason: str


def _read_steps(evidence: JobEvidence, keys: Sequence[SlowKey], own: OwnTimes) -> _Steps:
    if own.step_us > 0 and own.base_step_us > 0 and own.lost_us > 0:
        reason = f"steps take {own.step_us / 1e3:.1f} ms, usually {own.base_step_us / 1e3:.1f} ms"
        return _Steps(own.step_us, own.lost_us, False, reason)
    usual_us = float(np.median(evidence.baselines["step_ms"])) * 1e3 if len(evidence.baselines) else 0.0
    step_us = own.step_us or usual_us
    if step_us <= 0:
        return _Steps(0.0, None, False, "the duration of a step is not known: the job marks no steps")
    costs = [cost for key in keys if (cost := _per_step_us(key, key.worst)) is not None]
    if not costs:
        return _Steps(step_us, None, False, "the rounds of a step are not counted yet")
    # Lateness from the first step on is in the usual duration too: only Tbase shows it.
    return _bounded(step_us, max(costs), "T against Tbase of the slow key that costs most")


def _bounded(step_us: float, lost_us: float, reason: str) -> _Steps:
    if lost_us >= step_us:
        why = f"{reason}: {lost_us / 1e3:.1f} ms are more than a step of {step_us / 1e3:.1f} ms"
        return _Steps(step_us, None, False, f"{why}, so they overlap with computation")
    return _Steps(step_us, max(lost_us, 0.0), True, reason)


def _per_step_us(key: SlowKey, excess_ns: float) -> float | None:
    """Of a round's excess, per step; null where the rounds of a step are not known."""
    rounds = float(key.row["rounds_per_step"])
    return max(excess_ns, 0.0) / 1e3 * rounds * key.rounds / max(key.judged, 1) if rounds > 0 else None


def _regain(root: Root, keys: Sequence[SlowKey], own: OwnTimes, steps: _Steps) -> Regain:
    if root.kind is RootKind.ROTATING:
        return Regain(root, None, False, "the ranks are late in turn: no one of them is worth replacing")
    if steps.lost_us is None:
        return Regain(root, None, False, steps.reason)
    part_us, at_most, reason = _part(root, keys, own, steps.lost_us)
    if part_us is None:
        return Regain(root, None, False, reason)
    part_us = min(part_us, steps.lost_us)
    return Regain(root, round(part_us / (steps.step_us - part_us), 4), at_most or steps.at_most, reason)


def _part(
    root: Root, keys: Sequence[SlowKey], own: OwnTimes, lost_us: float
) -> tuple[float | None, bool, str]:
    """us per step that `root` causes, whether that is an upper bound, and where it comes from."""
    if root.kind in _LINK_KINDS:
        return _of_link(root, keys)
    if root.rank is None:
        return None, False, f"nothing measures what a {root.kind.value} costs"
    rise_us = own.rise_of(root.rank)
    if rise_us >= _OWN_SHARE_MIN * lost_us > 0:
        # All wait for the slowest: behind this rank the next one would be waited for.
        others = own.rise[own.rank != root.rank]
        next_us = max(float(others.max()), 0.0) if len(others) else 0.0
        partial = int(own.based.sum()) < own.world
        return (
            max(rise_us - next_us, 0.0),
            partial,
            f"own time of rank {root.rank} has risen by {rise_us / 1e3:.1f} ms a step, that of the next by "
            f"{next_us / 1e3:.1f} ms",
        )
    late = [key for key in keys if key.late_rank == root.rank]
    if not late:
        return None, False, f"neither own time nor a slow key says what rank {root.rank} costs"
    costs = [
        cost for key in late if (cost := _per_step_us(key, key.worst - float(key.excess.min()))) is not None
    ]
    if not costs:
        return None, False, "the rounds of a step are not counted yet"
    return max(costs), True, f"Tmax - Tmin of {len(late)} keys in which rank {root.rank} comes last"


def _of_link(root: Root, keys: Sequence[SlowKey]) -> tuple[float | None, bool, str]:
    """Even who comes last needs Tmin - Tbase longer than usual: that part is no lateness."""
    if root.kind is RootKind.LINK and root.rank is not None and root.peer_rank is not None:
        link = (root.rank, root.peer_rank)
        mine = [key for key in keys if link in key.slow.links]
        name = f"the link from rank {link[0]} to rank {link[1]}"
    else:
        mine = [key for key in keys if np.isin(root.ranks, key.ranks).any()]
        name = f"this {root.kind.value}"
    if not mine:
        return None, False, f"no slow key shows {name}"
    costs = [cost for key in mine if (cost := _per_step_us(key, float(key.excess.min()))) is not None]
    if not costs:
        return None, False, "the rounds of a step are not counted yet"
    return max(costs), True, f"Tmin - Tbase of {len(mine)} keys through {name}"
