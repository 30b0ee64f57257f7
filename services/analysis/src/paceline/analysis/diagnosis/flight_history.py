"""The first call in which the members of a group differ, whether or not it completed.

A slip of one call may let both sides complete for a long time and stop somewhere else. So the whole
recorded history is compared, by majority for each (group, sequence); with two ranks there is no vote.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from paceline.analysis.diagnosis.flight_fold import Call, Collectives

SPAN_MAX = 1 << 22  # sequence numbers of one group that are compared at once
SLIP_CALLS_MIN = 2  # calls that must fit after a shift, so that it is one
_SLIP_MAX = 3
RANKS_SHOWN_MAX = 4096


@dataclass(frozen=True)
class Side:
    """Ranks that made one and the same call."""

    call: Call
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class Divergence:
    """The first sequence number of one group at which calls differ. Sides: the most frequent first."""

    group: int  # number of `Fold.groups`
    sequence: int
    sides: tuple[Side, ...]
    odd: tuple[int, ...]  # ranks outside the strict majority; empty: no vote
    completed: bool  # all sides have completed the call
    slip: int  # of the odd ranks, or of the last side: -1 one call less than the others, +1 one more, 0 other

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(sorted(rank for side in self.sides for rank in side.ranks))


def first_divergence(
    group: int, members: Sequence[tuple[int, Collectives]], calls: Sequence[Call], unknown: int
) -> Divergence | None:
    """Of one group; `members` are (rank, what it called), `unknown` members without a dump."""
    known = [(rank, each) for rank, each in members if len(each.calls)]
    if len(known) < 2:
        return None
    sequence = _first_difference(known)
    if sequence is None:
        return None
    votes: dict[int, list[int]] = {}
    for rank, each in known:
        at = _position(each, sequence)
        if at is not None:
            votes.setdefault(int(each.calls[at]), []).append(rank)
    ordered = sorted(votes.items(), key=lambda item: (-len(item[1]), min(item[1])))
    sides = tuple(Side(calls[call], tuple(sorted(ranks)[:RANKS_SHOWN_MAX])) for call, ranks in ordered)
    most, rest = len(ordered[0][1]), sum(len(ranks) for _, ranks in ordered[1:])
    decided = most > rest + unknown and most >= 2
    odd = tuple(sorted(rank for _, ranks in ordered[1:] for rank in ranks)) if decided else ()
    by_rank = dict(known)
    completed = all(by_rank[rank].completed >= sequence for side in sides for rank in side.ranks)
    slip = _slip(by_rank[ordered[0][1][0]], by_rank[ordered[-1][1][0]], sequence)
    return Divergence(group, sequence, sides, odd, completed, slip)


def _first_difference(known: Sequence[tuple[int, Collectives]]) -> int | None:
    low = min(each.sequences[0] for _, each in known)
    high = max(each.sequences[-1] for _, each in known)
    if high - low >= SPAN_MAX:
        low = high - SPAN_MAX + 1
    shown = np.full(int(high - low) + 1, -1, np.int32)
    best: int | None = None
    for _, each in known:
        places, calls = _places(each, int(low))
        current = shown[places]
        new = current < 0
        shown[places[new] if isinstance(places, np.ndarray) else np.arange(len(shown))[places][new]] = calls[
            new
        ]
        differs = np.flatnonzero(~new & (current != calls))
        if len(differs):
            at = int(each.sequences[len(each.calls) - len(calls) + int(differs[0])])
            best = at if best is None else min(best, at)
    return best


def _places(each: Collectives, low: int) -> tuple[npt.NDArray[np.int64] | slice, npt.NDArray[np.int32]]:
    """Where the calls of a rank stand in a table that begins at `low`."""
    if isinstance(each.sequences, range):
        skip = max(low - each.sequences.start, 0)
        begin = each.sequences.start + skip - low
        calls = each.calls[skip:]
        return slice(begin, begin + len(calls)), calls
    keep = each.sequences >= low
    return each.sequences[keep] - low, each.calls[keep]


def _position(each: Collectives, sequence: int) -> int | None:
    if isinstance(each.sequences, range):
        return sequence - each.sequences.start if sequence in each.sequences else None
    at = int(np.searchsorted(each.sequences, sequence))
    return at if at < len(each.sequences) and int(each.sequences[at]) == sequence else None


def _slip(usual: Collectives, odd: Collectives, sequence: int) -> int:
    """How many calls less (negative) or more the odd rank made at `sequence`: from there on its calls are
    those of the others, shifted. 0 where no shift explains at least SLIP_CALLS_MIN calls."""
    at, other = _position(usual, sequence), _position(odd, sequence)
    if at is None or other is None:
        return 0
    theirs, mine = usual.calls[at:], odd.calls[other:]
    for shift in range(1, _SLIP_MAX + 1):
        for sign, ahead, behind in ((-1, theirs[shift:], mine), (1, theirs, mine[shift:])):
            count = min(len(ahead), len(behind))
            if count >= SLIP_CALLS_MIN and bool((ahead[:count] == behind[:count]).all()):
                return sign * shift
    return 0
