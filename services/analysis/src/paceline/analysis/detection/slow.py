"""Slow communicators: the repeat rule, persistence, one late rank or everybody, and the evidence."""

from collections import Counter, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.analysis.detection.arrays import F32, SECOND_NS, U32, Ints, Rows, join_rows
from paceline.analysis.detection.keys import Judged, KeyTable
from paceline.analysis.detection.members import Members
from paceline.analysis.detection.policy import DetectionPolicy
from paceline.analysis.detection.reasons import Refusal
from paceline.analysis.detection.rounds import Complete, RoundWindow
from paceline.contracts.batch import BASELINE_ROW, ROUND_ROW, RowKind
from paceline.contracts.codes import OpKind, OpState

HOT_MAX = 256  # keys followed one by one
HOT_VALUES_MAX = 4 * 1024 * 1024  # member values kept for evidence over all hot keys
_PUBLISH_S = 5


@dataclass(frozen=True)
class KeptRound:
    """One complete round of a hot key: values of each member in communicator order of ranks."""

    number: int
    count: int
    slow: bool
    late: int  # global rank with the smallest T where somebody lags, else -1
    duration: F32
    gap: F32
    send_wait: U32
    recv_wait: U32


@dataclass
class HotKey:
    """A key with at least one slow round among its newest."""

    reduce_op: int
    rounds: "deque[KeptRound]"
    since_ns: int = 0  # the repeat rule holds since then, 0 = it does not
    signalled: bool = False


