"""Which ends of transfers are slow: by rates of ranks or nodes, or by what pairs reach."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from paceline.analysis.diagnosis.slow_table import Place, RankOf
from paceline.analysis.facts import Origin, SampleRow

FELL = 0.85  # of its usual rate, and of the others' rate
PAIR_LOW = 0.8  # of the median pair
PAIR_NOISE = 5.0
OF_ENDS = 0.7  # of the pairs of one place are slow: the place, not its links
Link = tuple[Place, Place]  # (sender, receiver)


@dataclass(frozen=True)
class SlowEnds:
    """Places whose rates are low, or the links between places; empty `links`: no single link."""

    places: tuple[Place, ...]
    links: tuple[Link, ...]
    ratio: float  # low rate against the usual one
    statement: str
    origins: tuple[Origin, ...] = ()


def slow_ends(rows: Sequence[SampleRow], rank_of: RankOf, steps: set[int]) -> SlowEnds | None:
    """Ends that stand out in `steps`; None where no rows show rates or all fell alike."""
    return _by_rates(rows, rank_of, steps) or slow_pairs(rows)


def _by_rates(rows: Sequence[SampleRow], rank_of: RankOf, steps: set[int]) -> SlowEnds | None:
    """Rates in slow steps against the rates of the same place before, and of the others at the same time."""
    low: dict[str, dict[Place, float]] = {}
    seen: set[Place] = set()
    origins: list[Origin] = []
    for name in ("send_rate", "receive_rate"):
        during: dict[Place, list[float]] = defaultdict(list)
        before: dict[Place, list[float]] = defaultdict(list)
        for row in rows:
            place: Place | None = rank_of(row)
            place = row.speaker.host if place is None else place
            if name not in row.numbers or place in (None, ""):
                continue
            seen.add(place)
            origins.append(row.origin)
            is_slow = not steps or int(row.numbers.get("step", -1)) in steps or "step" not in row.numbers
            (during if is_slow else before)[place].append(row.numbers[name])
        now = {place: float(np.median(values)) for place, values in during.items()}
        others = float(np.median(list(now.values()))) if now else 0.0
        best = max(now.values(), default=0.0)
        low[name] = {}
        for place, rate in now.items():
            usual = float(np.median(before[place])) if before.get(place) else max(others, best)
            if usual > 0 and rate <= FELL * usual:
                low[name][place] = rate / usual
    places = sorted({*low["send_rate"], *low["receive_rate"]}, key=str)
    if not places or len(seen) < 2:
        return None
    senders, receivers = list(low["send_rate"]), list(low["receive_rate"])
    ratio = min(min(found.values(), default=1.0) for found in low.values())
    if len(senders) == len(receivers) == 1 and senders != receivers:
        link = (senders[0], receivers[0])
        words = f"the rate from {_name(link[0])} to {_name(link[1])} fell to {ratio:.0%}"
        return SlowEnds(tuple(places), (link,), ratio, words, tuple(origins[:32]))
    if len(places) * 2 > len(seen):
        return None
    words = f"the rates of {', '.join(map(_name, places[:8]))} fell to {ratio:.0%}"
    return SlowEnds(tuple(places), (), ratio, words, tuple(origins[:32]))


def slow_pairs(rows: Sequence[SampleRow]) -> SlowEnds | None:
    """Pairs that reach clearly less than the others do: one link, or a place whose links are all slow."""
    values: dict[Link, list[float]] = defaultdict(list)
    for row in rows:
        link, reach = _link(row), _reach(row)
        if row.kind == "pairs" and link is not None and reach is not None:
            values[link].append(reach)
    if len(values) < 3:
        return None
    reached = {link: float(np.median(found)) for link, found in values.items()}
    every = np.array(list(reached.values()))
    usual = float(np.median(every))
    noise = float(np.median(np.abs(every - usual))) * 1.4826
    limit = min(PAIR_LOW * usual, usual - PAIR_NOISE * noise)
    slow = {link: reach for link, reach in reached.items() if reach <= limit}
    if not slow or len(slow) * 2 > len(reached):
        return None
    ratio = float(np.median(list(slow.values()))) / usual
    touched = Counter(place for link in slow for place in set(link))
    total = Counter(place for link in reached for place in set(link))
    place, times = touched.most_common(1)[0]
    origins = tuple(row.origin for row in rows if row.kind == "pairs" and _link(row) in slow)[:32]
    both_ways = len({frozenset(link) for link in slow}) == 1
    if not both_ways and times >= 2 and times >= OF_ENDS * total[place] and times == len(slow):
        words = f"all links of {_name(place)} reach {ratio:.0%} of the others"
        return SlowEnds((place,), (), ratio, words, origins)
    worst = tuple(sorted(slow, key=lambda link: slow[link])[:8])
    words = f"{', '.join(f'{_name(a)} to {_name(b)}' for a, b in worst)} reach {ratio:.0%} of the other pairs"
    ends = sorted({place for link in worst for place in link}, key=str)
    return SlowEnds(tuple(ends), worst, ratio, words, origins)


def _link(row: SampleRow) -> Link | None:
    numbers, words = row.numbers, row.words
    if "src_rank" in numbers and "dst_rank" in numbers:
        return int(numbers["src_rank"]), int(numbers["dst_rank"])
    if "src" in words and "dst" in words:
        return words["src"], words["dst"]
    if row.speaker.rank is not None and "peer" in numbers:
        return row.speaker.rank, int(numbers["peer"])
    return None


def _reach(row: SampleRow) -> float | None:
    """More is better: a rate, or the inverse of a time."""
    for name in ("bandwidth", "busbw", "algbw", "send_rate", "receive_rate"):
        if name in row.numbers:
            return row.numbers[name]
    took = row.numbers.get("duration_s", 0.0)
    return 1.0 / took if took > 0 else None


def _name(place: Place) -> str:
    return f"rank {place}" if isinstance(place, int) else str(place)
