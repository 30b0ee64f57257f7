"""Ranks of a communicator as a hostile peer may write them: checked without expanding ranges.

`0-999998` is eight bytes and a million ranks; what a check costs must follow from the bytes.
"""

from collections.abc import Sequence
from math import gcd, lcm

from paceline.contracts import ids

PARTS_MAX = 16_384  # about 10 ms to read; irregular ranks beyond are no communicator of a real job
EXPANDED_PER_BYTE_MAX = 8  # so few ranks are compared one by one
# Comparisons of interwoven ranges for each part, such as 0-56/8,1-57/8,...; other strides cost more.
COMPARED_PER_PART_MAX, COMPARED_MIN, OTHER_STRIDE_COST = 32, 64, 8


def read_ranks(text: str, world_size: int) -> list[range]:
    """Distinct ranks below `world_size`, at least one, in communicator order; ValueError says what is not."""
    if text.count(",") >= PARTS_MAX:
        raise ValueError(f"ranks {text[:80]!r} have more than {PARTS_MAX} parts")
    spans = ids.rank_spans(text, world_size)
    if not spans or min(span.start for span in spans) < 0 or max(span[-1] for span in spans) >= world_size:
        raise ValueError(f"ranks {text[:80]!r}: expected ranks from 0 to {world_size - 1}")
    if sum(map(len, spans)) <= EXPANDED_PER_BYTE_MAX * len(text):
        ranks = [rank for span in spans for rank in span]
        distinct = len(set(ranks)) == len(ranks)
    else:
        distinct = _are_disjoint(spans)
    if not distinct:
        raise ValueError(f"ranks {text[:80]!r}: expected distinct ranks")
    return spans


def has_rank(spans: Sequence[range], rank: int) -> bool:
    """Whether `rank` is one of them."""
    return any(rank in span for span in spans)


def _are_disjoint(spans: Sequence[range]) -> bool:
    """False also where the spans are interwoven beyond what is worth comparing."""
    budget = COMPARED_PER_PART_MAX * len(spans) + COMPARED_MIN
    open_spans: list[range] = []  # that reach to the start of the next one
    for span in sorted(spans, key=lambda span: span.start):
        open_spans = [other for other in open_spans if other[-1] >= span.start]
        for other in open_spans:
            budget -= 1 if other.step == span.step else OTHER_STRIDE_COST
            if budget < 0 or _meet(other, span):
                return False
        open_spans.append(span)
    return True


def _meet(a: range, b: range) -> bool:
    """Whether both have a rank in common: the congruences of both, inside both."""
    common = gcd(a.step, b.step)
    apart, rest = divmod(b.start - a.start, common)
    if rest:
        return False
    modulus = b.step // common
    first = a.start + a.step * (apart * pow(a.step // common, -1, modulus) % modulus)
    low, high, period = max(a.start, b.start), min(a[-1], b[-1]), lcm(a.step, b.step)
    if first < low:
        first += -((first - low) // period) * period
    return first <= high
