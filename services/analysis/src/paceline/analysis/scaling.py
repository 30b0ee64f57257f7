"""Why a job that is not broken scales badly: stragglers in turn, contention of the fabric, locality.

Looks at one window of iterations, per rank its own time and its waits, per communicator the part of T
that is no lateness. Everything is a difference of one rank's own clock. A finding explains lost
throughput; it accuses nobody and opens nothing (papers.md 3.4, docs/adr/0024-scaling-findings.md).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from paceline.analysis.evidence import Ints
from paceline.contracts.scaling import RANKS_MAX, ScalingFinding, ScalingMode

Times = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class ScalingPolicy:
    """Thresholds; shares are of the mean iteration."""

    cv_window: int = 20  # iterations, papers.md 3.2
    cv_min: float = 0.08  # papers.md 3.2, where pacing would begin; 10% jitter alone stays below it
    iterations_min: int = 40  # two windows: what is stable has to be so twice
    ranks_min: int = 4
    cost_min: float = 0.02  # what costs less is not worth a word, as for slow rounds
    alpha: float = 0.8  # P of lateness
    beta: float = 0.2  # P of transfer
    culprit_share_max: float = 0.3  # one rank that is last more often is a late rank, not the crowd
    mean_share_max: float = 0.5  # of the lateness that the slowest mean explains
    stable_min: float = 0.7  # correlation of the ranks' means between both halves
    grouped_min: float = 0.5  # of the variance of means that the place explains
    slow_of_place_min: float = 0.75  # ranks of a slow place that are slow themselves
    burst_factor: float = 0.5  # above the usual transfer time
    burst_share_min: float = 0.05
    burst_share_max: float = 0.6  # slow for longer is a slow link
    together_min: float = 0.5  # bursts that two communicators have in common (Jaccard)


@dataclass(frozen=True, eq=False)
class ScalingWindow:
    """I iterations of R ranks. Durations in seconds; a rank that shows no waits is left out by the caller.

    `transfer_s` holds for each of C communicators the smallest T among its members, summed over the
    iteration: even who comes last needs it. `places` are group numbers of the ranks by the name of what
    they share (node, local_rank, numa, nic), -1 where unknown. `comm_nodes` names the nodes of each
    communicator; it may be empty.
    """

    step_s: Times  # I x R
    waited_s: Times  # I x R, in collectives and receives
    ranks: Ints  # R, global
    transfer_s: Times = field(default_factory=lambda: np.zeros((0, 0)))  # I x C
    comm_names: Sequence[str] = ()
    places: Mapping[str, Ints] = field(default_factory=dict)
    comm_nodes: Sequence[frozenset[str]] = ()


@dataclass(frozen=True)
class ScalingReport:
    """CV of the iteration time per window of `cv_window` iterations, newest last, and the findings."""

    cv: tuple[float, ...]
    findings: tuple[ScalingFinding, ...]
    refused: str = ""  # why nothing could be said


def find_scaling_modes(window: ScalingWindow, policy: ScalingPolicy | None = None) -> ScalingReport:
    """The failure modes of a window. ValueError where the shapes do not fit."""
    policy = policy or ScalingPolicy()
    _check(window)
    iterations, ranks = window.step_s.shape
    cv = _cv_per_window(window.step_s, policy.cv_window)
    if iterations < policy.iterations_min:
        return ScalingReport(cv, (), f"{iterations} iterations, {policy.iterations_min} are needed")
    if ranks < policy.ranks_min:
        return ScalingReport(cv, (), f"{ranks} ranks show their waits, {policy.ranks_min} are needed")
    if not (np.isfinite(window.step_s).all() and np.isfinite(window.waited_s).all()):
        return ScalingReport(cv, (), "some rank did not show its step time or waits in every iteration")
    shape = _Shape.of(window)
    found = (
        _amplified(window, shape, cv, policy),
        _local(window, shape, policy),
        _contended(window, shape, policy),
    )
    return ScalingReport(cv, tuple(finding for finding in found if finding is not None))


def _check(window: ScalingWindow) -> None:
    iterations, ranks = window.step_s.shape
    if window.waited_s.shape != (iterations, ranks) or window.ranks.shape != (ranks,):
        raise ValueError(
            f"waited_s has shape {window.waited_s.shape} and ranks {window.ranks.shape}, "
            f"expected {(iterations, ranks)} and {(ranks,)}"
        )
    if window.transfer_s.size and window.transfer_s.shape != (iterations, len(window.comm_names)):
        raise ValueError(
            f"transfer_s has shape {window.transfer_s.shape}, expected {(iterations, len(window.comm_names))}"
        )
    for name, groups in window.places.items():
        if groups.shape != (ranks,):
            raise ValueError(f"places[{name!r}] has shape {groups.shape}, expected {(ranks,)}")


def _cv_per_window(step_s: Times, count: int) -> tuple[float, ...]:
    """Of the iteration time of the job, which is that of its median rank."""
    if step_s.shape[1] == 0:
        return ()
    times = np.median(step_s, axis=1)
    parts = [times[begin : begin + count] for begin in range(0, len(times) - count + 1, count)]
    return tuple(round(float(part.std() / part.mean()), 4) for part in parts if part.mean() > 0)


@dataclass(frozen=True, eq=False)
class _Shape:
    step: float  # mean iteration
    own: Times  # I x R, outside collectives and receives
    late: Times  # I, the slowest above the median rank
    spread: Times  # I, largest minus smallest wait
    longest: Times  # I, largest wait
    base: float  # usual smallest wait: the transfer itself

    @classmethod
    def of(cls, window: ScalingWindow) -> "_Shape":
        own = window.step_s - window.waited_s
        low, high = window.waited_s.min(axis=1), window.waited_s.max(axis=1)
        return cls(
            step=float(window.step_s.mean()),
            own=own,
            late=own.max(axis=1) - np.median(own, axis=1),
            spread=high - low,
            longest=high,
            base=float(np.quantile(low, 0.1)),
        )

    def share(self, mask: Bools, usual: float = 0.0) -> float:
        """P = (Tmax - Tmin) / (Tmax - Tbase) over the iterations of `mask`, without the usual spread."""
        spread = np.maximum(self.spread[mask] - usual, 0.0).sum()
        whole = np.maximum(self.longest[mask] - self.base - usual, 0.0).sum()
        return float(spread / whole) if whole > 0 else 0.0


def _amplified(
    window: ScalingWindow, shape: _Shape, cv: tuple[float, ...], policy: ScalingPolicy
) -> ScalingFinding | None:
    """The culprit changes, nobody is slower on average, and the iteration time is uneven."""
    usual = float(np.median(shape.late))
    costly = shape.late > max(2 * usual, usual + policy.cost_min * shape.step)
    cost = float(np.maximum(shape.late - usual, 0.0).mean()) / shape.step
    uneven = float(np.median(cv)) if cv else 0.0
    if costly.sum() < 3 or cost < policy.cost_min or uneven < policy.cv_min:
        return None
    culprits = shape.own[costly].argmax(axis=1)
    _, counts = np.unique(culprits, return_counts=True)
    most = float(counts.max() / costly.sum())
    means = shape.own.mean(axis=0)
    explained = float(means.max() - np.median(means)) / max(float(shape.late[costly].mean()), 1e-12)
    p = shape.share(costly)
    if most > policy.culprit_share_max or explained > policy.mean_share_max or p < policy.alpha:
        return None
    return ScalingFinding(
        ScalingMode.SYNC_AMPLIFICATION,
        f"in {int(costly.sum())} of {len(costly)} iterations all wait for one rank, each time another: "
        f"{len(counts)} of {len(means)} ranks were last",
        cost,
        {
            "cv": f"{uneven:.3f}",
            "P": f"{p:.2f}",
            "most_frequent": f"{most:.2f}",
            "of_mean": f"{explained:.2f}",
        },
    )


def _local(window: ScalingWindow, shape: _Shape, policy: ScalingPolicy) -> ScalingFinding | None:
    """The same ranks are always slower, and what they share explains it."""
    means = shape.own.mean(axis=0)
    half = len(shape.own) // 2
    noise = float(np.median(shape.own.std(axis=0))) / np.sqrt(len(shape.own))
    least = float(np.median(means)) + max(policy.cost_min * shape.step, 4 * noise)
    slow = means > least
    if slow.sum() < 2 or slow.all():
        return None
    stable = _correlation(shape.own[:half].mean(axis=0), shape.own[half:].mean(axis=0))
    name, explained, of_place = _best_place(means, slow, window.places)
    if stable < policy.stable_min or explained < policy.grouped_min or of_place < policy.slow_of_place_min:
        return None
    cost = float(means.max() - np.median(means)) / shape.step
    ranks = tuple(int(rank) for rank in window.ranks[slow][:RANKS_MAX])
    return ScalingFinding(
        ScalingMode.LOCALITY_VARIANCE,
        f"{int(slow.sum())} ranks that share a {name} are always slower, by up to {cost:.1%} of an iteration",
        cost,
        {"stable": f"{stable:.2f}", "explained": f"{explained:.2f}", "slow_of_place": f"{of_place:.2f}"},
        ranks=ranks,
        place=name,
    )


def _best_place(means: Times, slow: Bools, places: Mapping[str, Ints]) -> tuple[str, float, float]:
    """The kind of place that explains most of the variance of `means`, and how many ranks of its slow
    groups are slow. Groups of one rank explain everything and say nothing."""
    best = ("", 0.0, 0.0)
    total = float(((means - means.mean()) ** 2).sum())
    for name, groups in sorted(places.items()):
        _, number, sizes = np.unique(groups, return_inverse=True, return_counts=True)
        if (groups < 0).any() or len(sizes) < 2 or sizes.min() < 2 or total <= 0:
            continue
        inner = np.bincount(number, means) / sizes
        explained = float((sizes * (inner - means.mean()) ** 2).sum()) / total
        slow_share = np.bincount(number, slow.astype(np.float64)) / sizes
        touched = slow_share > 0
        if explained > best[1]:
            best = (name, explained, float(slow_share[touched].mean()))
    return best


def _contended(window: ScalingWindow, shape: _Shape, policy: ScalingPolicy) -> ScalingFinding | None:
    """Transfers of several communicators take longer now and then, at the same times."""
    if not window.transfer_s.size or not np.isfinite(window.transfer_s).all():
        return None
    usual = np.quantile(window.transfer_s, 0.2, axis=0)
    excess = window.transfer_s - usual
    burst = excess > np.maximum(policy.burst_factor * usual, policy.cost_min * shape.step)
    shares = burst.mean(axis=0)
    hit = np.flatnonzero((shares >= policy.burst_share_min) & (shares <= policy.burst_share_max))
    hit = hit[burst[:, hit].sum(axis=0) >= 3]
    if len(hit) < 2:
        return None
    together = _jaccard(burst[:, hit])
    hit = hit[together >= policy.together_min]
    if len(hit) < 2:
        return None
    during: Bools = np.asarray(burst[:, hit].any(axis=1), np.bool_)
    cost = float(np.maximum(excess[:, hit].max(axis=1), 0.0)[during].sum() / len(during)) / shape.step
    p = shape.share(during, float(np.median(shape.spread[~during])))
    if cost < policy.cost_min or p > policy.beta:
        return None
    shared = _shared_nodes(window, hit)
    names = [window.comm_names[at] for at in hit]
    return ScalingFinding(
        ScalingMode.FABRIC_CONTENTION,
        f"transfers of {len(hit)} communicators are slow together in {int(during.sum())} of {len(during)} "
        f"iterations and usual otherwise: {', '.join(names[:8])}",
        cost,
        {"P": f"{p:.2f}", "together": f"{float(together.max()):.2f}", "share": f"{float(during.mean()):.2f}"},
        place=", ".join(shared[:8]),
    )


def _jaccard(burst: Bools) -> Times:
    """For each column the largest overlap with another one."""
    hits = burst.astype(np.float64)
    both = hits.T @ hits
    alone = np.diag(both)
    overlap = both / np.maximum(alone[:, None] + alone[None, :] - both, 1.0)
    np.fill_diagonal(overlap, 0.0)
    return np.asarray(overlap.max(axis=1), np.float64)


def _shared_nodes(window: ScalingWindow, hit: Ints) -> list[str]:
    if len(window.comm_nodes) != len(window.comm_names):
        return []
    return sorted(frozenset.intersection(*(window.comm_nodes[at] for at in hit)))


def _correlation(one: Times, other: Times) -> float:
    one, other = one - one.mean(), other - other.mean()
    scale = float(np.sqrt((one**2).sum() * (other**2).sum()))
    return float((one * other).sum() / scale) if scale > 0 else 0.0
