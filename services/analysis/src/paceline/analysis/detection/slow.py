"""Slow communicators: the repeat rule, persistence, one late rank or everybody, and the evidence."""

from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.analysis.detection.arrays import F32, SECOND_NS, U32, U64, Ints, Rows, join_rows
from paceline.analysis.detection.keys import Judged, KeyTable, Trend, Weights, key_parts
from paceline.analysis.detection.members import Members
from paceline.analysis.detection.policy import DetectionPolicy
from paceline.analysis.detection.processes import Processes
from paceline.analysis.detection.reasons import Reason, Refusal
from paceline.analysis.detection.rounds import Complete, RoundWindow
from paceline.analysis.detection.senders import Sender
from paceline.analysis.detection.slow_edges import EdgeWatch
from paceline.analysis.detection.slow_steps import StepWatch
from paceline.contracts.batch import BASELINE_ROW, ROUND_ROW, STEP_ROW, RowKind
from paceline.contracts.codes import FrameFlag, OpKind, OpState

HOT_MAX = 256  # keys followed one by one
HOT_VALUES_MAX = 4 * 1024 * 1024  # member values kept for evidence over all hot keys
STEP_ROWS_MAX = 4096  # ranks whose own time is published, those with the largest rise first
WEAK_ROUNDS = 16  # kept where only the sum of evidence has found something; members up to ...
WEAK_MEMBERS_MAX = 1024
_PUBLISH_S = 5
_FOLLOWED_NATS = 1e-6  # a row without evidence still says that somebody looked for it; 0 says that nobody did
_UNEXPLAINED_S = 2  # a longer step without a slow key yet


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
    constant_ns: int = 0  # one rank is late as ever since then
    in_turn_ns: int = 0  # different ranks are late since then ...
    in_turn_s: int = 0  # ... so far


