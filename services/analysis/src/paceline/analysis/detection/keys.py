"""What is normal for each key: (communicator, function, dtype, size bucket).

Arrays of communicators x KEYS_MAX, so that one step handles all rounds of a tick. Tbase is the
median of the smallest T of the first rounds, the usual lag and the usual wait are taken from the
same rounds; afterwards only normal rounds move them, a little.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from paceline.analysis.detection.arrays import F32, U32, U64, Bools, Ints
from paceline.analysis.detection.policy import SlowPolicy
from paceline.analysis.detection.rounds import Complete

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
}


@dataclass(frozen=True)
class Judged:
    """Rounds of one cell row with their key and what was found; one entry per communicator."""

    comm: Ints
    key: Ints
    number: U64
    slow: Bools
    lagging: Bools  # Tmax - Tmin is far beyond the usual: somebody is late
    measured: Bools  # the key has a base line


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
        self.first_min: F32 = np.zeros((*shape, rounds), np.float32)
        self.first_lag: F32 = np.zeros((*shape, rounds), np.float32)
        self.waits: F32 = np.zeros((comms, WAITS_MAX), np.float32)
        self.wait_at: Ints = np.zeros(comms, np.int64)

    def align(self, comms: U64) -> None:
        """Follow a changed list of communicators (sorted, only growing)."""
        if len(comms) == len(self.comms):
            return
        old = {name: getattr(self, name) for name in self.names()}
        at = np.searchsorted(comms, self.comms)
        self._allocate(len(comms))
        for name, values in old.items():
            getattr(self, name)[at] = values
        self.comms = comms.copy()

    @staticmethod
    def names() -> tuple[str, ...]:
        return (*_COLUMNS, "first_min", "first_lag", "waits", "wait_at")

    def arrays(self) -> dict[str, npt.NDArray[np.generic]]:
        """Flat arrays for a snapshot."""
        columns = {f"key_{name}": getattr(self, name).reshape(-1) for name in self.names()}
        return {"key_comms": self.comms, **columns}

    @staticmethod
    def array_dtypes() -> dict[str, np.dtype[np.generic]]:
        """dtype of each array of `arrays`."""
        single = {f"key_{name}": np.dtype(code) for name, (code, _) in _COLUMNS.items()}
        more = {f"key_{name}": np.dtype("<f4") for name in ("first_min", "first_lag", "waits")}
        return {"key_comms": np.dtype("<u8"), **single, **more, "key_wait_at": np.dtype("<i8")}

    def restore(self, arrays: dict[str, npt.NDArray[np.generic]]) -> None:
        """Inverse of `arrays`; ValueError where the sizes do not fit."""
        self._allocate(len(arrays["key_comms"]))
        self.comms = arrays["key_comms"].astype(np.uint64)
        for name in self.names():
            column = getattr(self, name)
            column[...] = arrays[f"key_{name}"].reshape(column.shape)

    def judge(self, rounds: Complete, now_ns: int, *, learn: bool) -> Judged:
        """Learn from complete rounds and say which are slow; `learn` False only notes the waits."""
        self._note_waits(rounds)
        key, found = self._find(rounds.comm, key_code(rounds))
        comm = rounds.comm[found]
        t_min, t_max, number = rounds.t_min[found], rounds.t_max[found], rounds.number[found]
        self.count[comm, key] = rounds.count[found]
        lag = t_max - t_min
        measured = self.samples[comm, key] >= self.policy.base_rounds
        slow, lagging = self._compare(comm, key, t_min, t_max, measured)
        if learn:
            fresh = ~measured
            self._learn(comm[fresh], key[fresh], t_min[fresh], lag[fresh])
            normal = measured & ~slow
            self._refresh(comm[normal], key[normal], t_min[normal], lag[normal])
            bits = (self.slow_bits[comm, key] << np.uint32(1)) | slow
            self.slow_bits[comm, key] = bits & np.uint32((1 << self.policy.repeat_n) - 1)
            self.seen[comm, key] += measured.astype(np.uint32)
            self.judged_ns[comm, key] = now_ns
            self.newest[comm, key] = np.maximum(self.newest[comm, key], number)
        return Judged(comm, key, number, slow & learn, lagging, measured)

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

    def _compare(self, comm: Ints, key: Ints, t_min: F32, t_max: F32, measured: Bools) -> tuple[Bools, Bools]:
        """Slow: R beyond theta, by time that matters, and beyond what was usual from the start."""
        policy = self.policy
        base = np.maximum(self.base_ns[comm, key], 1.0)
        floor_ns = policy.lag_floor_ms * 1e6
        self.ratio[comm, key] = np.where(measured, t_max / base, 0)
        beyond = measured & (t_max >= policy.theta * base)
        lag_limit = np.maximum(policy.usual_lag_factor * self.lag_ns[comm, key], floor_ns)
        lagging = beyond & (t_max - t_min >= lag_limit)
        everybody = beyond & (t_min >= policy.theta * base) & (t_min - base >= floor_ns)
        return lagging | everybody, lagging

    def _learn(self, comm: Ints, key: Ints, t_min: F32, lag: F32) -> None:
        at = self.samples[comm, key].astype(np.int64)
        self.first_min[comm, key, at], self.first_lag[comm, key, at] = t_min, lag
        self.samples[comm, key] += np.uint32(1)
        ready = at + 1 == self.policy.base_rounds
        comm, key = comm[ready], key[ready]
        if len(comm):
            self.base_ns[comm, key] = np.median(self.first_min[comm, key], axis=1)
            self.lag_ns[comm, key] = np.quantile(self.first_lag[comm, key], 0.9, axis=1)
            self.first_min[comm, key] = self.first_lag[comm, key] = 0  # snapshots compress better

    def _refresh(self, comm: Ints, key: Ints, t_min: F32, lag: F32) -> None:
        weight = np.float32(self.policy.refresh_weight)
        self.base_ns[comm, key] += weight * (t_min - self.base_ns[comm, key])
        self.lag_ns[comm, key] += weight * (lag - self.lag_ns[comm, key])
        self.samples[comm, key] += np.uint32(1)


def key_code(rounds: Complete) -> U32:
    """Function, dtype and size bucket in one number, never 0."""
    code: U32 = (rounds.function.astype(np.uint32) << np.uint32(16)) | bit_length(rounds.count)
    code |= (rounds.dtype.astype(np.uint32) << np.uint32(8)) | np.uint32(1 << 24)
    return code


def bit_length(count: U64) -> U32:
    """Bit length of each number: rounds of one key share it. Exact up to 2**53, enough for a bucket."""
    exponent = np.frexp(count.astype(np.float64))[1]
    return exponent.astype(np.uint32)
