"""One slow key as measured from its kept rounds: R, P, who came last, which links starve."""

from collections import Counter
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from paceline.analysis.evidence import Ints, JobEvidence, Mask, take_columns
from paceline.analysis.policy import JudgePolicy
from paceline.analysis.slow_links import Slow, Waits, find_links
from paceline.analysis.transfers import ring_order
from paceline.analysis.waits import SYNCHRONISING
from paceline.contracts.batch import Rows
from paceline.contracts.codes import FrameFlag

_ROUND_COLUMNS = (
    "rank", "round", "count", "duration_ns", "function", "dtype", "path", "flags",
    "recv_wait_us", "send_wait_us",
)  # fmt: skip
Times = npt.NDArray[np.float64]
_AGREE = 0.8  # of the rounds at hand name the same rank ...
_NATS_MIN = 4.0  # ... and by chance they would do so once in 50 times
_IN_TURN = 0.6
IN_TURN_S = 30  # everybody pauses once in a while
_CONSTANT = 0.5  # of today's lateness was there from the first round on


@dataclass(frozen=True, eq=False)
class SlowKey:
    """One slow key: communicator, function, dtype, size bucket, algorithm and protocol."""

    comm: int  # index
    row: np.void  # its baseline row
    rounds: int  # slow rounds among the judged ones
    judged: int
    ratio: float  # median R of the slow rounds
    threshold: float
    weak: bool  # below the paper's threshold: found by the sum of evidence
    share: float  # median P; weak keys: without the lateness that was usual
    late: Counter[int]  # argmin T of each slow round
    lateness_us: float  # of the one that came last, per step where rounds per step are known
    constant: bool
    ranks: Ints  # members that have these rounds
    excess: Times  # of each of `ranks`: median (T - Tbase) in ns, of the slow rounds
    last_round: int
    slow: Slow  # links, or the stretch that contains them

    @property
    def worst(self) -> float:
        """The highest excess in ns."""
        return float(self.excess.max())

    def has(self, rank: int) -> bool:
        """Whether `rank` is one of `ranks`."""
        return bool((self.ranks == rank).any())

    @property
    def late_rank(self) -> int:
        """Who comes last most often; the detector's long memory before the few rounds at hand."""
        known = int(self.row["late_rank"]) if float(self.row["late_nats"]) > 0 else -1
        return known if self.has(known) else self.late.most_common(1)[0][0]

    def is_steady(self, rounds_min: int, communicators: int = 1) -> bool:
        """One rank comes last again and again; among many communicators chance has as many tries."""
        if float(self.row["late_nats"]) > 0 and self.has(int(self.row["late_rank"])):
            return True
        times = self.late[self.late_rank]
        if float(self.row["late_nats"]) == 0:  # no detector has followed this key
            return times >= min(rounds_min, self.rounds)
        by_chance = (times - 1) * np.log(max(len(self.ranks), 2))
        return bool(times >= _AGREE * self.rounds and by_chance >= _NATS_MIN + np.log(communicators))

    def is_in_turn(self, since_s: int, least_s: int = IN_TURN_S) -> bool:
        """Different ranks come last, in enough rounds; `since_s`: for so long somewhere in the job."""
        if float(self.row["late_nats"]) > 0 and since_s < least_s:
            return False
        return len(self.late) >= 2 and self.late.most_common(1)[0][1] <= _IN_TURN * self.rounds


@dataclass(frozen=True)
class _Table:
    rounds: Ints
    times: Times  # rounds x members
    waits: Waits
    ranks: Ints

    def at(self, mask: Mask) -> Waits:
        waits = self.waits
        return Waits(waits.receive[mask], waits.send[mask], waits.receive_unseen, waits.send_unseen)


def measure(evidence: JobEvidence, base: np.void, policy: JudgePolicy) -> SlowKey | None:
    """The key of a baseline row, None where its rounds are not slow by the repeat rule.

    The cost of a fault asks again for what the verdict has measured: each key is measured once.
    """
    name = (base.tobytes(), policy)
    if name not in evidence.measured:
        evidence.measured[name] = _measure(evidence, base, policy)
    key: SlowKey | None = evidence.measured[name]
    return key