@dataclass
class SlowWatch:
    """All kept rounds of one block."""

    policy: DetectionPolicy
    window: RoundWindow = field(init=False)
    keys: KeyTable = field(init=False)
    steps: StepWatch = field(init=False)
    edges: EdgeWatch = field(default_factory=EdgeWatch)
    hot: dict[tuple[int, int], HotKey] = field(default_factory=dict)  # (communicator id, key code)
    opened: tuple[int, int] = (0, 0)  # (communicator, round) that opened the episode
    published_ns: int = 0
    alarm_ns: int = 0  # steps take longer since then, 0 = they do not
    steps_signalled: bool = False
    refused: Counter[Refusal] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.window = RoundWindow(self.policy.bounds.window_bytes_max)
        self.keys = KeyTable(self.policy.slow)
        self.steps = StepWatch(self.policy.slow)

    @property
    def active(self) -> bool:
        return self.steps_signalled or any(key.signalled for key in self.hot.values())

    @property
    def reason(self) -> Reason:
        keys = any(key.signalled for key in self.hot.values())
        return Reason.SLOW_ROUNDS if keys else Reason.SLOW_STEPS

    def apply(self, rows: Rows, members: Members, now_ns: int, sent: Ints | None = None) -> None:
        """Take ROUND rows; `sent` as of `RoundWindow.apply`."""
        self.window.apply(rows, members, now_ns, sent)

    def apply_edges(self, tables: Sequence[Rows]) -> None:
        """Take EDGE rows; only those of slow communicators are kept."""
        if self.hot and tables:
            self.edges.apply(tables, self._hot_comms())

    def watch_steps(
        self,
        senders: Mapping[str, Sender],
        processes: Processes,
        members: Members,
        now_ns: int,
        *,
        learn: bool,
    ) -> None:
        """Take the newest step marks; before `judge`, which weighs lateness by the duration of a step."""
        self.steps.tick(senders, processes, members, now_ns, learn=learn)

    def judge(self, members: Members, now_ns: int, *, learn: bool) -> None:
        """Judge what became complete; `learn` is False while a gate holds."""
        self.keys.align(members.comms)
        weights = self.steps.weights(len(members.comms))
        for rounds in self.window.complete(members):
            cell = rounds.cell

            def last_ranks(comms: Ints, cell: int = cell) -> Ints:
                return self.window.last_ranks(cell, comms, members)

            judged = self.keys.judge(rounds, now_ns, weights, last_ranks, learn=learn)
            if learn:
                self._follow(rounds, judged, members)
        self._settle(members, now_ns, weights)
        self.edges.keep(self._hot_comms())

    def due(self, now_ns: int) -> bool:
        """Whether to publish slow rounds at this tick; after a restart they have to be seen again."""
        told = any(key.rounds for key in self.hot.values() if key.signalled) or self.steps_signalled
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
        self.steps_signalled = False

    def limits_ms(self, base_factor: float, usual_factor: float, most_ms: int) -> Ints:
        """Learned stall limit of each communicator, bounded by the backstop."""
        learned = np.maximum(self.keys.base_ms() * base_factor, self.keys.usual_wait_ms() * usual_factor)
        limits: Ints = np.minimum(learned, most_ms).astype(np.int64)
        return limits

    # ------------------------------------------------------------------ hot keys

    def _follow(self, rounds: Complete, judged: Judged, members: Members) -> None:
        """Keep the values of slow rounds, and of every round of a key that has been slow lately."""
        wanted = judged.slow | (judged.trend != 0)
        interesting = wanted.copy()
        if self.hot:
            interesting |= np.isin(members.comms[judged.comm], self._hot_comms())
        held = sum(len(kept.duration) for key in self.hot.values() for kept in key.rounds)
        place = np.searchsorted(rounds.comm, judged.comm)
        indices = np.flatnonzero(interesting)
        for done, index in enumerate(indices):
            comm = int(judged.comm[index])
            name = (int(members.comms[comm]), int(self.keys.code[comm, judged.key[index]]))
            key = self.hot.get(name)
            if key is None:
                if not wanted[index]:
                    continue
                if len(self.hot) >= HOT_MAX:
                    self.refused[Refusal.SLOW_KEYS_FULL] += 1
                    continue
                size = int(members.starts[comm + 1] - members.starts[comm])
                key = HotKey(int(rounds.reduce_op[place[index]]), deque(maxlen=self._keep_rounds(size)))
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
        lagging = judged.lagging[index] or int(judged.trend[index]) & (Trend.LATE | Trend.CONSTANT)
        late = int(members.rank[part][int(duration.argmin())]) if lagging else -1
        return KeptRound(
            number=int(judged.number[index]),
            count=int(rounds.count[place]),
            slow=bool(judged.slow[index] or judged.trend[index]),
            late=late,
            duration=duration,
            gap=window.gap[cell, part].copy(),
            send_wait=window.send_wait[cell, part].copy(),
            recv_wait=window.recv_wait[cell, part].copy(),
        )

    def _hot_comms(self) -> U64:
        return np.array(sorted({comm for comm, _ in self.hot}), np.uint64)

    def _keep_rounds(self, members: int) -> int:
        few = self.policy.slow.repeat_n
        return max(few, WEAK_ROUNDS) if members <= WEAK_MEMBERS_MAX else few

    def _settle(self, members: Members, now_ns: int, weights: Weights) -> None:
        """Repeat rule and persistence of each hot key; cold ones are let go."""
        self.alarm_ns = (self.alarm_ns or now_ns) if self.steps.alarm else 0
        for name, key in list(self.hot.items()):
            at = self._at(members, name)
            if at is None or self._is_cold(at, now_ns):
                del self.hot[name]
            elif key.rounds and self._is_due(key, at, now_ns, weights) and not key.signalled:
                key.signalled = True
                if self.opened == (0, 0):
                    self.opened = (name[0], key.rounds[0].number)
        longer = self.alarm_ns > 0 and now_ns - self.alarm_ns >= _UNEXPLAINED_S * SECOND_NS
        self.steps_signalled = longer or (self.steps_signalled and self.steps.alarm)
        if self.steps_signalled and self.opened == (0, 0):
            self.opened = (0, int(self.steps.step))

    def _is_cold(self, at: tuple[int, int], now_ns: int) -> bool:
        idle = now_ns - int(self.keys.judged_ns[at]) > self.policy.slow.idle_clear_s * SECOND_NS
        return idle or (int(self.keys.slow_bits[at]) == 0 and int(self.keys.trend[at]) == 0)

    def _is_due(self, key: HotKey, at: tuple[int, int], now_ns: int, weights: Weights) -> bool:
        """Whether a hot key has become worth a signal."""
        slow, trend = self.policy.slow, Trend(int(self.keys.trend[at]))
        known = float(self.keys.nats[at]) >= self.keys.identity_limit
        if trend & (Trend.LATE | Trend.TOGETHER) and known and self.steps.rising:
            return True  # the sum of evidence is its own persistence
        if int(self.keys.slow_bits[at]).bit_count() >= slow.repeat_k and self._is_steady(key):
            key.since_ns = key.since_ns or now_ns
        else:
            key.since_ns = 0
        if known and key.since_ns and now_ns - key.since_ns >= slow.persist_s * SECOND_NS:
            return True
        floor_ns = float(weights.floor_ns(np.array([at[0]]), slow.rotating_cost_share)[0])
        in_turn = Trend.LATE in trend and not known and self.steps.alarm
        in_turn = in_turn and float(self.keys.recent_ns[at]) >= floor_ns
        key.in_turn_ns = (key.in_turn_ns or now_ns) if in_turn else 0
        key.in_turn_s = (now_ns - key.in_turn_ns) // SECOND_NS if in_turn else 0
        key.constant_ns = (key.constant_ns or now_ns) if Trend.CONSTANT in trend else 0
        constant = key.constant_ns > 0 and now_ns - key.constant_ns >= slow.constant_s * SECOND_NS
        return constant or key.in_turn_s >= slow.rotating_s

    def _is_steady(self, key: HotKey) -> bool:
        """One rank is late in most slow rounds, or nobody is: everybody is slow alike."""
        slow = [kept for kept in list(key.rounds)[-self.policy.slow.repeat_n :] if kept.slow]
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

    def evidence(self, members: Members, processes: Processes) -> dict[RowKind, Rows]:
        """Rounds of the members of every key under the repeat rule, its base line, edges and own times."""
        rounds: list[Rows] = []
        base: list[Rows] = []
        for name, key in self.hot.items():
            at = self._at(members, name)
            if at is None:
                continue
            if not key.signalled and not self._repeats(at):
                continue
            base.append(self._baseline(name, key, at))
            rounds.extend(self._round_rows(name, key, at[0], members))
        return {
            RowKind.BASELINE: join_rows(base) if base else np.zeros(0, BASELINE_ROW),
            RowKind.STEP: self._step_rows(processes),
            RowKind.EDGE: self.edges.rows(),
            RowKind.ROUND: join_rows(rounds) if rounds else np.zeros(0, ROUND_ROW),
        }

    def _repeats(self, at: tuple[int, int]) -> bool:
        bits = int(self.keys.slow_bits[at])
        return bits.bit_count() >= self.policy.slow.repeat_k or int(self.keys.trend[at]) != 0

    def _step_rows(self, processes: Processes) -> Rows:
        if self.steps.step_ns <= 0:
            return np.zeros(0, STEP_ROW)
        rows = self.steps.rows(processes, processes.rank)
        if len(rows) > STEP_ROWS_MAX:
            rise = rows["own_us"].astype(np.int64) - rows["base_own_us"].astype(np.int64)
            rows = rows[np.argsort(-rise, kind="stable")[:STEP_ROWS_MAX]]
        return rows

    def _baseline(self, name: tuple[int, int], key: HotKey, at: tuple[int, int]) -> Rows:
        keys, parts = self.keys, key_parts(name[1])
        row = np.zeros(1, BASELINE_ROW)
        row["comm"], row["count"] = name[0], keys.count[at]
        row["t_base_ns"], row["samples"] = int(keys.base_ns[at]), keys.samples[at]
        row["ratio"], row["threshold"] = keys.ratio[at], keys.threshold(at)
        row["slow"] = int(keys.slow_bits[at]).bit_count()
        row["window"] = min(int(keys.seen[at]), self.policy.slow.repeat_n)
        row["function"], row["dtype"], row["bucket"] = parts.function, parts.dtype, parts.bucket
        row["algorithm"], row["protocol"] = parts.path >> 4, parts.path & 15
        row["reduce_op"], row["in_turn_s"] = key.reduce_op, min(key.in_turn_s, 65535)
        steady = float(keys.nats[at]) >= keys.identity_limit
        row["late_rank"] = max(int(keys.suspect[at]), -1) if steady else -1
        row["late_nats"] = max(float(keys.nats[at]), _FOLLOWED_NATS)
        row["usual_late_ns"] = max(int(keys.late.mean[at]), 0)
        weights = self.steps.weights(len(keys.comms))
        row["rounds_per_step"] = weights.rounds_per_step[at[0]]
        row["step_ms"] = self.steps.step_ns / 1e6
        return row

    def _round_rows(self, name: tuple[int, int], key: HotKey, comm: int, members: Members) -> Iterator[Rows]:
        start, end = int(members.starts[comm]), int(members.starts[comm + 1])
        parts = key_parts(name[1])
        at = self._at(members, name)
        weak = at is not None and self.keys.threshold(at) < self.policy.slow.theta
        for kept in list(key.rounds)[0 if weak else -self.policy.slow.repeat_n :]:
            if len(kept.duration) != end - start:
                continue  # members have appeared since
            rows = np.zeros(end - start, ROUND_ROW)
            rows["comm"], rows["rank"] = name[0], members.rank[start:end]
            rows["comm_rank"] = members.rows["comm_rank"][start:end]
            rows["round"], rows["count"], rows["kind"] = kept.number, kept.count, OpKind.COLLECTIVE
            rows["function"], rows["dtype"], rows["path"] = parts.function, parts.dtype, parts.path
            rows["reduce_op"], rows["state"], rows["peer"] = key.reduce_op, OpState.COMPLETED, -1
            rows["duration_ns"], rows["gap_ns"] = kept.duration, kept.gap
            rows["send_wait_us"], rows["recv_wait_us"] = kept.send_wait, kept.recv_wait
            rows["flags"] = members.flags[start:end] & int(FrameFlag.COUNTS_UNOBSERVABLE)
            yield rows

    def arrays(self) -> dict[str, npt.NDArray[np.generic]]:
        """What is learned; rounds in flight are gathered anew after a restart."""
        return {**self.keys.arrays(), **self.steps.arrays()}

    def array_dtypes(self) -> dict[str, np.dtype[np.generic]]:
        return {**self.keys.array_dtypes(), **self.steps.array_dtypes()}

    def scalars(self) -> dict[str, object]:
        """What is suspected, as JSON."""
        hot = [[*name, key.reduce_op, key.since_ns, key.signalled] for name, key in self.hot.items()]
        return {"hot": hot, "opened": list(self.opened), "published_ns": self.published_ns}

    def restore(self, arrays: dict[str, npt.NDArray[np.generic]], scalars: Mapping[str, Any]) -> None:
        """Inverse of `arrays` and `scalars`; ValueError or TypeError where they do not fit."""
        self.keys.restore(arrays)
        self.steps.restore(arrays)
        keep = self.policy.slow.repeat_n
        self.hot = {
            (int(comm), int(code)): HotKey(int(reduce_op), deque(maxlen=keep), int(since), bool(signalled))
            for comm, code, reduce_op, since, signalled in scalars["hot"]
        }
        self.opened = (int(scalars["opened"][0]), int(scalars["opened"][1]))
        self.published_ns = int(scalars["published_ns"])
