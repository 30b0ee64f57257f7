"""What is normal for each key: (communicator, function, dtype, size bucket, algorithm, protocol).

Arrays of communicators x KEYS_MAX, so that one step handles all rounds of a tick. Tbase is the
median of the smallest T of the first rounds, the usual lag and the usual wait are taken from the
same rounds; afterwards only normal rounds move them, a little.

Two rules find a slow key. One looks at single rounds: R = Tmax / Tbase beyond theta and a lag beyond
the usual one and beyond what matters. The other sums up evidence over rounds (`slow_change`), needs
the duration of a step to know what matters, and finds what is far below theta.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntFlag
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from paceline.analysis.detection.arrays import F32, U8, U32, U64, Bools, Ints
from paceline.analysis.detection.policy import SlowPolicy
from paceline.analysis.detection.rounds import Complete
from paceline.analysis.detection.slow_change import ChangePolicy, Changes, identity

KEYS_MAX = 12  # per communicator; real jobs use a handful of sizes
WAITS_MAX = 16  # newest Tmax per communicator, for the learned limit
_COLUMNS: dict[str, tuple[str, int]] = {  # name -> dtype, values per key
    "code": ("<u4", 1),
    "count": ("<u8", 1),
    "samples": ("<u4", 1),
    "base_ns": ("<f4", 1),
    "lag_ns": ("<f4", 1),
    "ratio": ("<f4", 1),
    "slow_bits": ("<u4", 1),
    "seen": ("<u4", 1),
    "newest": ("<u8", 1),
    "judged_ns": ("<i8", 1),
    "suspect": ("<i8", 1),
    "nats": ("<f4", 1),
    "trend": ("u1", 1),
    "recent_ns": ("<f4", 1),
}
_ALL_ALIKE, _NOBODY = -1, -2
# Lateness has half the noise of a duration in a small group, hence a smaller drift to be tolerated.
_LATE = ChangePolicy(drift=0.65, limit=12.0, noise_min=0.05)
_TOGETHER = ChangePolicy()
_RISES = 0.3  # of the score of an alarm
_LAG_STEP = np.float32(0.04)
_Number = TypeVar("_Number", bound=np.generic)
LastRanks = Callable[[Ints], Ints]  # communicator indices -> global rank that came last


class Trend(IntFlag):
    """What the sum of evidence says of a key."""

    NONE = 0
    LATE = 1  # somebody comes later than usual
    TOGETHER = 2  # nobody waits for anybody, and yet it takes longer
    CONSTANT = 4  # one rank is late by much, and always was


@dataclass(frozen=True)
class Weights:
    """What a lateness costs; one entry per communicator. `known` False: nobody declares steps."""

    step_ns: float  # 0 = unknown
    rounds_per_step: F32
    known: Bools

    def floor_ns(self, comm: Ints, share: float) -> F32:
        """Lateness in each round of `comm` that costs `share` of a step."""
        floor = share * self.step_ns / np.maximum(self.rounds_per_step[comm], 1)
        return np.asarray(floor, np.float32)

    def base_rounds(self, comm: Ints, policy: SlowPolicy) -> F32:
        """Rounds from which the base line of a key of `comm` is made."""
        rare = self.known[comm] & (self.rounds_per_step[comm] <= policy.rare_per_step)
        return np.where(rare, policy.base_rounds_rare, policy.base_rounds).astype(np.float32)


@dataclass(frozen=True)
class Judged:
    """Rounds of one cell row with their key and what was found; one entry per communicator."""

    comm: Ints
    key: Ints
    number: U64
    slow: Bools
    lagging: Bools  # Tmax - Tmin is far beyond the usual: somebody is late
    measured: Bools  # the key has a base line
    trend: U8  # Trend


class KeyTable:
    """Rows follow `Members.comms`; `align` moves them when communicators appear."""

    def __init__(self, policy: SlowPolicy) -> None:
        self.policy = policy
        self.comms: U64 = np.zeros(0, np.uint64)
        self.full = 0  # rounds of keys beyond KEYS_MAX
        self._allocate(0)

    def _allocate(self, comms: int) -> None:
        shape = (comms, KEYS_MAX)
        rounds = self.policy.base_rounds
        self.code: U32 = np.zeros(shape, np.uint32)  # 0 = unused
        self.count: U64 = np.zeros(shape, np.uint64)
        self.samples: U32 = np.zeros(shape, np.uint32)
        self.base_ns: F32 = np.zeros(shape, np.float32)
        self.lag_ns: F32 = np.zeros(shape, np.float32)
        self.ratio: F32 = np.zeros(shape, np.float32)
        self.slow_bits: U32 = np.zeros(shape, np.uint32)  # newest round in bit 0
        self.seen: U32 = np.zeros(shape, np.uint32)
        self.newest: U64 = np.zeros(shape, np.uint64)
        self.judged_ns: Ints = np.zeros(shape, np.int64)
        self.suspect: Ints = np.full(shape, _NOBODY, np.int64)  # rank that came last, _ALL_ALIKE
        self.nats: F32 = np.zeros(shape, np.float32)  # evidence for the suspect
        self.trend: U8 = np.zeros(shape, np.uint8)
        self.recent_ns: F32 = np.zeros(shape, np.float32)  # lateness of the newest rounds
        self.late = Changes(shape, _LATE)
        self.together = Changes(shape, _TOGETHER)
        self.first_min: F32 = np.zeros((*shape, rounds), np.float32)
        self.first_lag: F32 = np.zeros((*shape, rounds), np.float32)
        self.waits: F32 = np.zeros((comms, WAITS_MAX), np.float32)
        self.wait_at: Ints = np.zeros(comms, np.int64)

    def align(self, comms: U64) -> None:
        """Follow a changed list of communicators (sorted, only growing)."""
        if len(comms) == len(self.comms):
            return
        old = self._tables()
        at = np.searchsorted(comms, self.comms)
        self._allocate(len(comms))
        for name, table in self._tables().items():
            table[at] = old[name]
        self.comms = comms.copy()

    def _tables(self) -> dict[str, npt.NDArray[np.generic]]:
        names = (*_COLUMNS, "first_min", "first_lag", "waits", "wait_at")
        return {
            **{name: getattr(self, name) for name in names},
            **self.late.arrays("late_"),
            **self.together.arrays("together_"),
        }

    def arrays(self) -> dict[str, npt.NDArray[np.generic]]:
        """Flat arrays for a snapshot."""
        columns = {f"key_{name}": table.reshape(-1) for name, table in self._tables().items()}
        return {"key_comms": self.comms, **columns}

    @staticmethod
    def array_dtypes() -> dict[str, np.dtype[np.generic]]:
        """dtype of each array of `arrays`."""
        names = [f"{kind}_{name}" for kind in ("late", "together") for name in Changes.NAMES]
        single = {f"key_{name}": np.dtype(code) for name, (code, _) in _COLUMNS.items()}
        more = {f"key_{name}": np.dtype("<f4") for name in ("first_min", "first_lag", "waits", *names)}
        return {"key_comms": np.dtype("<u8"), **single, **more, "key_wait_at": np.dtype("<i8")}

    def restore(self, arrays: dict[str, npt.NDArray[np.generic]]) -> None:
        """Inverse of `arrays`; ValueError where the sizes do not fit."""
        self._allocate(len(arrays["key_comms"]))
        self.comms = arrays["key_comms"].astype(np.uint64)
        for name, table in self._tables().items():
            table[...] = arrays[f"key_{name}"].reshape(table.shape)

    def judge(
        self, rounds: Complete, now_ns: int, weights: Weights, last_ranks: LastRanks, *, learn: bool
    ) -> Judged:
        """Learn from complete rounds and say which are slow; `learn` False only notes the waits."""
        self._note_waits(rounds)
        key, found = self._find(rounds.comm, key_code(rounds))
        comm = rounds.comm[found]
        t_min, t_max, number = rounds.t_min[found], rounds.t_max[found], rounds.number[found]
        at = comm * KEYS_MAX + key  # one index array: half the time of two
        _flat(self.count)[at] = rounds.count[found]
        lag = t_max - t_min
        measured = _flat(self.base_ns)[at] > 0
        slow, lagging = self._compare(comm, key, t_min, t_max, measured, weights)
        if learn:
            lateness = rounds.late[found]
            enough = weights.base_rounds(comm, self.policy)
            trend = self._sum_up(comm, key, t_min, lateness, weights, enough)
            last = self._last(comm, key, t_min, lateness, slow, lagging, weights, last_ranks)
            cap = 3 * self.identity_limit
            _flat(self.suspect)[at], _flat(self.nats)[at] = identity(
                _flat(self.suspect)[at], _flat(self.nats)[at], last, rounds.members[found], cap
            )
            trend |= self._constant(comm, key, weights, trend)
            _flat(self.trend)[at] = trend
            slow |= measured & ((trend & (Trend.LATE | Trend.TOGETHER)) != 0)
            fresh = ~measured
            self._learn(comm[fresh], key[fresh], t_min[fresh], lag[fresh], enough[fresh])
            normal = measured & ~slow & (_flat(self.late.score)[at] < 0.5 * _LATE.limit)
            self._refresh(comm[normal], key[normal], t_min[normal])
            noise = measured & (~slow | (_flat(self.nats)[at] < 0.5 * self.policy.identity_nats))
            self._refresh_lag(comm[noise], key[noise], lag[noise])
            bits = (_flat(self.slow_bits)[at] << np.uint32(1)) | slow
            _flat(self.slow_bits)[at] = bits & np.uint32((1 << self.policy.repeat_n) - 1)
            _flat(self.seen)[at] += measured.astype(np.uint32)
            _flat(self.judged_ns)[at] = now_ns
            _flat(self.newest)[at] = np.maximum(_flat(self.newest)[at], number)
        return Judged(comm, key, number, slow & learn, lagging, measured, _flat(self.trend)[at])

    @property
    def identity_limit(self) -> float:
        """More evidence is needed where more groups are watched: chance has more tries."""
        return self.policy.identity_nats + float(np.log(max(len(self.comms), 1)))

    def threshold(self, at: tuple[int, int]) -> float:
        """R that a slow round of this key has: theta, or below it what the sum of evidence has found."""
        base = max(float(self.base_ns[at]), 1.0)
        trend = Trend(int(self.trend[at]))
        if trend is Trend.NONE:
            return self.policy.theta
        series = self.together if Trend.TOGETHER in trend and Trend.LATE not in trend else self.late
        rise = float(series.rise(_single(at))[0])
        if trend is Trend.CONSTANT:
            rise = float(self.late.mean[at])
        return min(self.policy.theta, max(1 + 0.5 * rise / base, 1.01))

    def usual_wait_ms(self) -> Ints:
        """Median of the newest Tmax of each communicator, 0 where there is none, ms."""
        filled = np.sort(self.waits, axis=1)
        known = np.count_nonzero(filled, axis=1)
        middle = WAITS_MAX - known + known // 2
        value = filled[np.arange(len(filled)), np.minimum(middle, WAITS_MAX - 1)]
        result: Ints = np.where(known > 0, value / 1e6, 0).astype(np.int64)
        return result

    def base_ms(self) -> Ints:
        """Largest Tbase of each communicator, ms."""
        if len(self.base_ns) == 0:
            return np.zeros(0, np.int64)
        largest: Ints = (self.base_ns.max(axis=1) / 1e6).astype(np.int64)
        return largest

    def _note_waits(self, rounds: Complete) -> None:
        self.waits[rounds.comm, self.wait_at[rounds.comm]] = rounds.t_max
        self.wait_at[rounds.comm] = (self.wait_at[rounds.comm] + 1) % WAITS_MAX

    def _find(self, comm: Ints, code: U32) -> tuple[Ints, Bools]:
        """Key index of each round, new keys included; False where a communicator has too many."""
        held = self.code[comm]
        match = held == code[:, None]
        known = match.any(axis=1)
        empty = held == 0
        room = empty.any(axis=1)
        key = np.where(known, match.argmax(axis=1), empty.argmax(axis=1))
        found = known | room
        self.full += int(np.count_nonzero(~found))
        self.code[comm[found], key[found]] = code[found]
        return key[found], found

    def _compare(
        self, comm: Ints, key: Ints, t_min: F32, t_max: F32, measured: Bools, weights: Weights
    ) -> tuple[Bools, Bools]:
        """Slow: R beyond theta, by time that matters, and beyond what was usual from the start."""
        policy = self.policy
        base = np.maximum(self.base_ns[comm, key], 1.0)
        blind = max(policy.blind_lag_floor_ms, policy.lag_floor_ms) * 1e6
        weighed = max(policy.strong_cost_share * weights.step_ns, policy.round_floor_ms * 1e6)
        floor_ns = np.where(weights.known[comm], weighed, blind)
        self.ratio[comm, key] = np.where(measured, t_max / base, 0)
        beyond = measured & (t_max >= policy.theta * base)
        lag_limit = np.maximum(policy.usual_lag_factor * self.lag_ns[comm, key], floor_ns)
        lagging = beyond & (t_max - t_min >= lag_limit)
        everybody = beyond & (t_min >= policy.theta * base) & (t_min - base >= floor_ns)
        return lagging | everybody, lagging

    def _sum_up(self, comm: Ints, key: Ints, t_min: F32, lateness: F32, weights: Weights, enough: F32) -> U8:
        """Trend of each key by the sums of evidence."""
        if weights.step_ns <= 0:
            return np.zeros(len(comm), np.uint8)  # nothing to weigh by, nothing to learn for
        extra = float(np.log(max(len(self.comms), 1)))
        at = (comm, key)
        floor_ns = np.maximum(
            weights.floor_ns(comm, self.policy.cost_share), np.float32(self.policy.lag_floor_ms * 1e6)
        )
        self.recent_ns[at] += np.float32(0.1) * (lateness - self.recent_ns[at])
        late = self.late.observe(at, lateness, floor_ns, extra=extra, enough=enough)
        together = self.together.observe(at, t_min, floor_ns, extra=extra, enough=enough)
        trend = np.where(late, int(Trend.LATE), 0) | np.where(together, int(Trend.TOGETHER), 0)
        return np.where(weights.known[comm], trend, 0).astype(np.uint8)

    def _last(
        self,
        comm: Ints,
        key: Ints,
        t_min: F32,
        lateness: F32,
        slow: Bools,
        lagging: Bools,
        weights: Weights,
        last_ranks: LastRanks,
    ) -> Ints:
        """Who came last in each round, _ALL_ALIKE or _NOBODY: only a lateness that matters counts."""
        # A small lateness is counted only where it has begun to rise: somebody is always the slowest.
        rises = _flat(self.late.score)[comm * KEYS_MAX + key] >= _RISES * _LATE.limit
        least_ms = np.where(rises, self.policy.lag_floor_ms, self.policy.round_floor_ms)
        matters = np.maximum(weights.floor_ns(comm, 0.5 * self.policy.cost_share), least_ms * 1e6)
        together = (slow & ~lagging) | (self.together.score[comm, key] >= _TOGETHER.limit)
        # a slow transfer hides neither that somebody comes late as well, nor is it made of the usual lateness
        together &= lateness - self.late.mean[comm, key] < np.minimum(
            t_min - self.base_ns[comm, key], 2 * matters
        )
        somebody = (lagging | (weights.known[comm] & (lateness >= matters))) & ~together
        last = np.where(together, _ALL_ALIKE, _NOBODY).astype(np.int64)
        if somebody.any():
            last[somebody] = last_ranks(comm[somebody])
        return last

    def _constant(self, comm: Ints, key: Ints, weights: Weights, trend: U8) -> U8:
        """Late as ever, by far too much: history cannot tell, the other members can."""
        floor_ns = weights.floor_ns(comm, self.policy.constant_cost_share)
        is_constant = weights.known[comm] & (trend == 0) & (self.suspect[comm, key] >= 0)
        is_constant &= self.nats[comm, key] >= 2 * self.identity_limit
        is_constant &= self.late.mean[comm, key] >= np.maximum(floor_ns, self.policy.blind_lag_floor_ms * 1e6)
        return np.where(is_constant, int(Trend.CONSTANT), 0).astype(np.uint8)

    def _learn(self, comm: Ints, key: Ints, t_min: F32, lag: F32, enough: F32) -> None:
        at = self.samples[comm, key].astype(np.int64)
        self.first_min[comm, key, at], self.first_lag[comm, key, at] = t_min, lag
        self.samples[comm, key] += np.uint32(1)
        held = at + 1
        for count in np.unique(held[held >= enough]):
            ready = held == count
            now = (comm[ready], key[ready])
            self.base_ns[now] = np.median(self.first_min[now][:, :count], axis=1)
            self.lag_ns[now] = np.quantile(self.first_lag[now][:, :count], 0.9, axis=1)
            self.first_min[now] = self.first_lag[now] = 0  # snapshots compress better

    def _refresh(self, comm: Ints, key: Ints, t_min: F32) -> None:
        weight = np.float32(self.policy.refresh_weight)
        self.base_ns[comm, key] += weight * (t_min - self.base_ns[comm, key])
        self.samples[comm, key] += np.uint32(1)

    def _refresh_lag(self, comm: Ints, key: Ints, lag: F32) -> None:
        """The usual lag stays where one round in ten exceeds it, also when a host becomes noisier."""
        held = self.lag_ns[comm, key]
        move = np.where(lag > held, _LAG_STEP * 0.9, -_LAG_STEP * 0.1)
        self.lag_ns[comm, key] = held + np.maximum(held, 1000) * move


def _flat(table: npt.NDArray[_Number]) -> npt.NDArray[_Number]:
    """View of a table as one row."""
    return table.reshape(-1)


def _single(at: tuple[int, int]) -> tuple[Ints, Ints]:
    return (np.array([at[0]], np.int64), np.array([at[1]], np.int64))


def key_code(rounds: Complete) -> U32:
    """Function, dtype, size bucket, algorithm and protocol in one number, never 0."""
    code: U32 = (rounds.function.astype(np.uint32) << np.uint32(12)) | bit_length(rounds.count)
    code |= (rounds.dtype.astype(np.uint32) << np.uint32(7)) | (
        rounds.path.astype(np.uint32) << np.uint32(20)
    )
    return code | np.uint32(1 << 31)


@dataclass(frozen=True)
class KeyParts:
    """A key code taken apart."""

    function: int
    dtype: int
    bucket: int
    path: int


def key_parts(code: int) -> KeyParts:
    """Inverse of `key_code`."""
    return KeyParts((code >> 12) & 0xFF, (code >> 7) & 0x1F, code & 0x7F, (code >> 20) & 0xFF)


def bit_length(count: U64) -> U32:
    """Bit length of each number: rounds of one key share it. Exact up to 2**53, enough for a bucket."""
    exponent = np.frexp(count.astype(np.float64))[1]
    return exponent.astype(np.uint32)