@dataclass
class SlowWatch:
    """All kept rounds of one block."""

    policy: DetectionPolicy
    window: RoundWindow = field(init=False)
    keys: KeyTable = field(init=False)
    hot: dict[tuple[int, int], HotKey] = field(default_factory=dict)  # (communicator id, key code)
    opened: tuple[int, int] = (0, 0)  # (communicator, round) that opened the episode
    published_ns: int = 0
    refused: Counter[Refusal] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.window = RoundWindow(self.policy.bounds.window_bytes_max)
        self.keys = KeyTable(self.policy.slow)

    @property
    def active(self) -> bool:
        return any(key.signalled for key in self.hot.values())

    def apply(self, rows: Rows, members: Members, now_ns: int) -> None:
        """Take ROUND rows."""
        self.window.apply(rows, members, now_ns)

    def judge(self, members: Members, now_ns: int, *, learn: bool) -> None:
        """Judge what became complete; `learn` is False while a gate holds."""
        self.keys.align(members.comms)
        for rounds in self.window.complete(members):
            judged = self.keys.judge(rounds, now_ns, learn=learn)
            if learn:
                self._follow(rounds, judged, members)
        self._settle(members, now_ns)

    def due(self, now_ns: int) -> bool:
        """Whether to publish slow rounds at this tick; after a restart they have to be seen again."""
        told = any(self._is_steady(key) for key in self.hot.values() if key.signalled)
        if not told or (self.published_ns and now_ns - self.published_ns < _PUBLISH_S * SECOND_NS):
            return False
        self.published_ns = now_ns
        return True

    def take_refused(self) -> Counter[Refusal]:
        """What was not followed or kept since the last call."""
        taken, self.refused = self.refused, Counter()
        taken[Refusal.ROUND_WINDOW_FULL] += self.window.dropped_rows
        taken[Refusal.ROUND_KEYS_FULL] += self.keys.full
        self.window.dropped_rows = self.keys.full = 0
        return taken

    def end_episode(self) -> None:
        self.opened, self.published_ns = (0, 0), 0

    def limits_ms(self, base_factor: float, usual_factor: float, most_ms: int) -> Ints:
        """Learned stall limit of each communicator, bounded by the backstop."""
        learned = np.maximum(self.keys.base_ms() * base_factor, self.keys.usual_wait_ms() * usual_factor)
        limits: Ints = np.minimum(learned, most_ms).astype(np.int64)
        return limits

    # ------------------------------------------------------------------ hot keys

    def _follow(self, rounds: Complete, judged: Judged, members: Members) -> None:
        """Keep the values of slow rounds, and of every round of a key that has been slow lately."""
        hot_comms = {comm for comm, _ in self.hot}
        ids = members.comms[judged.comm]
        interesting = judged.slow.copy()
        if hot_comms:
            interesting |= np.isin(ids, np.array(sorted(hot_comms), np.uint64))
        held = sum(len(kept.duration) for key in self.hot.values() for kept in key.rounds)
        place = np.searchsorted(rounds.comm, judged.comm)
        indices = np.flatnonzero(interesting)
        for done, index in enumerate(indices):
            comm = int(judged.comm[index])
            name = (int(members.comms[comm]), int(self.keys.code[comm, judged.key[index]]))
            key = self.hot.get(name)
            if key is None:
                if not judged.slow[index]:
                    continue
                if len(self.hot) >= HOT_MAX:
                    self.refused[Refusal.SLOW_KEYS_FULL] += 1
                    continue
                keep = self.policy.slow.repeat_n
                key = HotKey(int(rounds.reduce_op[place[index]]), deque(maxlen=keep))
                self.hot[name] = key
            start, end = int(members.starts[comm]), int(members.starts[comm + 1])
            held += end - start
            if held > HOT_VALUES_MAX:
                self.refused[Refusal.SLOW_VALUES_FULL] += len(indices) - done
                break
            key.rounds.append(self._keep(rounds, judged, int(index), int(place[index]), members))

    def _keep(self, rounds: Complete, judged: Judged, index: int, place: int, members: Members) -> KeptRound:
        comm = int(judged.comm[index])
        part = slice(int(members.starts[comm]), int(members.starts[comm + 1]))
        window, cell = self.window, rounds.cell
        duration = window.duration[cell, part].copy()
        late = int(members.rank[part][int(duration.argmin())]) if judged.lagging[index] else -1
        return KeptRound(
            number=int(judged.number[index]),
            count=int(rounds.count[place]),
            slow=bool(judged.slow[index]),
            late=late,
            duration=duration,
            gap=window.gap[cell, part].copy(),
            send_wait=window.send_wait[cell, part].copy(),
            recv_wait=window.recv_wait[cell, part].copy(),
        )

    def _settle(self, members: Members, now_ns: int) -> None:
        """Repeat rule and persistence of each hot key; cold ones are let go."""
        slow = self.policy.slow
        for name, key in list(self.hot.items()):
            at = self._at(members, name)
            if at is None:
                del self.hot[name]
                continue
            bits = int(self.keys.slow_bits[at])
            idle = now_ns - int(self.keys.judged_ns[at]) > slow.idle_clear_s * SECOND_NS
            if bits == 0 or idle:
                del self.hot[name]
            elif bits.bit_count() >= slow.repeat_k and self._is_steady(key):
                key.since_ns = key.since_ns or now_ns
                if not key.signalled and now_ns - key.since_ns >= slow.persist_s * SECOND_NS:
                    key.signalled = True
                    if self.opened == (0, 0):
                        self.opened = (name[0], key.rounds[0].number)
            elif not key.signalled:
                key.since_ns = 0

    def _is_steady(self, key: HotKey) -> bool:
        """One rank is late in most slow rounds, or nobody is: everybody is slow alike."""
        slow = [kept for kept in key.rounds if kept.slow]
        if not slow:
            return False
        late = Counter(kept.late for kept in slow)
        _, times = late.most_common(1)[0]
        return len(slow) >= self.policy.slow.repeat_k and times * 2 > len(slow) and times >= 2

    def _at(self, members: Members, name: tuple[int, int]) -> tuple[int, int] | None:
        comm = int(members.find_communicators(np.array([name[0]], np.uint64))[0])
        if comm < 0:
            return None
        found = np.flatnonzero(self.keys.code[comm] == name[1])
        return (comm, int(found[0])) if len(found) else None

    # ------------------------------------------------------------------ evidence and snapshot

    def evidence(self, members: Members) -> dict[RowKind, Rows]:
        """Rounds of the members of every key under the repeat rule, and its base line."""
        rounds: list[Rows] = []
        base: list[Rows] = []
        for name, key in self.hot.items():
            at = self._at(members, name)
            if at is None or not key.since_ns:
                continue
            base.append(self._baseline(name, key, at))
            rounds.extend(self._round_rows(name, key, at[0], members))
        return {
            RowKind.BASELINE: join_rows(base) if base else np.zeros(0, BASELINE_ROW),
            RowKind.ROUND: join_rows(rounds) if rounds else np.zeros(0, ROUND_ROW),
        }

    def _baseline(self, name: tuple[int, int], key: HotKey, at: tuple[int, int]) -> Rows:
        keys, code = self.keys, name[1]
        row = np.zeros(1, BASELINE_ROW)
        row["comm"], row["count"] = name[0], keys.count[at]
        row["t_base_ns"], row["samples"] = int(keys.base_ns[at]), keys.samples[at]
        row["ratio"], row["threshold"] = keys.ratio[at], self.policy.slow.theta
        row["slow"] = int(keys.slow_bits[at]).bit_count()
        row["window"] = min(int(keys.seen[at]), self.policy.slow.repeat_n)
        row["function"], row["dtype"], row["bucket"] = (code >> 16) & 255, (code >> 8) & 255, code & 255
        row["reduce_op"] = key.reduce_op
        return row

    def _round_rows(self, name: tuple[int, int], key: HotKey, comm: int, members: Members) -> Iterator[Rows]:
        start, end = int(members.starts[comm]), int(members.starts[comm + 1])
        for kept in key.rounds:
            if len(kept.duration) != end - start:
                continue  # members have appeared since
            rows = np.zeros(end - start, ROUND_ROW)
            rows["comm"], rows["rank"] = name[0], members.rank[start:end]
            rows["comm_rank"] = members.rows["comm_rank"][start:end]
            rows["round"], rows["count"], rows["kind"] = kept.number, kept.count, OpKind.COLLECTIVE
            rows["function"], rows["dtype"] = (name[1] >> 16) & 255, (name[1] >> 8) & 255
            rows["reduce_op"], rows["state"], rows["peer"] = key.reduce_op, OpState.COMPLETED, -1
            rows["duration_ns"], rows["gap_ns"] = kept.duration, kept.gap
            rows["send_wait_us"], rows["recv_wait_us"] = kept.send_wait, kept.recv_wait
            yield rows

    def arrays(self) -> dict[str, npt.NDArray[np.generic]]:
        """What is learned; rounds in flight are gathered anew after a restart."""
        return self.keys.arrays()

    def array_dtypes(self) -> dict[str, np.dtype[np.generic]]:
        return self.keys.array_dtypes()

    def scalars(self) -> dict[str, object]:
        """What is suspected, as JSON."""
        hot = [[*name, key.reduce_op, key.since_ns, key.signalled] for name, key in self.hot.items()]
        return {"hot": hot, "opened": list(self.opened), "published_ns": self.published_ns}

    def restore(self, arrays: dict[str, npt.NDArray[np.generic]], scalars: Mapping[str, Any]) -> None:
        """Inverse of `arrays` and `scalars`; ValueError or TypeError where they do not fit."""
        self.keys.restore(arrays)
        keep = self.policy.slow.repeat_n
        self.hot = {
            (int(comm), int(code)): HotKey(int(reduce_op), deque(maxlen=keep), int(since), bool(signalled))
            for comm, code, reduce_op, since, signalled in scalars["hot"]
        }
        self.opened = (int(scalars["opened"][0]), int(scalars["opened"][1]))
        self.published_ns = int(scalars["published_ns"])
