"""Two sequential tests on many series at once: has the mean risen, and is it always the same rank?

`Changes` is a one-sided CUSUM in units of each series' own noise. A value adds `z - drift`, z capped,
so that one pause of any length never raises it; the score of unchanged noise falls by `drift` a value
and the chance that it reaches `limit` falls with exp(-2 x drift x limit). 5% at 2% noise is z = 2.5:
found after 9 values. 5% at 10% noise is no more than noise, and nothing is raised.

`identity` is a sequential probability ratio test of "this rank comes last in four of five rounds"
against "anybody of n comes last equally often": it needs no noise level at all, and agreement by
chance, likely in a group of two, weighs little there.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from paceline.analysis.detection.arrays import F32, Bools, Ints

Floats = npt.NDArray[np.float32] | npt.NDArray[np.float64]
At = tuple[Ints, ...]  # one index array per dimension; the entries are distinct
_MAD_TO_SIGMA = 1.25  # of a normal distribution: sigma / mean absolute deviation
_AGREES = 0.8  # how often a guilty rank comes last


@dataclass(frozen=True)
class ChangePolicy:
    """When a rise of the mean is one."""

    base_values: int = 20  # learned from so many values
    drift: float = 0.8  # noise units a value that are tolerated: half of the smallest rise to be found
    limit: float = 12.0  # score of an alarm; less than half of it ends one
    cap: float = 3.5  # one value counts no more than this
    noise_min: float = 0.005  # noise is at least this share of the mean: measuring is not exact
    refresh: float = 0.01  # a normal value moves mean and noise by so much of the difference


class Changes:
    """State of all series as arrays of `shape`."""

    NAMES = ("samples", "mean", "deviation", "score", "excess", "run")

    def __init__(self, shape: tuple[int, ...], policy: ChangePolicy) -> None:
        self.policy = policy
        self.samples: F32 = np.zeros(shape, np.float32)
        self.mean: F32 = np.zeros(shape, np.float32)
        self.deviation: F32 = np.zeros(shape, np.float32)  # mean absolute
        self.score: F32 = np.zeros(shape, np.float32)
        self.excess: F32 = np.zeros(shape, np.float32)  # sum over the mean since the score left 0
        self.run: F32 = np.zeros(shape, np.float32)  # values since then

    def observe(
        self, at: At, values: F32, matters: Floats | float = 0.0, weight: float = 1.0, extra: float = 0.0
    ) -> Bools:
        """Take one value of each series of `at`; returns which are in alarm and have risen by `matters`.

        `weight`: each value is a mean over so many. `extra` raises the limit where many series are
        watched at once (natural logarithm of their number).
        """
        policy = self.policy
        ready = self.samples[at] >= policy.base_values
        sigma = self._sigma(at)
        rise = values - self.mean[at]
        z = rise / sigma
        counted = min(weight, policy.cap)  # a single sample stays weak whatever it averages
        step = np.minimum(z * np.sqrt(counted), policy.cap) - policy.drift
        score = np.where(ready, np.maximum(self.score[at] + step, 0), 0)
        # Not on the way to an alarm. Single outliers are learned too, cut: tails belong to the noise.
        normal = ~ready | (score < 0.5 * policy.limit)
        alive = score > 0
        most = np.maximum(policy.cap * sigma, 2 * np.asarray(matters, np.float32))  # of one outlier
        self.excess[at] = np.where(alive, self.excess[at] + np.minimum(rise, most), 0)
        self.run[at] = np.where(alive, self.run[at] + 1, 0)
        self.score[at] = np.minimum(score, 2 * (policy.limit + extra))
        self._learn(tuple(index[normal] for index in at), rise[normal], sigma[normal], weight)
        alarm: Bools = (score >= policy.limit + extra) & (self.rise(at) >= matters)
        return alarm

    def rise(self, at: At) -> F32:
        """Mean excess over the usual since the score left 0."""
        result: F32 = (self.excess[at] / np.maximum(self.run[at], np.float32(1))).astype(np.float32)
        return result

    def arrays(self, prefix: str) -> dict[str, npt.NDArray[np.generic]]:
        return {f"{prefix}{name}": getattr(self, name) for name in self.NAMES}

    def _sigma(self, at: At) -> F32:
        """Noise of one value, wider while little is known."""
        widening = 1 + 1 / np.sqrt(np.maximum(self.samples[at], 1))
        floor = np.maximum(np.abs(self.mean[at]) * self.policy.noise_min, 1e-6)
        sigma: F32 = np.maximum(self.deviation[at] * _MAD_TO_SIGMA, floor) * widening
        return sigma.astype(np.float32)

    def _learn(self, at: At, rise: F32, sigma: F32, weight: float) -> None:
        """Mean and noise by running means; after a few values an outlier is cut to four times the noise."""
        seen = self.samples[at]
        rise = np.where(seen >= 5, np.clip(rise, -4 * sigma, 4 * sigma), rise)
        share = np.maximum(1 / (seen + 1), self.policy.refresh).astype(np.float32)
        self.mean[at] += share * rise
        spread = np.abs(rise) * np.float32(np.sqrt(min(weight, self.policy.cap)))
        first = np.maximum(1 / np.maximum(seen, 1), self.policy.refresh).astype(np.float32)
        self.deviation[at] += np.where(seen > 0, first * (spread - self.deviation[at]), 0)
        self.samples[at] += 1


def identity(candidate: Ints, nats: F32, last: Ints, members: Ints, cap: float) -> tuple[Ints, F32]:
    """Update who is suspected of coming last, and the evidence for it.

    `last`: who came last in this round, -1 where all were slow alike, -2 where nothing was slow.
    `members`: size of the group. The evidence of another suspect has to be used up first.
    """
    odds = np.maximum(members, 2).astype(np.float64)
    agrees = np.log(_AGREES * np.where(last == -1, 8.0, odds))  # 'all alike' has no number of choices
    differs = np.log((1 - _AGREES) / (1 - 1 / odds))
    quiet = last == -2
    same = (last == candidate) & ~quiet
    change = np.where(quiet, -0.5, np.where(same, agrees, differs))
    value = nats + change
    takes_over = ~same & ~quiet & (value <= 0)
    now = np.where(takes_over, last, candidate)
    value = np.where(takes_over, agrees, np.clip(value, 0, cap))
    return now, value.astype(np.float32)
