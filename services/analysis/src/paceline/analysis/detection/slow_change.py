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
_FEW = np.float32(4.5)  # below 20 values the noise may be underestimated by half
_CALM_BELOW = np.float32(0.5)  # noise units above the mean
_AGREES = 0.8  # how often a guilty rank comes last


@dataclass(frozen=True)
class ChangePolicy:
    """When a rise of the mean is one."""

    base_values: int = 20  # learned from so many values
    drift: float = 0.65  # noise units a value that are tolerated: half of the smallest rise to be found
    limit: float = 13.0  # score of an alarm; less than half of it ends one
    cap: float = 3.5  # one value counts no more than this
    calm: float = 2.0  # what a value of less than CALM_BELOW takes off besides: what has risen is seldom calm
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
        self,
        at: At,
        values: F32,
        matters: Floats | float = 0.0,
        weight: float = 1.0,
        extra: float = 0.0,
        enough: F32 | None = None,
    ) -> Bools:
        """Take one value of each series of `at`; returns which are in alarm and have risen by `matters`.

        `weight`: each value is a mean over so many. `extra` raises the limit where many series are
        watched at once (natural logarithm of their number). `enough`: values to learn from, of each
        series; the policy's where it is None.
        """
        policy = self.policy
        flat = self._flat(at)  # one index array: half the time of two
        mean, deviation, seen = (
            self._take("mean", flat),
            self._take("deviation", flat),
            self._take("samples", flat),
        )
        ready = seen >= (policy.base_values if enough is None else enough)
        sigma = self._sigma(mean, deviation, seen)
        rise = values - mean
        counted = np.float32(np.sqrt(min(weight, policy.cap)))  # one sample stays weak whatever it averages
        units = rise / sigma * counted
        step = np.minimum(units, np.float32(policy.cap)) - np.float32(policy.drift)
        step -= np.float32(policy.calm) * (units < _CALM_BELOW)
        score = np.where(ready, np.maximum(self._take("score", flat) + step, 0), 0)
        # Not on the way to an alarm. Single outliers are learned too, cut: tails belong to the noise.
        normal = ~ready | (score < 0.5 * policy.limit)
        alive = score > 0
        most = np.maximum(policy.cap * sigma, 2 * np.asarray(matters, np.float32))  # of one outlier
        excess = np.where(alive, self._take("excess", flat) + np.minimum(rise, most), 0)
        run = np.where(alive, self._take("run", flat) + 1, 0)
        self._put("excess", flat, excess)
        self._put("run", flat, run)
        self._put("score", flat, np.minimum(score, 2 * (policy.limit + extra)))
        self._learn(flat, mean, deviation, seen, rise, sigma, normal, counted)
        alarm: Bools = (score >= policy.limit + extra) & (excess >= matters * np.maximum(run, 1))
        return alarm

    def _flat(self, at: At) -> Ints:
        if len(at) == 1:
            return at[0]
        flat: Ints = np.ravel_multi_index(at, self.mean.shape)
        return flat

    def _take(self, name: str, flat: Ints) -> F32:
        values: F32 = getattr(self, name).reshape(-1)[flat]
        return values

    def _put(self, name: str, flat: Ints, values: Floats) -> None:
        getattr(self, name).reshape(-1)[flat] = values

    def rise(self, at: At) -> F32:
        """Mean excess over the usual since the score left 0."""
        result: F32 = (self.excess[at] / np.maximum(self.run[at], np.float32(1))).astype(np.float32)
        return result

    def arrays(self, prefix: str) -> dict[str, npt.NDArray[np.generic]]:
        return {f"{prefix}{name}": getattr(self, name) for name in self.NAMES}

    def _sigma(self, mean: F32, deviation: F32, seen: F32) -> F32:
        """Noise of one value, wider while little is known."""
        known = np.maximum(seen, np.float32(1))
        widening = 1 + np.maximum(1 / np.sqrt(known), _FEW / known)
        floor = np.maximum(np.abs(mean) * np.float32(self.policy.noise_min), np.float32(1e-6))
        sigma: F32 = np.maximum(deviation * np.float32(_MAD_TO_SIGMA), floor) * widening
        return sigma

    def _learn(
        self,
        flat: Ints,
        mean: F32,
        deviation: F32,
        seen: F32,
        rise: F32,
        sigma: F32,
        normal: Bools,
        counted: np.float32,
    ) -> None:
        """Mean and noise by running means; after a few values an outlier is cut to four times the noise."""
        rise = np.where(seen >= 5, np.clip(rise, -4 * sigma, 4 * sigma), rise)
        refresh = np.float32(self.policy.refresh)
        share = np.where(normal, np.maximum(1 / (seen + 1), refresh), 0)
        first = np.where(normal & (seen > 0), np.maximum(1 / np.maximum(seen, 1), refresh), 0)
        self._put("mean", flat, mean + share * rise)
        self._put("deviation", flat, deviation + first * (np.abs(rise) * counted - deviation))
        self._put("samples", flat, seen + normal)


def identity(candidate: Ints, nats: F32, last: Ints, members: Ints, cap: float) -> tuple[Ints, F32]:
    """Update who is suspected of coming last, and the evidence for it.

    `last`: who came last in this round, -1 where all were slow alike, -2 where nothing was slow.
    `members`: size of the group. The evidence of another suspect has to be used up first.
    """
    quiet = last == -2
    if quiet.all():  # nearly every tick; the rest costs three times as much
        return candidate, np.clip(nats - np.float32(0.5), 0, cap).astype(np.float32)
    odds = np.maximum(members, 2).astype(np.float64)
    agrees = np.log(_AGREES * np.where(last == -1, 8.0, odds))  # 'all alike' has no number of choices
    differs = np.log((1 - _AGREES) / (1 - 1 / odds))
    same = (last == candidate) & ~quiet
    change = np.where(quiet, -0.5, np.where(same, agrees, differs))
    value = nats + change
    takes_over = ~same & ~quiet & (value <= 0)
    now = np.where(takes_over, last, candidate)
    value = np.where(takes_over, agrees, np.clip(value, 0, cap))
    return now, value.astype(np.float32)