def _measure(evidence: JobEvidence, base: np.void, policy: JudgePolicy) -> SlowKey | None:
    comm = int(evidence.index_of(np.array([base["comm"]], np.uint64))[0])
    if comm < 0 or not int(base["t_base_ns"]) or int(base["function"]) not in SYNCHRONISING:
        return None
    table = _table(evidence.rounds_of(comm), base, evidence.members(comm))
    if len(table.rounds) < policy.slow_rounds_min:
        return None
    t_base = float(base["t_base_ns"])
    threshold = float(base["threshold"]) or policy.slow_ratio
    ratio = table.times.max(axis=1) / t_base
    weak = threshold < policy.slow_ratio and float(np.median(ratio)) < policy.slow_ratio
    if not weak:
        table = _newest(table, policy.slow_window)
    highest, lowest = table.times.max(axis=1), table.times.min(axis=1)
    ratio = highest / t_base
    is_slow = ratio >= threshold
    if int(is_slow.sum()) < policy.slow_rounds_min:
        return None
    slow_times = table.times[is_slow]
    others = max(slow_times.shape[1] - 1, 1)
    lateness = float(np.median((slow_times.sum(axis=1) - lowest[is_slow] * slow_times.shape[1]) / others))
    usual = float(base["usual_late_ns"])
    share = float(np.median(((highest - lowest) / np.maximum(highest - t_base, 1.0))[is_slow]))
    together = max(float(np.median(lowest[is_slow])) - t_base, 0.0)
    constant = usual >= _CONSTANT * lateness > 0 and int(base["late_rank"]) >= 0 and together < lateness
    if weak:
        late_part = lateness if constant else max(lateness - usual, 0.0)
        share = late_part / max(late_part + together, 1.0)
    edges = evidence.edges[evidence.edges["comm"] == base["comm"]]
    order = ring_order(evidence, comm)
    order = None if order is None else evidence.members(comm)[order]
    lost_us = float(np.median(highest[is_slow] - t_base)) / 1e3
    return SlowKey(
        comm=comm,
        row=base,
        rounds=int(is_slow.sum()),
        judged=len(table.rounds),
        ratio=float(np.median(ratio[is_slow])),
        threshold=threshold,
        weak=weak,
        share=share,
        late=Counter(int(table.ranks[at]) for at in slow_times.argmin(axis=1)),
        lateness_us=lateness / 1e3 * max(float(base["rounds_per_step"]), 1.0),
        constant=constant,
        ranks=table.ranks,
        excess=np.median(slow_times - t_base, axis=0),
        last_round=int(table.rounds[-1]),
        slow=find_links(table.at(is_slow), table.ranks, edges, int(base["algorithm"]), lost_us, order),
    )


def _newest(table: _Table, count: int) -> _Table:
    mask = np.zeros(len(table.rounds), np.bool_)
    mask[-count:] = True
    return _Table(table.rounds[mask], table.times[mask], table.at(mask), table.ranks)


def _table(rows: Rows, base: np.void, members: Ints) -> _Table:
    """Completed kept rounds that every reporting member has.

    Members without any round are left out; rounds that a reporting member lacks as well.
    """
    columns = take_columns(rows, _ROUND_COLUMNS)
    mine = (columns["function"] == base["function"]) & (columns["dtype"] == base["dtype"])
    mine &= (columns["duration_ns"] > 0) & (columns["round"] > 0)
    mine &= columns["path"] == ((int(base["algorithm"]) << 4) | int(base["protocol"]))
    # Bit length, exact up to 2^53 elements.
    mine &= np.frexp(columns["count"].astype(np.float64))[1] == int(base["bucket"])
    member = np.full(int(members.max(initial=-1)) + 2, -1, np.int64)
    member[members] = np.arange(len(members))
    who = member[np.minimum(columns["rank"].astype(np.int64), len(member) - 1)]
    mine &= who >= 0
    if not mine.all():
        columns, who = {name: column[mine] for name, column in columns.items()}, who[mine]
    reports = np.zeros(len(members), np.bool_)
    reports[who] = True
    order = members[reports]
    place = (np.cumsum(reports) - 1)[who]
    number = columns["round"]
    low, high = (number.min(), number.max()) if len(number) else (np.uint64(0), np.uint64(0))
    if int(high - low) < 1 << 20:  # cheaper than to sort them
        numbers = np.flatnonzero(np.bincount((number - low).astype(np.int64))).astype(np.uint64) + low
    else:
        numbers = np.unique(number)
    line = np.searchsorted(numbers, number)
    tables = {name: np.zeros((len(numbers), len(order))) for name in ("times", "receive", "send", "hidden")}
    for name, column in (
        ("times", "duration_ns"), ("receive", "recv_wait_us"), ("send", "send_wait_us"),
    ):  # fmt: skip
        tables[name][line, place] = columns[column]
    tables["hidden"][line, place] = (columns["flags"] & FrameFlag.COUNTS_UNOBSERVABLE) != 0
    times = tables["times"]
    whole = (times > 0).all(axis=1) if len(order) >= 2 else np.zeros(len(numbers), np.bool_)
    hidden = tables["hidden"].any(axis=0)
    waits = Waits(
        tables["receive"][whole],
        tables["send"][whole],
        np.asarray(hidden & ~tables["receive"].any(axis=0), np.bool_),
        np.asarray(hidden & ~tables["send"].any(axis=0), np.bool_),
    )
    return _Table(numbers[whole].astype(np.int64), times[whole], waits, order)
